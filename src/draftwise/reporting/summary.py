"""A run's conclusions as one document for scripts, with all numbers of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, ClassVar, TypeVar

from draftwise.core import (
    Band,
    Comparison,
    Condition,
    Crossover,
    Finding,
    Interval,
    Load,
    Reason,
    Rollback,
    RunContext,
    Schedule,
    Scope,
    SingleSetting,
    SpecConfig,
    UnmeasuredCell,
)
from draftwise.core.documents import HIDDEN, json_form
from draftwise.core.grouping import copy_fields
from draftwise.deciding.comparison.latencies import Latencies
from draftwise.deciding.comparison.pooled_acceptance import DEFINITION, Conversion, PooledAcceptance
from draftwise.deciding.conclusions import Conclusions
from draftwise.deciding.thresholds import Thresholds
from draftwise.deciding.validity.output_checks import TextQuality
from draftwise.knowledge.signals import TOKENS_PER_STEP
from draftwise.reporting.conditions import describe_rollback, describe_scope, describe_unmeasured
from draftwise.reporting.predictions import (
    HeldEstimate,
    MeasuredForecast,
    UndisturbedTime,
    find_undisturbed,
    hold_estimates,
    hold_forecasts,
)
from draftwise.reporting.promql import write_expression
from draftwise.reporting.sentences import describe_decision, describe_reason

T = TypeVar("T")


_LABEL = json_form(wire=str, to_wire=attrgetter("label"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackRule(Rollback):
    """When to undo an adoption."""

    JSON_DERIVED: ClassVar[tuple[str, ...]] = ("temperature", "promql")
    condition: Condition = field(metadata=_LABEL)

    @property
    def temperature(self) -> float:
        """Temperature of the traffic that the rule is for."""
        return self.condition.temperature

    @property
    def promql(self) -> str:
        """Its condition over vLLM's metrics."""
        return write_expression(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Shares of the requests within the service level objective."""

    plain: float
    """The baseline's value."""
    candidate: float
    change: Interval | None
    """Candidate minus baseline, as a share of the requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow(Comparison):
    """One candidate on one workload (`all`: pooled) under one condition; ratios are candidate over baseline."""

    JSON_DERIVED: ClassVar[tuple[str, ...]] = (
        "load", "temperature", "reason_code", "decided_by", "deciding", "conversion", "goodput=promise_kept",
        "mean_acceptance_length", "acceptance_rate", "acceptance_per_position", "tokens_per_step",
        "prefix_cache_hit_rate",
    )  # fmt: skip
    condition: Condition = field(metadata=_LABEL)
    repetitions: tuple[int, ...] = field(metadata=json_form(key="passes"))
    """Repetitions of the workload behind the numbers."""
    reason: Reason | None = field(metadata=json_form(wire=str, to_wire=describe_reason))
    """Why it has its verdict, in words."""
    percentiles: Mapping[str, Mapping[int, Interval]] = field(
        metadata=json_form(
            wire=Mapping[str, Mapping[str, Interval]],
            to_wire=lambda rows: {
                name: {f"p{percentile}": ratio for percentile, ratio in ratios.items()} for name, ratios in rows.items()
            },
        )
    )
    """Ratios of percentiles over requests: by `ttft`, `tpot`, `itl`, `e2e`, then `p50` to `p99`."""
    goodput: tuple[float, float] | None = field(metadata=HIDDEN)
    goodput_change: Interval | None = field(metadata=HIDDEN)

    @property
    def load(self) -> Load:
        """How requests reached the servers."""
        return self.condition.load

    @property
    def temperature(self) -> float:
        """Temperature of sampling."""
        return self.condition.temperature

    @property
    def reason_code(self) -> str | None:
        """Name of the reason, stable across versions; null until the comparison is judged."""
        return None if self.reason is None else str(self.reason.code)

    @property
    def promise_kept(self) -> Goodput | None:
        """Requests within the service level objective; null without one."""
        if self.goodput is None:
            return None
        plain, candidate = self.goodput
        return Goodput(plain=plain, candidate=candidate, change=self.goodput_change)

    @property
    def mean_acceptance_length(self) -> float | None:
        """Mean tokens emitted per verified draft; null without drafts."""
        return self.counters.spec.acceptance_length

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted tokens; null without drafted tokens."""
        return self.counters.spec.acceptance_rate

    @property
    def acceptance_per_position(self) -> tuple[float, ...]:
        """Share of all drafts whose token at a position was accepted."""
        return self.counters.spec.rate_per_pos

    @property
    def tokens_per_step(self) -> float | None:
        """Output tokens per decoding step of a sequence."""
        return self.counters.tokens_per_step

    @property
    def prefix_cache_hit_rate(self) -> float | None:
        """Share of prompt tokens found in the prefix cache, of those looked up."""
        return self.counters.prefix_hit_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryArm:
    """One side of the comparison."""

    name: str
    speculative_config: SpecConfig | None
    """Null for the baseline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryWorkload:
    """A workload of the run."""

    name: str
    source: str
    prompts: int
    sha256: str
    """Hash of what is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledCondition(Condition):
    """A condition with its label."""

    JSON_DERIVED: ClassVar[tuple[str, ...]] = ("label",)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestParameters:
    """Parameters that all requests of the run share."""

    conditions: tuple[LabelledCondition, ...]
    seed: int
    repeats: int
    """Repetitions of the workloads."""
    warmup: int
    """Discarded requests per arm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The conclusions of a run, and their evidence.

    Names are stable: releases add names, but never change their meaning. A ratio is `{value, low, high}`, candidate
    over baseline, with its 95 % interval. A name ends with its unit of time. Unbounded or unknown values are null.
    """

    evidence: bool
    """Whether the run has all context that the numbers depend on."""
    missing_context: tuple[str, ...]
    """Context that a reader needs to trust the numbers, and that the run lacks."""
    decision: str
    """The decision in words."""
    rollback: tuple[str, ...]
    """When to undo an adoption, in words."""
    rollback_rules: tuple[RollbackRule, ...]
    scope: tuple[str, ...]
    """What was measured, in words; for anything else, the decision is a guess."""
    scope_values: Scope
    unmeasured: tuple[str, ...]
    """What was planned but not measured, in words."""
    unmeasured_cells: tuple[UnmeasuredCell, ...]
    comparisons: tuple[ComparisonRow, ...]
    """One per workload (`all`: pooled), condition and candidate."""
    crossovers: tuple[Crossover, ...]
    """Where a candidate stops paying."""
    bands: tuple[Band, ...]
    """What to run at which load."""
    single_settings: tuple[SingleSetting, ...]
    """The best single setting for all loads, with its gain and that of the bands at each load."""
    schedules: tuple[Schedule, ...]
    """The bands as the engine's own schedule by batch size, with remarks."""
    forecasts: tuple[MeasuredForecast, ...]
    """Speed-ups forecast before the run, next to the measured ones."""
    estimates: tuple[HeldEstimate, ...]
    """Expected and actual times of turns."""
    undisturbed: UndisturbedTime | None
    """Likewise for the turns that count; null if no expected time is known."""
    latencies: tuple[Latencies, ...]
    """Latencies of every arm."""
    acceptance: tuple[PooledAcceptance, ...]
    """Tokens per step of individual requests."""
    conversions: tuple[Conversion, ...]
    """Steps from acceptance length to realized speed-up."""
    text_quality: tuple[TextQuality, ...]
    """Repetition in the baseline's outputs."""
    findings: tuple[Finding, ...]
    """Findings about the run as a whole."""
    arms: tuple[SummaryArm, ...]
    workloads: tuple[SummaryWorkload, ...]
    request_parameters: RequestParameters
    num_requests: int
    thresholds: Thresholds
    context: RunContext
    definitions: Mapping[str, str]
    """What the names of measures mean."""


def summarise(found: Conclusions) -> Summary:
    """Return the summary of a run."""
    run, decision, plan = found.run, found.decision, found.run.plan
    return Summary(
        evidence=decision.is_evidence,
        missing_context=decision.missing_context,
        decision=describe_decision(decision),
        rollback=tuple(describe_rollback(decision)),
        rollback_rules=_copy_all(RollbackRule, decision.rollback),
        scope=tuple(describe_scope(decision.scope)),
        scope_values=decision.scope,
        unmeasured=tuple(describe_unmeasured(decision)),
        unmeasured_cells=decision.unmeasured,
        comparisons=_copy_all(ComparisonRow, decision.comparisons),
        crossovers=decision.crossovers,
        bands=decision.bands,
        single_settings=decision.single_settings,
        schedules=decision.schedules,
        forecasts=tuple(hold_forecasts(run.expected, decision.comparisons)),
        estimates=tuple(hold_estimates(run.estimates)),
        undisturbed=find_undisturbed(run),
        latencies=tuple(found.latencies),
        acceptance=tuple(found.acceptances),
        conversions=tuple(found.conversions),
        text_quality=tuple(found.quality),
        findings=decision.findings,
        arms=tuple(SummaryArm(name=arm.name, speculative_config=arm.spec) for arm in plan.arms),
        workloads=tuple(
            SummaryWorkload(name=each.name, source=each.source, prompts=len(each.prompts), sha256=each.sha256)
            for each in plan.workloads
        ),
        request_parameters=RequestParameters(
            conditions=_copy_all(LabelledCondition, run.conditions),
            seed=plan.seed,
            repeats=plan.repeats,
            warmup=plan.warmup,
        ),
        num_requests=len(run.answers),
        thresholds=found.thresholds,
        context=run.context,
        definitions={"tokens_per_step": TOKENS_PER_STEP.definition, "conversion": DEFINITION},
    )


def _copy_all(kind: type[T], values: Sequence[Any]) -> tuple[T, ...]:
    return tuple(copy_fields(kind, each) for each in values)
