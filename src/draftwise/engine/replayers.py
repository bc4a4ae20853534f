"""Replays logged answers with the engine, densely or by forced decoding.

*Forced decoding* serves the logged answers, whatever the target predicts. It is exact for every method. Each step
drafts, verifies and advances as in serving, but drafts are verified against the log. For deterministic drafts, this
equals what serving did: at temperature 0 the log holds the target's choice, above it the target's draw, which a draft
must match.

*Dense replay* is one target pass over prompts and answers, then the drafter at every answer token. A drafter depends
only on confirmed tokens and the target's states at them. Both follow from a logged answer, so the target runs once over
the whole text, like a prompt, and the proposer receives one token after another, as if each were a step. The longest
drafts give all k if shorter drafts are their prefixes.

For sampled drafts, the drafter gets the text as its earlier drafts, and draft token x is accepted with probability
min(1, q(x) / p(x)): of the mass p(x) that rejection sampling emits as x, acceptance contributes min(p, q)(x) (Leviathan
et al. 2023, arXiv 2211.17192). Comparing text would give q(x) instead.

Shape letters: B requests, N tokens of a pass, T answer tokens (padded), K draft tokens, F features of a token,
P pages, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwise.checkpoints.config_json import read_config
from draftwise.checkpoints.config_values import get_int
from draftwise.core import SpecConfig
from draftwise.engine.attention.pass_rows import Spans, plan_attention
from draftwise.engine.core import Engine, Pending
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.memory.transfer import upload
from draftwise.engine.proposers.proposer import Confirmed
from draftwise.engine.sampling.draft import Draft
from draftwise.engine.sampling.params import SamplingParams
from draftwise.engine.step.launched import Outcome
from draftwise.engine.step.scheduler import EngineRequest
from draftwise.knowledge.messages import refusal
from draftwise.replaying.transcripts import DraftRows, ReplayedRequest, Replayer, Transcript


def check_fit(engine: Engine, requests: Sequence[Transcript]) -> None:
    """Check that the engine can have served the requests.

    Raises:
        InvalidSetup: a request exceeds the model's context, or has token ids outside the target's vocabulary.
    """
    longest, vocab_size = engine.config.max_model_len, engine.shape.vocab_size
    assert longest is not None
    for request in requests:
        if request.num_tokens > longest:
            raise refusal("answer-too-long", id=request.id, num_tokens=request.num_tokens, longest=longest)
        if max(*request.prompt_ids, *request.answer_ids) >= vocab_size:
            raise refusal("unknown-token", id=request.id, largest=vocab_size - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedStep:
    """One decode step of one request."""

    token: int
    """Answer tokens confirmed when it begins."""
    drafted: tuple[int, ...]
    accepted: int
    """Accepted draft tokens, including those after the answer's end."""


@dataclass(frozen=True, slots=True)
class ForcedReplayer:
    """Replays requests by forced decoding, at the engine's k or smaller ones.

    Args:
        engine: engine with a speculative config and no other users.
        ks: draft lengths to replay, one pass each.
    """

    engine: Engine
    ks: Sequence[int]
    remembers = False

    def replay(self, requests: Sequence[Transcript]) -> Iterator[ReplayedRequest]:
        """Yield each request once it is replayed at every k. Decodes as many together as the engine allows.

        Raises:
            InvalidSetup: a request exceeds the engine's context, or has token ids outside the target's vocabulary.
        """
        check_fit(self.engine, requests)
        size = self.engine.config.num_slots
        for begin in range(0, len(requests), size):
            batch = requests[begin : begin + size]
            walks = {k: force(self.engine, batch, k) for k in self.ks}
            for place, request in enumerate(batch):
                by_k = {k: _to_rows(request, steps[place]) for k, steps in walks.items()}
                yield ReplayedRequest(id=request.id, by_k=by_k)


