"""What a measurement concludes: one comparison per workload and candidate, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain

from draftwise.core.finding import Finding, Severity
from draftwise.core.load import Condition
from draftwise.core.run import Counters

__all__ = ["Band", "Comparison", "Crossover", "Decision", "Interval", "Verdict"]

_UNKNOWN = 100.0
"""Ratio from which the upper end of an interval is no knowledge: too few readings for more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A ratio with its confidence interval."""

    value: float
    low: float
    high: float

    @property
    def span(self) -> str:
        """Both ends, e.g. `1.81-2.03`; an upper one that says no more than that it is not known is `?`."""
        return f"{self.low:.2f}-{'?' if self.high >= _UNKNOWN else f'{self.high:.2f}'}"


class Verdict(StrEnum):
    """What a comparison says about one candidate on one workload under one condition."""

    ADOPT = "adopt"
    REJECT = "reject"
    MIXED = "mixed"
    """Better on the whole, worse for the slowest requests or for the first token: P50 better, P99 worse."""
    INCONCLUSIVE = "inconclusive"
    BLOCKED = "blocked"
    """Faster, but a guard found that the gain is not what it seems."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One candidate against plain decoding on one workload under one condition; all ratios are candidate over plain."""

    workload: str
    candidate: str
    condition: Condition = field(default_factory=Condition)
    num_prompts: int
    passes: tuple[int, ...]
    """The passes over the workload that the numbers rest on."""
    speedup: Interval
    """Output tokens per second of a request: geometric mean over prompts of the ratio in a typical pass, formed within
    each pair of turns (`measure.statistics.prompt_ratio`)."""
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
    settled: bool = False
    """Whether more passes would not change the verdict, going by the sequential rule of `measure.statistics`."""
    throughput: Interval | None = None
    """Output tokens per second of the whole server while the load was full; None where one request is in flight."""
    percentiles: Mapping[str, Mapping[int, Interval]] = field(default_factory=dict)
    """Ratios of percentiles over requests: by `ttft`, `tpot`, `itl`, `e2e`, then by percentile (50, 90, 95, 99)."""
    goodput: tuple[float, float] | None = None
    """Share of the requests within the SLO, plain and candidate; None without an SLO."""
    goodput_change: Interval | None = None
    """Candidate minus plain, as a share of the requests (no ratio)."""
    p_value: float | None = None
    """Two-sided, of no difference, after correction for looking repeatedly; None where it cannot be told."""
    adjusted_p: float | None = None
    """The same after correction for the number of comparisons in the run (Holm)."""
    detectable: float | None = None
    """Smallest speed-up (as a ratio over 1) that this many readings would have found with 80 % power."""
    prompts_needed: int | None = None
    """Prompts that would settle an inconclusive comparison with 80 % power, going by the spread seen."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Workload, label of the condition and candidate."""
        return self.workload, self.condition.label, self.candidate

    @property
    def conversion(self) -> float | None:
        """Realised speed-up over mean acceptance length: 1 would be drafting and verifying for free."""
        length = self.counters.spec.acceptance_length
        return self.speedup.value / length if length else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """Where a candidate stops paying as load grows, on one workload at one temperature."""

    workload: str
    candidate: str
    temperature: float
    axis: str
    """`concurrency` or `rate`."""
    value: float | None
    """Estimated load at which the speed-up is 1; None where it lies outside what was measured."""
    low: float
    """Lower end of its interval; the smallest load measured where even that does not pay."""
    high: float
    """Upper end; infinity where the largest load measured still pays."""
    adopt_below: float | None
    """Largest measured load up to which every verdict is adopt; None where the smallest is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A stretch of load over which one setting is the best, on one workload at one temperature."""

    workload: str
    temperature: float
    axis: str
    """`concurrency` or `rate`."""
    above: float
    up_to: float
    """Loads in (above, up_to]; infinity at the end."""
    setting: str
    """Name of a candidate, or of the plain arm."""


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
    crossovers: tuple[Crossover, ...] = ()
    """One per workload, candidate and temperature of a sweep over load."""
    bands: tuple[Band, ...] = ()
    """Which setting to run at which load."""
    schedules: tuple[str, ...] = ()
    """Speculative configs as one-line JSON whose schedule by batch size does what the bands say."""
    scope: tuple[str, ...] = ()
    """What the decision holds for, line by line."""
    unmeasured: tuple[str, ...] = ()
    """What was planned and not measured, in words: an interrupted run says so."""

    @property
    def is_evidence(self) -> bool:
        """Whether the run carries all the context that its numbers depend on."""
        return not self.missing_context

    @property
    def has_error(self) -> bool:
        """Whether a finding, on the run or on a comparison, is an error."""
        findings = chain(self.findings, *(each.findings for each in self.comparisons))
        return any(finding.severity is Severity.ERROR for finding in findings)
