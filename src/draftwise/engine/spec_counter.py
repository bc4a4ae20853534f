"""Counts verified drafts while the engine runs."""

from __future__ import annotations

from draftwise.core import SpecStats

__all__ = ["SpecCounter"]


class SpecCounter:
    """Mutable twin of `SpecStats`: one cheap addition a draft."""

    def __init__(self) -> None:
        self._num_drafts = 0
        self._drafted_per_pos: list[int] = []
        self._accepted_per_pos: list[int] = []

    def add(self, *, drafted: int, accepted: int, refused: bool = False) -> None:
        """Count one draft; drafts of length 0 do not count, unless a grammar refused all their tokens (as in vLLM)."""
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
