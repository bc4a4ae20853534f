"""Replays methods that draft from text alone, with the same indexes as in serving."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from draftwise.knowledge.messages import refusal
from draftwise.lookup.ngram_index import NgramIndex
from draftwise.replaying.transcripts import DraftRows, ReplayedRequest, Transcript, count_accepted

if TYPE_CHECKING:
    from draftwise.lookup.suffix_cache import SuffixCache


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
