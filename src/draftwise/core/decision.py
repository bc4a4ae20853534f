"""What a measurement concludes: one comparison per workload and candidate, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from draftwise.core.finding import Finding
from draftwise.core.run import Counters

__all__ = ["Comparison", "Decision", "Interval", "Verdict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A ratio with its confidence interval."""

    value: float
    low: float
    high: float


class Verdict(StrEnum):
    """What a comparison says about one candidate on one workload."""

    ADOPT = "adopt"
    REJECT = "reject"
    MIXED = "mixed"
    """Better on the whole, worse for the slowest prompts or for the first token."""
    INCONCLUSIVE = "inconclusive"
    BLOCKED = "blocked"
    """Faster, but a guard found that the gain is not what it seems."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One candidate against plain decoding on one workload; all ratios are candidate over plain."""

    workload: str
    candidate: str
    num_prompts: int
    passes: tuple[int, ...]
    """The passes over the workload that the numbers rest on."""
    speedup: Interval
    """Output tokens per second of a request: geometric mean over prompts of the ratio of medians over passes."""
    total: Interval
    """All output tokens over all request seconds: what an operator pays for the whole workload."""
    ttft: Interval | None
    """Time to first token (below 1 is better)."""
    tpot: Interval | None
    """Time per output token after the first (below 1 is better)."""
    tail: float | None
    """P99 over prompts of the seconds per output token (below 1 is better)."""
    share_slower: float
    """Share of the prompts that became slower by more than the margin."""
    counters: Counters
    equal_outputs: tuple[int, int] | None
    """Prompts with the plain output token for token, of how many; None above temperature 0."""
    warm_speedup: float | None
    """Speed-up of the later passes alone, given when the server remembers the first one."""
    verdict: Verdict
    reason: str
    findings: tuple[Finding, ...] = ()

    @property
    def conversion(self) -> float | None:
        """Realised speed-up over mean acceptance length: 1 would be drafting and verifying for free."""
        length = self.counters.spec.acceptance_length
        return self.speedup.value / length if length else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do, on which evidence, and when to undo it."""

    sentence: str
    rollback: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    findings: tuple[Finding, ...]
    """Findings about the run as a whole."""
    missing_context: tuple[str, ...]
    """What a reader would need to trust the numbers and the run does not carry."""

    @property
    def is_evidence(self) -> bool:
        """Whether the run carries all the context that its numbers depend on."""
        return not self.missing_context
