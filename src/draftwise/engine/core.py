"""The engine: admits requests and turns them into increments of text, step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator
from dataclasses import replace

from draftwise.core import Finding, InvalidSetup, ModelShape, SpecConfig, SpecStats
from draftwise.engine.assembly import build
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.engine_outputs import Delta, EngineStats, LogprobsOfToken, RankedRow
from draftwise.engine.sampling.bad_words import encode_bad_words
from draftwise.engine.sampling.grammar import Grammar, Grammars
from draftwise.engine.sampling.logits import check_params
from draftwise.engine.sampling.logprobs import parse
from draftwise.engine.sampling.params import SamplingParams
from draftwise.engine.sampling.random import completion_seed, request_seed
from draftwise.engine.startup_phases import Startup, TimedStartup
from draftwise.engine.step.launched import LaunchedStep, Outcome
from draftwise.engine.step.scheduler import EngineRequest, Sequence, StepSchedule
from draftwise.engine.text.detokenizer import IncrementalDetokenizer, Stop, find_stop
from draftwise.engine.text.tokenizer import Tokenizer

Pending = tuple[LaunchedStep, ...]
"""Steps launched but not collected yet, oldest first."""

_AWAIT_S = 0.001
"""Seconds between checks for ready sequences if no sequence can continue."""
_TOLD_AT_ONCE = 64
"""Prompt tokens with log-probabilities per increment. More would delay the reader of increments."""


class Engine:
    """A target, a page pool, a scheduler and, optionally, a proposer. `step` advances all of them.

    Args:
        spec: speculative config. None: plain decoding.
        lag: steps that the host is behind the device: 0 or 1. With 1, a step's tokens are read after the next step is
            launched, so the device never waits. None: 1 on a GPU, else 0. Both give the same tokens.

    Raises:
        InvalidSetup: the checkpoint, the config or the drafter is invalid.
    """

    def __init__(
        self,
        config: EngineConfig,
        spec: SpecConfig | None = None,
        *,
        startup: Startup | None = None,
        lag: int | None = None,
    ) -> None:
        parts = build(config, spec, startup=startup or TimedStartup(), lag=lag)
        self.config, self.spec, self.findings = parts.config, parts.spec, parts.findings
        self.tokenizer, self.shape, self.proposer = parts.tokenizer, parts.shape, parts.proposer
        self.scheduler, self.runner, self.lag = parts.scheduler, parts.runner, parts.lag
        self._confirmations = parts.runner.confirmations
        self.grammars = parts.runner.grammars
        self.admission = Admission(self.config, self.shape, self.tokenizer, self.grammars)
        self._sequences: dict[str, list[Sequence]] = {}
        self._forks: dict[str, list[Sequence]] = {}
        """Completions 1..n-1 of a request, held until the first one has computed the prompt for all."""
        self._spec_counter = SpecCounter()
        self.on_outcome: Callable[[Outcome], None] | None = None
        """Called with each step's outcome for a sequence, before the sequence advances."""
        self.scheduled: StepSchedule | None = None
        """Work of the last step; None if it launched nothing."""
        self._prompt_tokens = 0
        self._generation_tokens = 0

    @property
    def num_pages(self) -> int:
        """Number of KV-cache pages."""
        return self.scheduler.pool.num_pages

    def add(self, request: EngineRequest) -> None:
        """Queue a request.

        Raises:
            InvalidSetup: the prompt is empty or too long, a token id is unknown, the request id is in use, or the
                grammar of structured output is invalid.
        """
        findings = list(self.admission.check(request, ids_in_use=self._sequences))
        if findings:
            raise InvalidSetup(findings)
        first = self.admission.make_sequence(request, 0)
        others = range(1, request.params.n)
        sequences = [first, *(self.admission.make_sequence(request, index, first.grammar) for index in others)]
        self._sequences[request.request_id] = sequences
        self._prompt_tokens += len(request.prompt_token_ids)
        if self.config.enable_prefix_caching and len(sequences) > 1:
            self._forks[request.request_id] = sequences[1:]
            sequences = sequences[:1]
        for sequence in sequences:
            self.scheduler.add(sequence)

    def abort(self, request_id: str) -> None:
        """Drop a request. Does nothing if it is unknown or finished."""
        held_back = self._forks.pop(request_id, [])
        for sequence in self._sequences.pop(request_id, []):
            if sequence not in held_back:
                self.scheduler.remove(sequence)

    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._sequences)

    def step(self, pending: Pending) -> tuple[Pending, list[Delta]]:
        """Launch a step. Return the pending steps, and the increments of those collected.

        Example:
            >>> pending: Pending = ()
            >>> while engine.has_work():
            ...     pending, deltas = engine.step(pending)
        """
        self.scheduled = None
        if not self.has_work():
            return (), []
        if pending and self._awaits_first_tokens():
            return (), self._collect(pending)
        deltas: list[Delta] = []
        if self._needs_tokens():
            deltas, pending = self._collect(pending), ()
        k = self._k_now()
        schedule = self.scheduler.schedule(k)
        if schedule is None:
            deltas, pending = deltas + self._collect(pending), ()
            schedule = self.scheduler.schedule(k)
        assert schedule is not None, "with nothing under way a sequence is preempted instead"
        self.scheduled = schedule
        if not schedule:
            time.sleep(_AWAIT_S)  # masks of grammars are being found
        launched = self._launch(schedule)
        if not self.lag:
            pending, launched = pending + launched, ()
        return launched, deltas + self._collect(pending)

    def stats(self) -> EngineStats:
        """Return a snapshot of counters and gauges."""
        scheduler = self.scheduler
        return EngineStats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            kv_cache_usage=scheduler.pool.usage,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            prefix_cache_queries=scheduler.num_cache_queries,
            prefix_cache_hits=scheduler.num_cache_hits,
            num_preemptions=scheduler.num_preemptions,
            spec=self._spec_counter.stats(),
        )

    def _k_now(self) -> int:
        """Return how many tokens to draft for each sequence in the next step."""
        return self.spec.k_for(len(self.scheduler.running)) if self.spec else 0

    def _awaits_first_tokens(self) -> bool:
        """Whether first tokens are under way and nothing else: then they come before what the host prepares next."""
        running = self.scheduler.running
        return bool(
            running
            and not self.scheduler.waiting
            and all(sequence.is_decoding and sequence.num_output == 0 for sequence in running)
        )

    def _needs_tokens(self) -> bool:
        """Whether the next step depends on tokens that the host must know first: for drafts, or for logits."""
        return self._confirmations.needs_tokens or any(
            each.grammar is not None or each.traits.needs_history for each in self.scheduler.running
        )

    def _launch(self, schedule: StepSchedule) -> Pending:
        """Hand a step to the device."""
        launched = self.runner.run(schedule)
        self.scheduler.launch(schedule)
        now = time.monotonic()
        for chunk in schedule.chunks:
            if chunk.sequence.scheduled_s is None:
                chunk.sequence.scheduled_s = now
            self._publish(chunk.sequence)
        if self._confirmations.fills_pages:  # the step notifies the proposer of what the host knows
            for sequence in schedule.decodes:
                self._publish(sequence)
        return launched

    def _publish(self, sequence: Sequence) -> None:
        self.scheduler.publish(sequence, self._confirmations.num_shareable(sequence))

    def _collect(self, pending: Pending) -> list[Delta]:
        """Wait for what is pending and return what became final by it."""
        deltas: list[Delta] = []
        for launched in pending:
            outcomes = list(launched.collect())
            for sequence in launched.prompts:
                deltas += self._tell_prompt(sequence)
            deltas += [self._advance(outcome, bound=launched.bound) for outcome in outcomes]
        return deltas

    def _tell_prompt(self, sequence: Sequence) -> Iterator[Delta]:
        """Yield the log-probabilities of a prompt that its reader does not have, some positions at a time."""
        k = sequence.params.prompt_logprobs
        while sequence.num_prompt_told <= len(sequence.prompt_ranks):
            first = max(sequence.num_prompt_told - 1, 0)
            told: list[LogprobsOfToken | None] = [] if sequence.num_prompt_told else [None]
            told += self._parse(sequence.prompt_ranks[first : first + _TOLD_AT_ONCE], k)
            sequence.num_prompt_told += len(told)
            yield Delta(
                request_id=sequence.request.request_id,
                index=0,
                token_ids=[],
                text="",
                prompt_logprobs=told,
                num_cached_tokens=sequence.num_cached or 0,
                scheduled_s=sequence.scheduled_s,
            )

    def _advance(self, outcome: Outcome, *, bound: int) -> Delta:
        """Move a sequence on by what a step gave it; return what its reader is to know of that."""
        if self.on_outcome is not None:
            self.on_outcome(outcome)
        sequence, emitted, scheduler = outcome.sequence, outcome.emitted, self.scheduler
        refused = sequence.grammar is not None and sequence.grammar.refused_draft
        self._spec_counter.add(drafted=len(outcome.drafted), accepted=len(emitted) - 1, refused=refused)
        end = None
        if sequence.grammar is not None:
            count, end = sequence.grammar.advance(emitted)
            emitted = emitted[:count]
        try:
            text, stop = find_stop(
                emitted,
                sequence.params,
                sequence.detokenizer,
                num_output=sequence.num_output,
                room=sequence.num_left,
                end_ids=self.tokenizer.end_ids,
                end=end,
            )
        except InvalidSetup as error:  # the tokenizer has no text for these tokens
            why = error.findings[0].message
            text, stop = "", Stop(num_tokens=len(emitted), finish_reason="error", stop_reason=why)
        emitted = emitted[: stop.num_tokens] if stop else emitted
        if stop is not None and stop.finish_reason == "abort" and sequence.grammar is not None:
            stop = replace(stop, stop_reason=sequence.grammar.explain_abort())
        first = sequence.num_output == 0
        scheduler.advance(sequence, emitted, bound=bound)
        self._generation_tokens += len(emitted)
        self._publish(sequence)
        if first:
            for fork in reversed(self._forks.pop(sequence.request.request_id, [])):
                scheduler.add(fork, first=True)
        if stop is not None:
            self._finish(sequence)
        return self._delta(sequence, emitted, text, outcome, stop)

    def _delta(self, sequence: Sequence, emitted: list[int], text: str, outcome: Outcome, stop: Stop | None) -> Delta:
        logprobs: list[LogprobsOfToken] | None = None
        prompt_logprobs: list[LogprobsOfToken | None] | None = None
        if outcome.ranked is not None:
            logprobs = self._parse(outcome.ranked[: len(emitted)], sequence.params.logprobs)
        if sequence.params.prompt_logprobs is not None and not sequence.num_prompt_told:
            prompt_logprobs, sequence.num_prompt_told = [None], 1  # of a prompt of one token
        return Delta(
            request_id=sequence.request.request_id,
            index=sequence.index,
            token_ids=emitted,
            text=text,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            finish_reason=stop.finish_reason if stop else None,
            stop_reason=stop.stop_reason if stop else None,
            num_cached_tokens=sequence.num_cached or 0,
            scheduled_s=sequence.scheduled_s,
        )

    def _finish(self, sequence: Sequence) -> None:
        self._confirmations.end(sequence, for_pages=self.scheduler.has_unpublished(sequence))
        self._publish(sequence)
        self.scheduler.remove(sequence)
        siblings = self._sequences[sequence.request.request_id]
        siblings.remove(sequence)
        if not siblings:
            del self._sequences[sequence.request.request_id]

    def _parse(self, rows: list[RankedRow], k: int | None) -> list[LogprobsOfToken]:
        return parse(rows, k or 0, self.tokenizer.token_text)