def force(engine: Engine, requests: Sequence[Transcript], k: int) -> list[list[ForcedStep]]:
    """Return the decode steps of each request.

    Args:
        engine: engine with a speculative config, and no requests.
        requests: requests to decode together.
        k: maximum draft tokens per step.
    """
    steps: dict[str, list[ForcedStep]] = {str(place): [] for place in range(len(requests))}

    def note(outcome: Outcome) -> None:
        sequence = outcome.sequence
        if sequence.num_output:
            step = ForcedStep(
                token=sequence.num_output, drafted=tuple(outcome.drafted), accepted=len(outcome.emitted) - 1
            )
            steps[sequence.request.request_id].append(step)

    engine.on_outcome = note
    try:
        for place, request in enumerate(requests):
            engine.add(_to_request(request, str(place), k))
        pending: Pending = ()
        while engine.has_work():
            pending, _ = engine.step(pending)
    finally:
        engine.on_outcome = None
        for name in steps:
            engine.abort(name)
    return list(steps.values())


def _to_request(request: Transcript, name: str, k: int) -> EngineRequest:
    params = SamplingParams(
        temperature=request.temperature,
        max_tokens=request.limit,
        ignore_eos=True,
        num_speculative_tokens=k,
        forced_token_ids=request.answer_ids,
    )
    return EngineRequest(request_id=name, prompt_token_ids=list(request.prompt_ids), params=params)


def _to_rows(request: Transcript, steps: Sequence[ForcedStep]) -> DraftRows:
    """Return the drafts at the places where a step begins; a walk takes of them what lies inside the answer."""
    drafted, accepted = [0] * len(request.answer_ids), [0] * len(request.answer_ids)
    for step in steps:
        drafted[step.token] = len(step.drafted)
        accepted[step.token] = step.accepted
    return DraftRows(drafted=drafted, accepted=accepted)


_NO_TOKEN = -1
_LOGIT_ROWS = 256
"""Rows whose logits are computed at once."""


@dataclass(slots=True, kw_only=True)
class _Batch:
    """Requests that are replayed together, and what the target says of their answers."""

    requests: Sequence[Transcript]
    pages_BP: Tensor
    answers_BT: Tensor
    """int64; -1 pads shorter answers, and K tokens after the longest."""
    features: list[Tensor | None]
    """[T, F] of each request: auxiliary hidden states before each answer token."""
    logprobs_BT: Tensor | None
    """float32, log p of each answer token; None for deterministic drafts."""


