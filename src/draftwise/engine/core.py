"""The engine: admits requests and turns them, step by step, into increments of text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from draftwise.core import Finding, InvalidSetup, Severity, SpecConfig, SpecStats
from draftwise.engine.acceptance import Standard
from draftwise.engine.attention import PagedKV
from draftwise.engine.config import EngineConfig
from draftwise.engine.detokenizer import IncrementalDetokenizer
from draftwise.engine.logits import check_params, encode_bad_words
from draftwise.engine.memory import num_pages
from draftwise.engine.models import CausalLM, load_model
from draftwise.engine.outputs import Delta
from draftwise.engine.pages import PagePool
from draftwise.engine.proposers import make_proposer
from draftwise.engine.proposers.base import Confirmed, Proposer
from draftwise.engine.random import completion_seed, request_seed
from draftwise.engine.runner import Outcome, Runner
from draftwise.engine.scheduler import PrefixUse, Scheduler, Work
from draftwise.engine.sequence import Request, Sequence
from draftwise.engine.spec import resolve_spec
from draftwise.engine.spec_counter import SpecCounter
from draftwise.engine.stopping import Stop, find_stop
from draftwise.engine.tokenizer import Tokenizer

__all__ = ["Engine", "EngineStats", "Request"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Counters since the start and gauges of this moment."""

    num_running: int
    num_waiting: int
    kv_cache_usage: float
    """Share of the page pool that sequences hold, 0..1."""
    prompt_tokens: int
    generation_tokens: int
    prefix_cache_queries: int
    """Prompt tokens looked up in the prefix cache."""
    prefix_cache_hits: int
    """Prompt tokens found there."""
    num_preemptions: int
    spec: SpecStats


