"""Acceptance counters: the same object from the engine, /metrics, a replay or a forecast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecStats:
    """Counts of verified drafts; `a + b` pools them, `after - before` is a window.

    vLLM's rates per position are shares of all drafts, which may be shorter than k. `drafted_per_pos` counts the
    drafts that reached each position; empty if the source does not report it, as with vLLM's /metrics.
    """

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_pos: tuple[int, ...] = ()
    drafted_per_pos: tuple[int, ...] = ()

    def __add__(self, other: SpecStats) -> SpecStats:
        return self._combine(other, 1)

    def __sub__(self, other: SpecStats) -> SpecStats:
        return self._combine(other, -1)

    def _combine(self, other: SpecStats, sign: int) -> SpecStats:
        def per_pos(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
            return tuple(x + sign * y for x, y in zip_longest(a, b, fillvalue=0))

        return SpecStats(
            num_drafts=self.num_drafts + sign * other.num_drafts,
            num_draft_tokens=self.num_draft_tokens + sign * other.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens + sign * other.num_accepted_tokens,
            accepted_per_pos=per_pos(self.accepted_per_pos, other.accepted_per_pos),
            drafted_per_pos=per_pos(self.drafted_per_pos, other.drafted_per_pos),
        )

    @property
    def acceptance_length(self) -> float | None:
        """Mean tokens emitted per verified draft: 1 + accepted / drafts. None without drafts."""
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted tokens. None without drafted tokens."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def rate_per_pos(self) -> tuple[float, ...]:
        """Share of all drafts whose token at position i was accepted (vLLM's definition: unconditional)."""
        return tuple(n / self.num_drafts for n in self.accepted_per_pos) if self.num_drafts else ()

    @property
    def rate_per_reached_pos(self) -> tuple[float | None, ...]:
        """Share of accepted tokens at position i, of the drafts long enough to have it."""
        pairs = zip(self.accepted_per_pos, self.drafted_per_pos, strict=False)
        return tuple(a / d if d else None for a, d in pairs)