class DenseReplayer:
    """Replays requests densely, with an engine's target and drafter.

    Args:
        engine: engine with a speculative config and no other users.
        ks: the k to replay.
    """

    remembers = False

    def __init__(self, engine: Engine, ks: Sequence[int]) -> None:
        assert engine.spec is not None
        self._engine, self._proposer = engine, engine.proposer
        self._model, self._kv, self._threads = engine.runner.model, engine.runner.kv, engine.runner.threads
        self._ks = (max(ks),) if self._proposer.nests else tuple(ks)
        self._samples = engine.spec.probabilistic

    def replay(self, requests: Sequence[Transcript]) -> Iterator[ReplayedRequest]:
        """Yield the drafts at every answer token of each request.

        Raises:
            InvalidSetup: a request exceeds the engine's context, or has token ids outside the target's vocabulary.
        """
        check_fit(self._engine, requests)
        for batch in self._split(requests):
            yield from self._replay(batch)

    def _split(self, requests: Sequence[Transcript]) -> Iterator[Sequence[Transcript]]:
        """Yield batches that fit into the pages, and into as many sequences as the engine decodes together."""
        batch: list[Transcript] = []
        for request in requests:
            together = [*batch, request]
            too_many = len(together) > self._engine.config.num_slots
            if batch and (too_many or sum(map(self._count_pages, together)) > self._kv.num_pages):
                yield batch
                together = [request]
            batch = together
        yield batch

    def _computing(self, *, prompt_rows: int) -> AbstractContextManager[None]:
        return nullcontext() if self._threads is None else self._threads.computing(prompt_rows=prompt_rows)

    def _count_pages(self, request: Transcript) -> int:
        return -(-(request.num_tokens + max(self._ks)) // self._kv.block_size)

    @torch.inference_mode()
    def _replay(self, requests: Sequence[Transcript]) -> list[ReplayedRequest]:
        batch = self._compute(requests)
        size = max(len(request.answer_ids) for request in requests)
        found = {
            k: _DraftTable(len(requests), size, k, samples=self._samples, device=self._model.device) for k in self._ks
        }
        for token in range(1, size):
            live = [place for place, request in enumerate(requests) if len(request.answer_ids) > token]
            for k in self._ks:
                told_BK = batch.answers_BT[upload(live, self._model.device), token : token + k]
                with self._computing(prompt_rows=0):
                    draft = self._proposer.propose(self._confirm(batch, live, token, k, told_BK), k)
                found[k].note(live, token, draft, told_BK, batch.logprobs_BT)
        for slot in range(len(requests)):
            self._proposer.release(slot)
        rows = {k: each.to_rows(requests) for k, each in found.items()}
        return [
            ReplayedRequest(id=request.id, by_k={k: rows[k][place] for k in self._ks})
            for place, request in enumerate(requests)
        ]

    def _compute(self, requests: Sequence[Transcript]) -> _Batch:
        """Run the target over the texts, and notify the proposer of the prompts."""
        device, longest = self._model.device, max(len(request.answer_ids) for request in requests)
        answers = np.full((len(requests), longest + max(self._ks)), _NO_TOKEN, dtype=np.int64)
        for row, request in zip(answers, requests, strict=True):
            row[: len(request.answer_ids)] = request.answer_ids
        batch = _Batch(
            requests=requests,
            pages_BP=self._give_pages(requests),
            answers_BT=upload(answers, device),
            features=[None] * len(requests),
            logprobs_BT=torch.zeros(answers.shape, device=device) if self._samples else None,
        )
        for place, request in enumerate(requests):
            with self._computing(prompt_rows=request.num_tokens):
                self._compute_text(batch, place)
        return batch

    def _give_pages(self, requests: Sequence[Transcript]) -> Tensor:
        """Return page_table_BP: pages after each other, scratch behind them."""
        counts = [self._count_pages(request) for request in requests]
        pages = np.full((len(requests), max(counts) + 1), self._kv.num_pages, dtype=np.int32)
        first = 0
        for row, count in zip(pages, counts, strict=True):
            row[:count] = np.arange(first, first + count)
            first += count
        return upload(pages, self._model.device, np.int32)

    def _compute_text(self, batch: _Batch, place: int) -> None:
        """Run the target over one text, all of it but the last token, in pieces of max_num_batched_tokens."""
        request, aux_layers = batch.requests[place], self._proposer.aux_layers
        text = [*request.prompt_ids, *request.answer_ids]
        prompt, step = len(request.prompt_ids), self._engine.config.num_step_tokens
        kept: list[Tensor] = []
        for start in range(0, len(text) - 1, step):
            end = min(start + step, len(text) - 1)
            hidden_NH, features_NF = self._run(text[start:end], start, batch.pages_BP[place : place + 1])
            self._tell_prompt(batch, place, start, min(end, prompt - bool(aux_layers)), features_NF)
            own = max(0, prompt - 1 - start)  # from here on rows predict the answer
            if features_NF is not None:
                kept.append(features_NF[own:])
            if batch.logprobs_BT is not None and own < end - start:
                first = start + own - (prompt - 1)
                tokens_N = batch.answers_BT[place, first : first + end - start - own]
                logprobs_N = self._rank(hidden_NH[own:], tokens_N, request.temperature)
                batch.logprobs_BT[place, first : first + len(logprobs_N)] = logprobs_N
        batch.features[place] = torch.cat(kept) if kept else None

    def _run(self, tokens: Sequence[int], start: int, pages_1P: Tensor) -> tuple[Tensor, Tensor | None]:
        """Run the target over a piece of one text; return hidden_NH and the auxiliary hidden states."""
        model, aux_layers, features_NF = self._model, self._proposer.aux_layers, None
        spans = Spans.of([start], [len(tokens)], model.device)
        plan = plan_attention(spans, pages_1P, block_size=self._kv.block_size)
        if aux_layers:
            width = len(aux_layers) * model.shape.hidden_size
            features_NF = torch.empty(len(tokens), width, dtype=model.dtype, device=model.device)
        hidden_NH, _ = model(upload(tokens, model.device), plan.positions_N, self._kv, plan, aux_layers, features_NF)
        return hidden_NH, features_NF

    def _rank(self, hidden_NH: Tensor, tokens_N: Tensor, temperature: float) -> Tensor:
        """Return the log-probability that each token was drawn with; 0 at temperature 0, where nothing is drawn."""
        if temperature == 0:
            return torch.zeros(len(tokens_N), device=hidden_NH.device)
        pieces = zip(hidden_NH.split(_LOGIT_ROWS), tokens_N.split(_LOGIT_ROWS), strict=True)
        return torch.cat(
            [
                (self._model.logits(hidden).float() / temperature).log_softmax(-1).gather(1, tokens[:, None])[:, 0]
                for hidden, tokens in pieces
            ]
        )

    def _tell_prompt(self, batch: _Batch, place: int, start: int, end: int, features_NF: Tensor | None) -> None:
        """Notify the proposer of the prompt tokens that follow from the positions [start, end) of a text."""
        if end <= start:
            return
        shift = bool(self._proposer.aux_layers)
        tokens = batch.requests[place].prompt_ids[start + shift : end + shift]
        rows = None if features_NF is None else features_NF[: len(tokens)]
        new = self._make_confirmed(batch, [place], [start + shift], [tokens], rows, limits=[0], told_BK=None)
        self._proposer.propose(new, 0)

    def _confirm(self, batch: _Batch, live: Sequence[int], token: int, k: int, told_BK: Tensor) -> Confirmed:
        """Return the news that the answer token before `token` is final, for the requests that go on."""
        requests = [batch.requests[place] for place in live]
        features = [each[token - 1] for place in live if (each := batch.features[place]) is not None]
        return self._make_confirmed(
            batch,
            live,
            [len(request.prompt_ids) + token - 1 for request in requests],
            [request.answer_ids[token - 1 : token] for request in requests],
            torch.stack(features) if features else None,
            limits=[max(0, min(k, self._limit(request) - token - 1)) for request in requests],
            told_BK=told_BK if self._samples else None,
        )

    def _limit(self, request: Transcript) -> int:
        """Return the tokens that the answer could have had at most: its own limit, or the engine's."""
        assert self._engine.config.max_model_len is not None
        return min(request.limit, self._engine.config.max_model_len - len(request.prompt_ids))

    def _make_confirmed(
        self,
        batch: _Batch,
        places: Sequence[int],
        starts: Sequence[int],
        tokens: Sequence[Sequence[int]],
        features_NF: Tensor | None,
        *,
        limits: Sequence[int],
        told_BK: Tensor | None,
    ) -> Confirmed:
        requests, device = [batch.requests[place] for place in places], self._model.device
        slots_B = upload(places, device)
        return Confirmed(
            slots_B=slots_B,
            spans=Spans.of(starts, [len(each) for each in tokens], device),
            tokens_N=upload([token for each in tokens for token in each], device),
            num_prompt_B=upload([len(request.prompt_ids) for request in requests], device),
            limits_B=upload(limits, device),
            page_table_BP=batch.pages_BP[slots_B],
            features_NF=features_NF,
            temperature_B=upload([request.temperature for request in requests], device, np.float32),
            seeds_B=torch.zeros_like(slots_B),
            told_BK=told_BK,
            wants_confidence=True,
        )


class _DraftTable:
    """The drafts at one k, on the device until the batch is done.

    Args:
        num: B.
        size: T.
        k: K.
        samples: whether drafts are sampled.
        device: where.
    """

    def __init__(self, num: int, size: int, k: int, *, samples: bool, device: torch.device) -> None:
        self._drafted_BT = torch.zeros(num, size, dtype=torch.long, device=device)
        self._accepted_BT = torch.zeros_like(self._drafted_BT)
        self._chances_BTK = torch.zeros(num, size, k, device=device) if samples else None
        self._confidence_BTK: Tensor | None = None

    def note(self, live: Sequence[int], token: int, draft: Draft, told_BK: Tensor, logprobs_BT: Tensor | None) -> None:
        """Record the drafts at answer token `token`, for requests still running."""
        rows_B = upload(live, told_BK.device)
        k = told_BK.shape[1]
        inside_BK = torch.arange(k, device=told_BK.device) < draft.lengths_B.unsqueeze(1)
        self._drafted_BT[rows_B, token] = draft.lengths_B
        if draft.confidence_BK is not None:
            if self._confidence_BTK is None:
                self._confidence_BTK = torch.zeros(*self._drafted_BT.shape, k, device=told_BK.device)
            self._confidence_BTK[rows_B, token] = torch.where(inside_BK, draft.confidence_BK, 0)
        if self._chances_BTK is None or draft.probs_BKV is None or logprobs_BT is None:
            stands_BK = (draft.tokens_BK == told_BK) & inside_BK
            self._accepted_BT[rows_B, token] = stands_BK.long().cumprod(1).sum(1)
            return
        known_BK = inside_BK & (told_BK >= 0)
        q_BK = draft.probs_BKV.gather(2, told_BK.clamp(min=0).unsqueeze(2)).squeeze(2)
        chances_BK = (q_BK / logprobs_BT[rows_B, token : token + k].exp()).clamp(max=1)
        self._chances_BTK[rows_B, token] = torch.where(known_BK, chances_BK, 0)

    def to_rows(self, requests: Sequence[Transcript]) -> list[DraftRows]:
        """Return the drafts of each request."""
        found = {
            "drafted": self._drafted_BT,
            "accepted": self._accepted_BT if self._chances_BTK is None else None,
            "chances": self._chances_BTK,
            "confidence": None if self._confidence_BTK is None else self._confidence_BTK.round(decimals=3),
        }
        lists = {name: values.tolist() for name, values in found.items() if values is not None}
        sizes = [len(request.answer_ids) for request in requests]
        return [DraftRows(**{name: rows[b][:n] for name, rows in lists.items()}) for b, n in enumerate(sizes)]


_BY_LOAD = ("num_speculative_tokens_per_batch_size", "disable_by_batch_size")
"""Keys that make k depend on the load, which a replay leaves to whoever forecasts."""
_ON_GPU = 64
"""Requests that a GPU replays together: the drafter's walk over their answers waits for the host, however many they are
(3 ms a token on an H200), but memory is set aside for the logits of all. A processor takes the engine's default: a
batch ends, and is kept, sooner."""
_TOKENS_ON_GPU = 2048
"""Tokens of a pass, for the same reason."""


def open_replayer(
    spec: SpecConfig, target: Path, ks: Sequence[int], *, longest: int, forced: bool, settings: Mapping[str, Any]
) -> Replayer:
    """Return a replayer for a candidate's target and drafter.

    Args:
        spec: speculative config with the largest k.
        target: target's checkpoint.
        ks: draft lengths to replay.
        longest: tokens of the longest request, answer included.
        forced: use forced decoding instead of dense replay.
        settings: fields of `EngineConfig`. None: the default.

    Raises:
        InvalidSetup: target or drafter cannot be loaded, or do not match.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    if given.get("device") != "cpu" and torch.cuda.is_available():
        given.setdefault("max_num_seqs", _ON_GPU)
        given.setdefault("max_num_batched_tokens", _TOKENS_ON_GPU)
    if "max_model_len" not in given:
        positions = get_int(read_config(target), "max_position_embeddings")
        wanted = longest + max(ks) + 1  # so that no draft ends where the log does
        given["max_model_len"] = wanted if positions is None else min(wanted, positions)
    config = EngineConfig.from_settings(
        model=str(target), **({"enforce_eager": True, "enable_prefix_caching": False} | given)
    )
    options = {key: value for key, value in spec.options.items() if key not in _BY_LOAD}
    engine = Engine(config, replace(spec, options=options), lag=0)
    return ForcedReplayer(engine, tuple(ks)) if forced else DenseReplayer(engine, ks)