class Engine:
    """A target, a page pool, a scheduler and, if asked for, a proposer; `step()` moves all of them once.

    Raises:
        InvalidSetup: the checkpoint, the configuration or the drafter cannot work.
    """

    def __init__(self, config: EngineConfig, spec: SpecConfig | None = None) -> None:
        self.spec = resolve_spec(spec) if spec is not None else None
        self.tokenizer = Tokenizer.from_pretrained(config.model)
        model = load_model(config.model, dtype=config.dtype, device=config.device)
        self.config = _resolve(config, model)
        self.shape = model.shape
        self.proposer = make_proposer(self.spec, self.config, model) if self.spec else None
        state_bytes = self.proposer.kv_bytes_per_token if self.proposer else 0
        pages = num_pages(self.config, model, extra_bytes_per_token=state_bytes)
        block_size = config.block_size
        if self.proposer is not None:
            self.proposer.allocate(num_pages=pages, block_size=block_size)
        self.scheduler = Scheduler(
            pool=PagePool(pages, enable_prefix_caching=config.enable_prefix_caching),
            block_size=block_size,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            prefix=_prefix_use(self.proposer),
            shared_pages=state_bytes > 0,
        )
        self.runner = Runner(
            model,
            PagedKV(model.shape, num_pages=pages, block_size=block_size, dtype=model.dtype, device=model.device),
            acceptance=self.spec.acceptance if self.spec else Standard(),
            end_ids=self.tokenizer.end_ids,
            taps=self.proposer.taps if self.proposer else (),
        )
        self._sequences: dict[str, list[Sequence]] = {}
        self._forks: dict[str, list[Sequence]] = {}
        """Completions 1..n-1 of a request, held until the first one has computed the prompt for all."""
        self._spec_counter = SpecCounter()
        self._prompt_tokens = 0
        self._generation_tokens = 0

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            InvalidSetup: the prompt is empty or too long, an id is unknown, or the request id is in use.
        """
        findings = list(self._check(request))
        if findings:
            raise InvalidSetup(findings)
        sequences = [self._make_sequence(request, index) for index in range(request.params.n)]
        self._sequences[request.request_id] = sequences
        self._prompt_tokens += len(request.prompt_token_ids)
        if self.config.enable_prefix_caching and len(sequences) > 1:
            self._forks[request.request_id] = sequences[1:]
            sequences = sequences[:1]
        for sequence in sequences:
            self.scheduler.add(sequence)

    def abort(self, request_id: str) -> None:
        """Drop a request; nothing happens when it is unknown or finished."""
        held_back = self._forks.pop(request_id, [])
        for sequence in self._sequences.pop(request_id, []):
            if sequence not in held_back:
                self.scheduler.remove(sequence)

    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._sequences)

    def step(self) -> list[Delta]:
        """Draft, compute and verify once; return what became final."""
        if not self.has_work():
            return []
        if self.proposer is not None:
            self._draft()
        works = self.scheduler.schedule()
        outcomes = self.runner.execute(works) if works else []
        deltas = [
            delta
            for work, outcome in zip(works, outcomes, strict=True)
            if (delta := self._advance(work, outcome)) is not None
        ]
        self._release_slots()
        return deltas

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

    def _check(self, request: Request) -> Iterable[Finding]:
        """Yield what makes a request impossible."""

        def error(code: str, message: str, fix: str) -> Finding:
            return Finding(code=code, severity=Severity.ERROR, where="prompt", message=message, fix=fix)

        ids, limit, vocab_size = request.prompt_token_ids, self.config.max_model_len, self.shape.vocab_size
        if request.request_id in self._sequences:
            yield error("request-id-in-use", f"request id {request.request_id!r} is in use.", "Choose another one.")
        if not ids:
            yield error("empty-prompt", "the prompt has no tokens.", "Give at least one token.")
        elif min(ids) < 0 or max(ids) >= vocab_size:
            yield error("unknown-token", f"token ids must lie in 0..{vocab_size - 1}.", "Use this model's tokenizer.")
        if limit is not None and len(ids) >= limit:
            yield error(
                "prompt-too-long",
                f"the prompt has {len(ids)} tokens, but prompt and output together may have {limit}.",
                "Shorten the prompt, or raise max_model_len if the model allows it.",
            )
        yield from check_params(request.params, vocab_size)

    def _make_sequence(self, request: Request, index: int) -> Sequence:
        params = request.params
        if params.seed is None:
            seed = request_seed(self.config.seed, request.request_id, index)
        else:
            seed = completion_seed(params.seed, index)
        return Sequence(
            request=request,
            index=index,
            seed=seed,
            tokens=list(request.prompt_token_ids),
            bad_words=encode_bad_words(params.bad_words, lambda text: self.tokenizer.encode(text, False)),
            detokenizer=IncrementalDetokenizer(
                self.tokenizer,
                stop_strings=params.stop_strings,
                include_stop=params.include_stop_str_in_output,
                skip_special_tokens=params.skip_special_tokens,
                prompt_token_ids=request.prompt_token_ids,
            ),
        )

    def _draft(self) -> None:
        """Tell the proposer what became final; give every sequence its draft, and pages for it where it keeps state."""
        assert self.proposer is not None
        assert self.spec is not None
        news = [news for sequence in self.scheduler.running if (news := self._news(sequence)) is not None]
        if not news:
            return
        k = self.spec.k_for(len(self.scheduler.running))
        limits = [self._limit(each.sequence, k) for each in news]
        draft = self.proposer.propose(_confirm(news, limits, self.runner.model.device), k)
        tokens, lengths = draft.tokens_BK.tolist(), draft.lengths_B.tolist()
        for b, sequence in enumerate(each.sequence for each in news):
            sequence.draft = tokens[b][: min(lengths[b], limits[b])]
            sequence.draft_probs_KV = None if draft.probs_BKV is None else draft.probs_BKV[b]
            if self.proposer.kv_bytes_per_token:
                self.scheduler.publish(sequence)

    def _news(self, sequence: Sequence) -> _News | None:
        """Return what the proposer can be told about a running sequence."""
        assert self.proposer is not None
        start, stop = sequence.num_confirmed, sequence.num_computed + 1
        if start is None:
            start = 0 if self.proposer.needs_history else sequence.num_spared + bool(self.proposer.taps)
        if start == stop or (self.proposer.needs_history and not sequence.awaits_token):
            return None
        return _News(sequence, start, sequence.tokens[start:stop])

    def _limit(self, sequence: Sequence, k: int) -> int:
        """Return how many guesses the sequence can use."""
        assert self.proposer is not None
        if not sequence.awaits_token:
            return 0
        own = sequence.params.num_speculative_tokens
        limit = max(min(k, self._room(sequence) - 1, k if own is None else own), 0)
        return self.scheduler.reserve(sequence, limit) if self.proposer.kv_bytes_per_token else limit

    def _room(self, sequence: Sequence) -> int:
        """Return how many more tokens the sequence may have."""
        room = (self.config.max_model_len or 0) - len(sequence.tokens)
        limit = sequence.params.max_tokens
        return room if limit is None else min(room, limit - sequence.num_output)

    def _advance(self, work: Work, outcome: Outcome) -> Delta | None:
        """Move a sequence on by what its work gave; return the news for its reader."""
        sequence, emitted = work.sequence, outcome.emitted
        sequence.features_NF = outcome.features_NF
        if outcome.prompt_logprobs is not None:
            sequence.prompt_logprobs += outcome.prompt_logprobs
        if not emitted:
            self.scheduler.advance(work, [])
            return None
        self._spec_counter.add(drafted=work.num_draft, accepted=len(emitted) - 1)
        text, stop = find_stop(sequence, emitted, room=self._room(sequence), end_ids=self.tokenizer.end_ids)
        emitted = emitted[: stop.num_tokens] if stop else emitted
        first = sequence.num_output == 0
        self.scheduler.advance(work, emitted)
        self._generation_tokens += len(emitted)
        if first:
            for fork in reversed(self._forks.pop(sequence.request.request_id, [])):
                self.scheduler.add(fork, first=True)
        if stop is not None:
            self._finish(sequence)
        return self._delta(sequence, emitted, text, outcome, stop, first=first)

    def _delta(
        self, sequence: Sequence, emitted: list[int], text: str, outcome: Outcome, stop: Stop | None, *, first: bool
    ) -> Delta:
        wants_prompt = first and sequence.index == 0 and sequence.params.prompt_logprobs is not None
        return Delta(
            request_id=sequence.request.request_id,
            index=sequence.index,
            token_ids=emitted,
            text=text,
            logprobs=None if outcome.logprobs is None else self._named(outcome.logprobs[: len(emitted)]),
            prompt_logprobs=[None, *self._named(sequence.prompt_logprobs)] if wants_prompt else None,
            finish_reason=stop.finish_reason if stop else None,
            stop_reason=stop.stop_reason if stop else None,
            num_cached_tokens=sequence.num_cached or 0,
        )

    def _finish(self, sequence: Sequence) -> None:
        if self.proposer is not None:
            self._tell_ending(self.proposer, sequence)
        self.scheduler.remove(sequence)
        siblings = self._sequences[sequence.request.request_id]
        siblings.remove(sequence)
        if not siblings:
            del self._sequences[sequence.request.request_id]

    def _tell_ending(self, proposer: Proposer, sequence: Sequence) -> None:
        """Tell the proposer a sequence's last tokens, if it wants them or has its part of new full pages to write."""
        in_pages = proposer.kv_bytes_per_token > 0
        if not (proposer.needs_ending or (in_pages and self.scheduler.has_unpublished(sequence))):
            return
        news = self._news(sequence)
        if news is not None:
            proposer.propose(_confirm([news], [0], self.runner.model.device), 0)
        if in_pages:
            self.scheduler.publish(sequence)

    def _release_slots(self) -> None:
        """Tell the proposer which sequences are gone."""
        if self.proposer is not None:
            for slot in self.scheduler.released_slots:
                self.proposer.release(slot)
        self.scheduler.released_slots.clear()

    def _named(self, positions: list) -> list:
        """Return log-probabilities with each candidate's text filled in."""
        decode = self.tokenizer.token_text
        return [
            {token: replace(entry, decoded_token=decode(token)) for token, entry in candidates.items()}
            for candidates in positions
        ]


