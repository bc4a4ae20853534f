"""Forced decoding: the engine serves the logged answers, whatever its target says. The truth for every method.

Every step drafts, verifies and moves on as in serving, only that drafts are verified against the log. Where drafts are
not sampled this is what serving the answers did: at temperature 0 they are the target's choice, and above the target's
draw, which a draft has to name whatever its chances were.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from draftwise.core import InvalidSetup
from draftwise.engine.core import Engine, EngineRequest, Pending
from draftwise.engine.sampling.params import SamplingParams
from draftwise.engine.step.launched import Outcome
from draftwise.replaying.transcripts import DraftRows, ReplayedRequest, Transcript


def check_fit(engine: Engine, requests: Sequence[Transcript]) -> None:
    """Refuse requests that the engine cannot have served.

    Raises:
        InvalidSetup: one is longer than the model's context, or has ids that the target does not.
    """
    longest, vocab_size = engine.config.max_model_len, engine.shape.vocab_size
    assert longest is not None
    for request in requests:
        if request.num_tokens > longest:
            raise InvalidSetup.because(
                "answer-too-long",
                f"Request {request.id} has {request.num_tokens} tokens, its answer included, and the target takes "
                f"{longest}.",
                where=request.id,
                fix="Name the model that was served, or leave the request out.",
            )
        if max(*request.prompt_ids, *request.answer_ids) >= vocab_size:
            raise InvalidSetup.because(
                "unknown-token",
                f"Request {request.id} has token ids that the target does not: its vocabulary has 0..{vocab_size - 1}.",
                where=request.id,
                fix="Pass the model that wrote the log as --target.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedStep:
    """One decode step of one request."""

    token: int
    """Tokens of the answer that are confirmed when it begins."""
    drafted: tuple[int, ...]
    accepted: int
    """Accepted ones of the drafted; behind the end of the answer too."""


@dataclass(frozen=True, slots=True)
class ForcedReplayer:
    """Replays requests at the engine's own k, or a smaller one.

    Args:
        engine: with a speculative config; nobody else uses it meanwhile.
        ks: the k to replay, one walk each.
    """

    engine: Engine
    ks: Sequence[int]
    remembers = False

    def replay(self, requests: Sequence[Transcript]) -> Iterator[ReplayedRequest]:
        """Yield each request when it is replayed at every k; as many are decoded together as the engine takes.

        Raises:
            InvalidSetup: a request is longer than the engine takes, or has ids that the target does not.
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
        engine: with a speculative config, and no requests.
        requests: to be decoded together.
        k: draft tokens a step at most.
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
