"""A measurement's conclusion: the setup to run at each load, its evidence, and when to undo it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter

from draftwise.core.comparison import Comparison
from draftwise.core.documents import json_form
from draftwise.core.finding import Finding, Severity
from draftwise.core.load import Condition
from draftwise.core.rollback_rule import Rollback
from draftwise.core.run import Omission
from draftwise.core.setup import SpecConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """Where a candidate stops paying as load grows, on one workload at one temperature."""

    workload: str
    candidate: str
    temperature: float
    axis: str
    """`concurrency` or `rate`."""
    value: float | None
    """Estimated load at which the speed-up is 1; None if it lies outside the measured loads."""
    low: float
    """Lower end of its interval; the smallest measured load if even that does not pay."""
    high: float
    """Upper end; infinity if the largest measured load still pays."""
    adopt_below: float | None
    """Largest measured load up to which every verdict is adopt; None if the smallest is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A range of loads over which one setting is best, on one workload at one temperature."""

    workload: str
    temperature: float
    axis: str
    """`concurrency` or `rate`."""
    above: float
    up_to: float
    """Covers the loads in (above, up_to]; infinity for the last band."""
    setting: str
    """Name of a candidate, or of the baseline arm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadGain:
    """Ratios to the baseline at one load."""

    load: float
    gain: float
    """Speed-up of the single setting."""
    of_bands: float
    """Speed-up of the band's setting at the same load."""

    @classmethod
    def list_all(cls, gains: Mapping[float, tuple[float, float]]) -> tuple[LoadGain, ...]:
        """Return the gains of a single setting."""
        return tuple(cls(load=load, gain=gain, of_bands=best) for load, (gain, best) in gains.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleSetting:
    """The best single setting over all loads of a sweep; bands change the setting with the load."""

    workload: str
    temperature: float
    axis: str
    """`concurrency` or `rate`."""
    setting: str
    """Name of a candidate, or of the baseline arm."""
    gains: Mapping[float, tuple[float, float]] = field(
        metadata=json_form(wire=tuple[LoadGain, ...], to_wire=LoadGain.list_all)
    )
    """Speed-ups of this setting and of the band's setting, by measured load, lightest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """What to run under one condition, or over one sweep of load at one temperature: workload by workload."""

    condition: Condition | None
    """None for a sweep, whose loads are those of `bands`."""
    comparisons: tuple[Comparison, ...]
    """All measured comparisons."""
    adopted: tuple[Comparison, ...]
    """Comparisons to act on: the candidate to set on each workload."""
    bands: tuple[Band, ...] = ()
    crossovers: tuple[Crossover, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A speculative config that lowers k, or stops drafting, as the running batch grows."""

    workload: str
    temperature: float
    spec: SpecConfig = field(metadata=json_form(key="speculative_config"))
    remarks: tuple[str, ...]
    """How the server's version treats it; never empty, because the schedule itself was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The traffic, load, model, hardware and versions that a decision holds for: only those measured."""

    workloads: Mapping[str, int]
    """Number of prompts by name."""
    drawn: Mapping[str, str] = field(default_factory=dict)
    """How many prompts of how many were sent, and how they were chosen, in words, by name."""
    repeats: Mapping[str, int] = field(default_factory=dict)
    """Prompts that repeat an earlier one, by name: that repetition is part of the traffic."""
    conditions: tuple[Condition, ...] = field(
        metadata=json_form(wire=tuple[str, ...], to_wire=lambda conditions: tuple(each.label for each in conditions))
    )
    model: str = ""
    dtype: str = ""
    hardware: tuple[str, ...] = ()
    """GPUs, else the processor, or the operator's note; empty if unknown."""
    servers: tuple[str, ...] = ()
    """Engine and version, each once."""
    uncompared: tuple[str, ...] = ()
    """Candidates whose outputs were not compared with the baseline's."""
    unproven: tuple[str, ...] = ()
    """Candidates for which no counter proves speculation."""

    @property
    def temperatures(self) -> tuple[float, ...]:
        """Ascending."""
        return tuple(sorted({each.temperature for each in self.conditions}))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmeasuredCell:
    """A candidate on a workload under a condition with fewer repetitions than were planned."""

    candidate: str
    workload: str
    condition: Condition = field(metadata=json_form(wire=str, to_wire=attrgetter("label")))
    repetitions: int
    """Complete repetitions that candidate and baseline both finished."""
    planned: int
    odd_blocks: int = 0
    """Paired blocks of incomplete repetitions."""
    blocks_each: int = 1
    """Paired blocks per complete repetition."""
    needed: int | None = None
    """Number of its own prompts that it needs to be planned, because it may remember answers and gets no prompt twice.
    None if it was planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do, on which evidence, and when to undo it; `draftwise.reporting.sentences` says it in words."""

    baseline: str
    """Name of the arm that candidates are compared with."""
    comparisons: tuple[Comparison, ...]
    recommendations: tuple[Recommendation, ...]
    """One per condition outside any sweep, and one per sweep; empty if nothing was measured on both sides."""
    findings: tuple[Finding, ...]
    """Findings about the run as a whole."""
    missing_context: tuple[str, ...]
    """Names of context that a reader needs to trust the numbers, and that the run lacks."""
    scope: Scope
    rollback: tuple[Rollback, ...] = ()
    crossovers: tuple[Crossover, ...] = ()
    """One per workload, candidate and temperature of a sweep over load."""
    bands: tuple[Band, ...] = ()
    """Which setting to run at which load."""
    single_settings: tuple[SingleSetting, ...] = ()
    """One per sweep with several bands."""
    schedules: tuple[Schedule, ...] = ()
    """The engine's own schedules by batch size that follow the bands."""
    unmeasured: tuple[UnmeasuredCell, ...] = ()
    """Cells that were planned but not measured, as after an interruption."""
    omissions: tuple[Omission, ...] = ()
    """What was left out for lack of time, and on what evidence."""
    num_unfinished: int = 0
    """Answers of turns that were cut off: on disk, but not used."""

    @property
    def is_evidence(self) -> bool:
        """Whether the run carries all the context that its numbers depend on."""
        return not self.missing_context

    @property
    def has_error(self) -> bool:
        """Whether a finding, on the run or on a comparison, is an error."""
        findings = chain(self.findings, *(each.findings for each in self.comparisons))
        return any(finding.severity is Severity.ERROR for finding in findings)