class Admission:
    """Validates requests and creates their sequences.

    Args:
        config: config with max_model_len resolved.
    """

    def __init__(self, config: EngineConfig, shape: ModelShape, tokenizer: Tokenizer, grammars: Grammars) -> None:
        assert config.max_model_len is not None, "`build` fills it in"
        self._longest, self._seed = config.max_model_len, config.seed
        self._vocab_size, self._tokenizer, self._grammars = shape.vocab_size, tokenizer, grammars

    def check(self, request: EngineRequest, *, ids_in_use: Container[str]) -> Iterator[Finding]:
        """Yield the errors of a request."""
        ids, limit = request.prompt_token_ids, self._longest
        if request.request_id in ids_in_use:
            yield _error("request-id-in-use", f"Request id {request.request_id!r} is in use.", "Choose another one.")
        if not ids:
            yield _error("empty-prompt", "The prompt has no tokens.", "Give at least one token.")
        elif min(ids) < 0 or max(ids) >= self._vocab_size:
            message = f"Token ids must lie in 0..{self._vocab_size - 1}."
            yield _error("unknown-token", message, "Use this model's tokenizer.")
        if len(ids) >= limit:
            yield _error(
                "prompt-too-long",
                f"The prompt has {len(ids)} tokens, but prompt and output together may have {limit}.",
                "Shorten the prompt, or raise max_model_len if the model allows it.",
            )
        yield from check_params(request.params, self._vocab_size)

    def make_sequence(self, request: EngineRequest, index: int, grammar: Grammar | None = None) -> Sequence:
        """Return completion number `index` of a request, with nothing computed yet.

        Args:
            grammar: grammar of another completion at its start. It is long to find again.

        Raises:
            InvalidSetup: a bad word or the grammar of structured output is invalid.
        """
        params, num_prompt = request.params, len(request.prompt_token_ids)
        if params.seed is None:
            seed = request_seed(self._seed, request.request_id, index)
        else:
            seed = completion_seed(params.seed, index)
        if params.structured_outputs is not None:
            grammar = self._grammars.compile(params.structured_outputs) if grammar is None else grammar.copy()
        wanted = self._longest if params.max_tokens is None else num_prompt + params.max_tokens
        sequence = Sequence(
            request=request,
            index=index,
            seed=seed,
            max_tokens=min(self._longest, wanted),
            tokens=list(request.prompt_token_ids),
            bad_words=self._encode_bad_words(params),
            grammar=grammar,
            detokenizer=IncrementalDetokenizer(
                self._tokenizer,
                stop_strings=params.stop_strings,
                include_stop=params.include_stop_str_in_output,
                skip_special_tokens=params.skip_special_tokens,
                prompt_token_ids=request.prompt_token_ids,
            ),
        )
        if sequence.grammar is not None and sequence.grammar.is_slow:
            sequence.params = replace(params, num_speculative_tokens=0)
        if index > 0:  # the first one's are the prompt's; the others may take its pages
            sequence.params = replace(sequence.params, prompt_logprobs=None)
        return sequence

    def _encode_bad_words(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        if params.bad_word_ids is not None:
            return params.bad_word_ids
        return encode_bad_words(params.bad_words, lambda text: self._tokenizer.encode(text, False))


def _error(code: str, message: str, fix: str) -> Finding:
    return Finding.error(code, message, where="prompt", fix=fix)


class SpecCounter:
    """Mutable counterpart of `SpecStats`, with one cheap addition per draft."""

    def __init__(self) -> None:
        self._num_drafts = 0
        self._drafted_per_pos: list[int] = []
        self._accepted_per_pos: list[int] = []

    def add(self, *, drafted: int, accepted: int, refused: bool = False) -> None:
        """Count one draft. Empty drafts do not count, unless a grammar rejected all their tokens (as in vLLM)."""
        if drafted == 0 and not refused:
            return
        self._num_drafts += 1
        for _ in range(drafted - len(self._drafted_per_pos)):
            self._drafted_per_pos.append(0)
            self._accepted_per_pos.append(0)
        for position in range(drafted):
            self._drafted_per_pos[position] += 1
        for position in range(accepted):
            self._accepted_per_pos[position] += 1

    def stats(self) -> SpecStats:
        """Return the counts so far."""
        return SpecStats(
            num_drafts=self._num_drafts,
            num_draft_tokens=sum(self._drafted_per_pos),
            num_accepted_tokens=sum(self._accepted_per_pos),
            accepted_per_pos=tuple(self._accepted_per_pos),
            drafted_per_pos=tuple(self._drafted_per_pos),
        )
