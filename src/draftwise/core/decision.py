"""Holds a measurement's conclusion: the setup to run at each load, its grounds, and when to undo it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter

from draftwise.core.comparison import Comparison
from draftwise.core.documents import json_form
from draftwise.core.finding import Finding, Severity
from draftwise.core.load import Condition
from draftwise.core.rollback import Rollback
from draftwise.core.run import Omission
from draftwise.core.spec_config import SpecConfig


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
    """Largest measured load up to which every verdict is adopt; None if the smallest is not."""


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
    """The one setting that is best over all loads of a sweep; compare the bands, which change it with the load."""

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
    """What was measured there."""
    adopted: tuple[Comparison, ...]
    """Those to act on: on each workload the candidate that is set there."""
    bands: tuple[Band, ...] = ()
    crossovers: tuple[Crossover, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A speculative config that lowers k, or stops drafting, by itself as the running batch grows."""

    workload: str
    temperature: float
    spec: SpecConfig = field(metadata=json_form(key="speculative_config"))
    remarks: tuple[str, ...]
    """What its server's version makes of it; never empty, for the schedule itself was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The traffic, load, model, hardware and versions that a decision holds for: those measured, and no others."""

    workloads: Mapping[str, int]
    """Number of prompts by name."""
    drawn: Mapping[str, str] = field(default_factory=dict)
    """How many of how many were asked and how these were chosen, in words, by name."""
    repeats: Mapping[str, int] = field(default_factory=dict)
    """How many of them repeat an earlier one, where some do: that repetition is part of the traffic."""
    conditions: tuple[Condition, ...] = field(
        metadata=json_form(wire=tuple[str, ...], to_wire=lambda conditions: tuple(each.label for each in conditions))
    )
    model: str = ""
    dtype: str = ""
    hardware: tuple[str, ...] = ()
    """GPUs, else the processor, or what the operator said; empty where it is not known."""
    servers: tuple[str, ...] = ()
    """Engine and version, each once."""
    uncompared: tuple[str, ...] = ()
    """Candidates whose outputs were not compared with the baseline's."""
    unproven: tuple[str, ...] = ()
    """Candidates of which no counter proves that they speculated."""

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
    """Whole ones that candidate and baseline both finished."""
    planned: int
    odd_blocks: int = 0
    """Paired blocks of repetitions that are not whole."""
    blocks_each: int = 1
    """Paired blocks of a whole repetition."""
    needed: int | None = None
    """Prompts of its own with which it would have been planned: it could remember answers, and is asked no prompt
    twice. None where it was planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do, on which evidence, and when to undo it; `draftwise.reporting.sentences` says it in words."""

    baseline: str
    """Name of the arm that candidates are compared with."""
    comparisons: tuple[Comparison, ...]
    recommendations: tuple[Recommendation, ...]
    """One per condition outside of any sweep, and one per sweep; empty where nothing was measured on both sides."""
    findings: tuple[Finding, ...]
    """Findings about the run as a whole."""
    missing_context: tuple[str, ...]
    """Names of what a reader would need to trust the numbers and the run does not carry."""
    scope: Scope
    rollback: tuple[Rollback, ...] = ()
    crossovers: tuple[Crossover, ...] = ()
    """One per workload, candidate and temperature of a sweep over load."""
    bands: tuple[Band, ...] = ()
    """Which setting to run at which load."""
    single_settings: tuple[SingleSetting, ...] = ()
    """One per sweep with several bands."""
    schedules: tuple[Schedule, ...] = ()
    """The engine's own schedules by batch size that do what the bands say."""
    unmeasured: tuple[UnmeasuredCell, ...] = ()
    """What was planned and not measured: an interrupted run says so."""
    omissions: tuple[Omission, ...] = ()
    """What of it was left out for lack of time, and on what evidence."""
    num_unfinished: int = 0
    """Answers of turns that were cut off: they are on disk and not used."""

    @property
    def is_evidence(self) -> bool:
        """Whether the run carries all the context that its numbers depend on."""
        return not self.missing_context

    @property
    def has_error(self) -> bool:
        """Whether a finding, on the run or on a comparison, is an error."""
        findings = chain(self.findings, *(each.findings for each in self.comparisons))
        return any(finding.severity is Severity.ERROR for finding in findings)
