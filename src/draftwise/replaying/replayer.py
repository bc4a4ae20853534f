"""What every way of replaying a candidate offers: the drafts behind the tokens of each request, one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from draftwise.replaying.transcripts import Transcript

__all__ = ["DraftRows", "ReplayedRequest", "Replayer", "count_accepted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRows:
    """The drafts behind the n tokens of one answer, see `anchors.Drafts`."""

    drafted: Sequence[int]
    accepted: Sequence[int] | None = None
    chances: Sequence[Sequence[float]] | None = None
    confidence: Sequence[Sequence[float]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedRequest:
    """One request, replayed."""

    id: str
    by_k: Mapping[int, DraftRows]
    """As in `Anchors.drafts`."""


class Replayer(Protocol):
    """Drafts of one candidate behind the tokens of logged answers."""

    remembers: bool
    """Whether a draft depends on earlier requests, so that a replay that was cut off starts over."""

    def replay(self, requests: Sequence[Transcript]) -> Iterator[ReplayedRequest]:
        """Yield each request once, as soon as it is replayed."""
        ...


def count_accepted(draft: Sequence[int], answer: Sequence[int], at: int) -> int:
    """Return how many tokens of a draft that begins with token `at` of an answer are the answer's."""
    size = min(len(draft), len(answer) - at)
    if list(draft[:size]) == list(answer[at : at + size]):
        return size
    return next(place for place in range(size) if draft[place] != answer[at + place])
