"""Holds a server's /metrics: counters, which only grow, and gauges; and the counters of acceptance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import zip_longest
from operator import add


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecStats:
    """Counts of verified drafts; `a + b` pools them, `after - before` is a window.

    vLLM's rates per position are shares of all drafts, which may be shorter than k. `drafted_per_pos` counts the
    drafts that reached each position; empty if the source does not report it, as with vLLM's /metrics. Counts by
    position are empty as well where one of those combined does not report them.
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
        def per_pos(*counts: tuple[int, Sequence[int]]) -> tuple[int, ...]:
            if any(total and not told for total, told in counts):
                return ()  # what one of them does not tell is not zero
            return tuple(x + sign * y for x, y in zip_longest(*(told for _, told in counts), fillvalue=0))

        return SpecStats(
            num_drafts=self.num_drafts + sign * other.num_drafts,
            num_draft_tokens=self.num_draft_tokens + sign * other.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens + sign * other.num_accepted_tokens,
            accepted_per_pos=per_pos(*((each.num_accepted_tokens, each.accepted_per_pos) for each in (self, other))),
            drafted_per_pos=per_pos(*((each.num_draft_tokens, each.drafted_per_pos) for each in (self, other))),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Values of a server's counters, or their growth over a turn; None if not reported."""

    spec: SpecStats = field(default_factory=SpecStats)
    generation_tokens: int | None = None
    prefix_queries: int | None = None
    prefix_hits: int | None = None

    @classmethod
    def total(cls, counters: Iterable[Counters]) -> Counters:
        """Return the summed growth over several turns; without turns, 0 for every counter."""
        return reduce(add, counters, cls(generation_tokens=0, prefix_queries=0, prefix_hits=0))

    def __sub__(self, before: Counters) -> Counters:
        return self._combine(before, -1)

    def __add__(self, other: Counters) -> Counters:
        return self._combine(other, 1)

    def _combine(self, other: Counters, sign: int) -> Counters:
        def each(a: int | None, b: int | None) -> int | None:
            return None if a is None or b is None else a + sign * b

        return Counters(
            spec=self.spec + other.spec if sign > 0 else self.spec - other.spec,
            generation_tokens=each(self.generation_tokens, other.generation_tokens),
            prefix_queries=each(self.prefix_queries, other.prefix_queries),
            prefix_hits=each(self.prefix_hits, other.prefix_hits),
        )

    @property
    def tokens_per_step(self) -> float | None:
        """Output tokens per decoding step of a sequence: generated / (generated - accepted).

        Every step emits one token more than it accepts, so this also counts steps without a draft, which
        `SpecStats.acceptance_length` leaves out.
        """
        if not self.generation_tokens or self.generation_tokens <= self.spec.num_accepted_tokens:
            return None
        return self.generation_tokens / (self.generation_tokens - self.spec.num_accepted_tokens)

    def find_tokens_per_decode_step(self, first_tokens: float) -> float | None:
        """Return tokens per decoding step without first tokens, which prefill emits without a draft."""
        if self.tokens_per_step is None or self.generation_tokens is None:
            return None
        tokens = self.generation_tokens - first_tokens
        steps = tokens - self.spec.num_accepted_tokens
        return tokens / steps if steps > 0 else None

    @property
    def coverage(self) -> float | None:
        """Drafts / (generated - accepted): the share of the steps that verified a draft.

        Capped at 1: at the ends of a window, drafts are counted some milliseconds apart from their tokens.
        """
        if self.tokens_per_step is None or self.generation_tokens is None:
            return None
        if (self.spec.num_accepted_tokens or self.spec.num_draft_tokens) and not self.spec.num_drafts:
            return None  # TGI, SGLang and the log of vLLM 0.8 tell what was accepted, and not of how many drafts
        return min(1.0, self.spec.num_drafts / (self.generation_tokens - self.spec.num_accepted_tokens))

    @property
    def prefix_hit_rate(self) -> float | None:
        """Share of prompt tokens found in the prefix cache, of those looked up."""
        return self.prefix_hits / self.prefix_queries if self.prefix_queries and self.prefix_hits is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLoad:
    """Gauges of a server's /metrics; None if not reported."""

    running: float | None = None
    """Requests being decoded."""
    waiting: float | None = None
    kv_usage: float | None = None
    """Share of the KV cache in use."""
    reported_length: float | None = None
    """Acceptance length of the last steps from the server's own gauge; it cannot be summed."""
    lengths: Mapping[str, float] = field(default_factory=dict)
    """The same of each busy data-parallel rank, where the server's counters do not tell its ranks apart."""
