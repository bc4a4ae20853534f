"""Replays of methods that draft from text alone, and of a draft model behind a server (`prompt_logprobs`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from math import exp
from typing import TYPE_CHECKING

import numpy as np

from draftwise.knowledge.messages import refusal
from draftwise.lookup.ngram_index import NgramIndex
from draftwise.replaying.transcripts import DraftRows, ReplayedRequest, Transcript, count_accepted

if TYPE_CHECKING:
    from draftwise.lookup.suffix_cache import SuffixCache

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


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramReplayer:
    """Replays prompt lookup. A draft depends only on its request, and a shorter draft is a prefix of a longer one.

    Args:
        k: maximum draft tokens.
        shortest: prompt_lookup_min.
        longest: prompt_lookup_max.
    """

    k: int
    shortest: int
    longest: int
    remembers = False

    def replay(self, requests: Sequence[Transcript]) -> Iterator[ReplayedRequest]:
        """Yield the drafts at every token of each request, in a few microseconds per token."""
        for request in requests:
            yield ReplayedRequest(id=request.id, by_k={self.k: self._replay(request)})

    def _replay(self, request: Transcript) -> DraftRows:
        index = NgramIndex(self.shortest, self.longest)
        index.extend(request.prompt_ids)
        answer = list(request.answer_ids)
        drafted, accepted = [0] * len(answer), [0] * len(answer)
        for at in range(1, len(answer)):
            index.extend(answer[at - 1 : at])
            draft = index.draft(self.k)
            if draft:
                drafted[at], accepted[at] = len(draft), count_accepted(draft, answer, at)
        return DraftRows(drafted=drafted, accepted=accepted)


@dataclass(slots=True)
class _Live:
    """A request that is being replayed."""

    slot: int
    request: Transcript
    drafted: list[int]
    accepted: list[int]
    begin: int = 0
    """Number of answer tokens in the trees."""
    end: int = 1
    """Number of confirmed answer tokens."""

    @property
    def new(self) -> tuple[int, ...]:
        """Tokens to add to the trees: the prompt with the first token, then each step's output."""
        prompt = self.request.prompt_ids if self.begin == 0 else ()
        return (*prompt, *self.request.answer_ids[self.begin : self.end])

    @property
    def is_done(self) -> bool:
        return self.end == len(self.request.answer_ids)

    def limit(self, k: int) -> int:
        """Maximum draft tokens of the next step."""
        return 0 if self.is_done else max(0, min(k, self.request.limit - self.end - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixReplayer:
    """Replays SuffixDecoding. A draft depends on all earlier requests and on k, so each k has separate trees.

    Args:
        ks: draft lengths to replay.
        options: options of `lookup.suffix_cache.SuffixCache`.
        in_flight: number of requests decoded together, in a closed loop.
        warm: earlier requests, which are in the trees at the start.

    Raises:
        InvalidSetup: numba is not installed.
    """

    ks: Sequence[int]
    options: dict[str, float]
    in_flight: int = 1
    warm: Sequence[Transcript] = ()
    remembers = True

    def __post_init__(self) -> None:
        try:
            from draftwise.lookup import suffix_cache as _  # noqa: F401 - to fail before anything is replayed
        except ModuleNotFoundError as error:
            raise refusal("suffix-needs-numba", name=error.name) from None

    def replay(self, requests: Sequence[Transcript]) -> Iterator[ReplayedRequest]:
        """Yield each request once it is replayed at every k."""
        runs = [self._replay(requests, k) for k in self.ks]
        finished: dict[str, dict[int, DraftRows]] = {}
        for ended in zip(*runs, strict=True):
            for k, (name, rows) in zip(self.ks, ended, strict=True):
                finished.setdefault(name, {})[k] = rows
                if len(finished[name]) == len(self.ks):
                    yield ReplayedRequest(id=name, by_k=finished.pop(name))

    def _replay(self, requests: Sequence[Transcript], k: int) -> Iterator[tuple[str, DraftRows]]:
        """Yield requests as they end, `in_flight` of them at a time: as a server that is never idle takes them."""
        from draftwise.lookup.suffix_cache import SuffixCache

        cache = SuffixCache(**self.options)  # type: ignore[arg-type]
        waiting = deque(enumerate((*self.warm, *requests)))
        live: list[_Live] = []
        while waiting or live:
            while waiting and len(live) < self.in_flight:
                slot, request = waiting.popleft()
                size = len(request.answer_ids)
                live.append(_Live(slot, request, [0] * size, [0] * size))
            _step(cache, live, k)
            for each in [each for each in live if each.begin == len(each.request.answer_ids)]:
                live.remove(each)
                cache.release(each.slot)
                if each.slot >= len(self.warm):
                    yield each.request.id, DraftRows(drafted=each.drafted, accepted=each.accepted)


def _step(cache: SuffixCache, live: Sequence[_Live], k: int) -> None:
    """Tell the trees what is new of each request, draft, and move each on by what stands."""
    new = [each.new for each in live]
    drafts_BK, sizes_B = cache.extend(
        [each.slot for each in live],
        [len(tokens) for tokens in new],
        np.fromiter(chain.from_iterable(new), np.int64),
        k,
        num_prompt=[len(each.request.prompt_ids) for each in live],
        limits=[each.limit(k) for each in live],
    )
    for each, draft, size in zip(live, drafts_BK.tolist(), sizes_B.tolist(), strict=True):
        each.begin = each.end
        if not each.is_done:
            accepted = count_accepted(draft[:size], each.request.answer_ids, each.end)
            each.drafted[each.end], each.accepted[each.end] = size, accepted
            each.end = min(each.end + accepted + 1, len(each.request.answer_ids))
