"""An engine without a model: it recites a text, so that the protocol around it can be tested in milliseconds."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace

from draftwise.core import Finding, InvalidSetup, SpecStats
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.engine_outputs import Delta, EngineStats, Logprob
from draftwise.engine.text.detokenizer import IncrementalDetokenizer
from draftwise.engine.text.tokenizer import Tokenizer


class FakeEngine:
    """Answers every prompt with `reply`, `per_step` tokens a step; all methods are `Engine`'s.

    `steps` more steps generate something, then it pauses; `broken` is raised by the next step.
    """

    def __init__(self, directory, *, reply="Hello, world", per_step=1, max_num_seqs=4, max_model_len=64, k=None):
        self.config = EngineConfig(
            model=str(directory), device="cpu", dtype="float32", max_num_seqs=max_num_seqs, max_model_len=max_model_len
        )
        self.tokenizer = Tokenizer.from_pretrained(directory)
        self.spec = None if k is None else SimpleNamespace(k=k, method="ngram", to_dict=lambda: {"method": "ngram"})
        self.findings: tuple[Finding, ...] = ()
        self.num_pages = 7
        self.lag = 1
        self._running = []
        self.steps = math.inf
        self.broken = None
        self.aborted = []
        self.params = []
        self.prompts = []
        self.spec_stats = SpecStats()
        self._reply = [*self.tokenizer.encode(reply), min(self.tokenizer.end_ids)]
        self._per_step = per_step
        self._waiting = []
        self._prompt_tokens = self._generation_tokens = 0

    def add(self, request):
        ids = request.prompt_token_ids
        if not ids:
            raise InvalidSetup.because("empty-prompt", "the prompt has no tokens.", where="prompt")
        if len(ids) >= (self.config.max_model_len or math.inf):
            message = f"the prompt has {len(ids)} tokens, but prompt and output together may have 64."
            raise InvalidSetup.because("prompt-too-long", message, where="prompt")
        self.params.append(request.params)
        self.prompts.append(ids)
        self._prompt_tokens += len(ids)
        for index in range(request.params.n):
            detokenizer = IncrementalDetokenizer(
                self.tokenizer,
                stop_strings=request.params.stop_strings,
                include_stop=request.params.include_stop_str_in_output,
                skip_special_tokens=request.params.skip_special_tokens,
            )
            self._waiting.append(SimpleNamespace(request=request, index=index, done=0, detokenizer=detokenizer))

    def abort(self, request_id):
        self.aborted.append(request_id)
        for queue in (self._waiting, self._running):
            queue[:] = [sequence for sequence in queue if sequence.request.request_id != request_id]

    def has_work(self):
        return bool(self._waiting or self._running)

    def step(self, pending):
        if self.broken is not None:
            raise self.broken
        if not self.steps:
            time.sleep(0.001)
            return pending, []
        self.steps -= 1
        running = self._running
        while self._waiting and len(running) < self.config.num_slots:
            running.append(self._waiting.pop(0))
        deltas = [self._advance(sequence) for sequence in list(running)]
        self._generation_tokens += sum(len(delta.token_ids) for delta in deltas)
        return pending, deltas

    def stats(self):
        return EngineStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            kv_cache_usage=0.25,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            prefix_cache_queries=self._prompt_tokens,
            prefix_cache_hits=0,
            num_preemptions=0,
            spec=self.spec_stats,
        )

    def _advance(self, sequence):
        params, tokens, text, reason = sequence.request.params, list[int](), "", None
        while reason is None and len(tokens) < self._per_step:
            tokens.append(token := self._reply[sequence.done])
            sequence.done += 1
            if token not in self.tokenizer.end_ids:
                text += sequence.detokenizer.add(token)
            if token in self.tokenizer.end_ids or sequence.detokenizer.stopped_by is not None:
                reason = "stop"
            elif sequence.done == params.max_tokens:
                reason = "length"
        if reason is not None:
            text += sequence.detokenizer.finish()
            self._running.remove(sequence)
        first = sequence.done == len(tokens)
        return Delta(
            request_id=sequence.request.request_id,
            index=sequence.index,
            token_ids=tokens,
            text=text,
            logprobs=None if params.logprobs is None else [self._candidates(each, params.logprobs) for each in tokens],
            prompt_logprobs=self._prompt_logprobs(sequence) if first and not sequence.index else None,
            finish_reason=reason,
            stop_reason=sequence.detokenizer.stopped_by,
            num_cached_tokens=2,
        )

    def _prompt_logprobs(self, sequence):
        number = sequence.request.params.prompt_logprobs
        if number is None:
            return None
        return [None, *(self._candidates(token, number) for token in sequence.request.prompt_token_ids[1:])]

    def _candidates(self, token, number):
        """The token itself, ranked second, and as many others as asked for, ranked 1, 3, 4 ..."""
        others = {
            (token + i) % 200: Logprob(-0.5 * i, 1 if i == 1 else i + 1, self.tokenizer.token_text((token + i) % 200))
            for i in range(1, number + 1)
        }
        return {token: Logprob(-0.75, 2, self.tokenizer.token_text(token)), **others}
