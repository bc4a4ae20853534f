"""Replays a draft model behind a server: scores the tokens of logged answers by its `prompt_logprobs`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import exp

from draftwise.knowledge.messages import refusal
from draftwise.replaying.transcripts import DraftRows, ReplayedRequest, Transcript

_AT_ONCE = 8
"""Requests that the server is sent together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What a model says of a token behind those before it."""

    logprob: float
    """Log-probability at temperature 1, over the whole vocabulary."""
    is_best: bool
    """Whether no token is more likely."""


ScoreTokens = Callable[[Sequence[int]], Sequence[Score]]
"""Returns a score for each token of a text but the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedReplayer:
    """A draft model's drafts: those of one request, a shorter one being the beginning of a longer one.

    Args:
        draft: asks the drafter's server.
        target: asks the target's server; None where drafts are not sampled, and text alone decides.

    Raises:
        InvalidSetup: drafts are sampled and a request has a temperature other than 0 and 1, at which servers do not
            say what they draw from.
    """

    k: int
    draft: ScoreTokens
    target: ScoreTokens | None = None
    remembers = False

    def replay(self, requests: Sequence[Transcript]) -> Iterator[ReplayedRequest]:
        """Yield the drafts behind every token of each request."""
        if self.target is not None and (hot := [each for each in requests if each.temperature not in (0, 1)]):
            raise refusal("temperature-not-served", id=hot[0].id, temperature=hot[0].temperature)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            yield from pool.map(self._replay, requests)

    def _replay(self, request: Transcript) -> ReplayedRequest:
        text = [*request.prompt_ids, *request.answer_ids]
        size = len(request.answer_ids)
        drawn = self.target is not None and request.temperature > 0
        drafter = self.draft(text)[-size:]
        if self.target is None:
            rows = DraftRows(drafted=[self.k] * size, accepted=_count_runs([each.is_best for each in drafter], self.k))
        elif not drawn:
            chances = [float(each.is_best) for each in drafter]
            rows = DraftRows(drafted=[self.k] * size, chances=_shift(chances, self.k))
        else:
            target = self.target(text)[-size:]
            chances = [min(1.0, exp(q.logprob - p.logprob)) for q, p in zip(drafter, target, strict=True)]
            rows = DraftRows(drafted=[self.k] * size, chances=_shift(chances, self.k))
        return ReplayedRequest(id=request.id, by_k={self.k: rows})


def _count_runs(hits: Sequence[bool], k: int) -> list[int]:
    """Return how many hits in a row begin at each place, k at most."""
    runs = [0] * (len(hits) + 1)
    for place in range(len(hits) - 1, -1, -1):
        runs[place] = runs[place + 1] + 1 if hits[place] else 0
    return [min(k, run) for run in runs[:-1]]


def _shift(chances: Sequence[float], k: int) -> list[list[float]]:
    """Return the chances of the k tokens from each place on; 0 behind the answer."""
    padded = [*chances, *[0.0] * k]
    return [padded[place : place + k] for place in range(len(chances))]
