"""Replays a draft model behind a server: scores the tokens of logged answers with its `prompt_logprobs`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import exp

from draftwise.knowledge.messages import refusal
from draftwise.replaying.transcripts import DraftRows, ReplayedRequest, Transcript

_AT_ONCE = 8
"""Number of concurrent requests to the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A model's score for a token, given the tokens before it."""

    logprob: float
    """Log-probability at temperature 1, over the whole vocabulary."""
    is_best: bool
    """Whether no token is more likely."""


ScoreTokens = Callable[[Sequence[int]], Sequence[Score]]
"""Returns a score for each token of a text except the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedReplayer:
    """Replays a draft model. A draft depends only on its request, and a shorter draft is a prefix of a longer one.

    Args:
        draft: scores tokens with the drafter's server.
        target: scores tokens with the target's server. None: drafts are deterministic, and text alone decides.

    Raises:
        InvalidSetup: drafts are sampled and a request's temperature is neither 0 nor 1: servers do not report other
            distributions.
    """

    k: int
    draft: ScoreTokens
    target: ScoreTokens | None = None
    remembers = False

    def replay(self, requests: Sequence[Transcript]) -> Iterator[ReplayedRequest]:
        """Yield the drafts at every token of each request."""
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