@dataclass(frozen=True, slots=True)
class _News:
    """Tokens of a sequence, from position `start` on, that the proposer does not know yet."""

    sequence: Sequence
    start: int
    tokens: list[int]


def _confirm(news: list[_News], limits: list[int], device: torch.device) -> Confirmed:
    """Return the news as the proposer wants them, and note that it knows them."""
    sequences = [each.sequence for each in news]
    lengths = [len(each.tokens) for each in news]
    features = [
        sequence.features_NF[:length]
        for sequence, length in zip(sequences, lengths, strict=True)
        if sequence.features_NF is not None
    ]
    for each in news:
        each.sequence.num_confirmed, each.sequence.features_NF = each.start + len(each.tokens), None
    width = max(lengths)
    return Confirmed(
        slots=tuple(sequence.slot for sequence in sequences if sequence.slot is not None),
        tokens_BN=torch.tensor([each.tokens + [0] * (width - len(each.tokens)) for each in news], device=device),
        lengths_B=torch.tensor(lengths, device=device),
        num_prompt=tuple(sequence.num_prompt for sequence in sequences),
        starts=tuple(each.start for each in news),
        histories=tuple(sequence.tokens for sequence in sequences),
        limits=tuple(limits),
        pages=tuple(sequence.pages for sequence in sequences),
        features_NF=torch.cat(features) if features else None,
        temperature=tuple(sequence.params.temperature for sequence in sequences),
        seeds=tuple(sequence.seed for sequence in sequences),
    )


def _prefix_use(proposer: Proposer | None) -> PrefixUse:
    """Return how much of a cached prefix the proposer can do without."""
    if proposer is None:
        return PrefixUse.ALL
    if proposer.needs_every_state:
        return PrefixUse.NONE
    return PrefixUse.BUT_LAST if proposer.taps and proposer.kv_bytes_per_token else PrefixUse.ALL


def _resolve(config: EngineConfig, model: CausalLM) -> EngineConfig:
    """Fill in what the checkpoint and the machine decide."""
    longest = model.shape.max_position_embeddings
    if config.max_model_len is not None and config.max_model_len > longest:
        raise InvalidSetup.because(
            "context-too-long",
            f"{config.max_model_len} is more than the model's {longest} positions.",
            where="max_model_len",
            fix=f"Use {longest} or less.",
        )
    return replace(
        config,
        max_model_len=config.max_model_len or longest,
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(model.device),
    )
