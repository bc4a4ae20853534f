"""Everything that a run comes down to: numbers first, then whether they are valid, verdicts, and one decision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from draftwise.core import Comparison, Decision, Finding, Run
from draftwise.core.comparison import ALL
from draftwise.deciding.bands import divide_loads
from draftwise.deciding.comparison.acceptance import Acceptance, Conversion, pool_acceptance, trace_conversion
from draftwise.deciding.comparison.comparisons import Estimates, Unjudged, compare_cells
from draftwise.deciding.comparison.latency import Latencies, summarise_latencies
from draftwise.deciding.disturbance import find_lost_pairs, measure_use, set_aside_disturbed
from draftwise.deciding.recommendations import advise
from draftwise.deciding.scope import find_reach
from draftwise.deciding.thresholds import Thresholds, get_thresholds
from draftwise.deciding.validity.checks import check_validity
from draftwise.deciding.validity.texts import TextQuality
from draftwise.deciding.verdict import judge_cell

__all__ = ["Conclusions", "Evidence", "conclude_run", "gather_evidence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusions:
    """A run and what follows from it."""

    run: Run
    decision: Decision
    thresholds: Thresholds
    latencies: Sequence[Latencies]
    acceptances: Sequence[Acceptance]
    conversions: Sequence[Conversion]
    quality: Sequence[TextQuality]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A run, its numbers, and what they are worth: what decisions and early stopping rest on."""

    run: Run
    """With what counts: disturbed turns and their answers are set aside."""
    thresholds: Thresholds
    estimates: tuple[Estimates, ...]
    """Of every workload, condition and candidate, pooled rows last."""
    comparisons: tuple[Comparison, ...]
    """Of the same, with their verdicts."""
    findings: tuple[Finding, ...]
    """On the run as a whole; an error blocks every adoption."""
    quality: tuple[TextQuality, ...]
    """Of the baseline's outputs."""


def conclude_run(run: Run) -> Conclusions:
    """Return what follows from a run; the same answers always give the same conclusions."""
    evidence = gather_evidence(run)
    cells = [each.cell for each in evidence.estimates]
    latencies = summarise_latencies(evidence.run, cells, evidence.thresholds)
    return Conclusions(
        run=evidence.run,
        decision=_decide(evidence, latencies),
        thresholds=evidence.thresholds,
        latencies=latencies,
        acceptances=pool_acceptance(cells),
        conversions=trace_conversion(evidence.comparisons),
        quality=evidence.quality,
    )


def gather_evidence(run: Run) -> Evidence:
    """Return the verdicts on a run and what they rest on."""
    thresholds = get_thresholds(run)
    uses = measure_use((*run.turns, *run.set_aside))
    run = set_aside_disturbed(run, thresholds, uses)
    lost = find_lost_pairs(run)
    found = compare_cells(run, lost, thresholds)
    checked = check_validity(run, found, lost, uses, thresholds)
    comparisons = (
        # Findings of a pooled row count for its verdict, and are told once, with the rows that it pools.
        judge_cell(
            each,
            [*own, *_find_of_members(each, found, checked.of_cells), *checked.of_run],
            () if each.comparison.workload == ALL else own,
            thresholds,
        )
        for each, own in zip(found, checked.of_cells, strict=True)
    )
    return Evidence(
        run=run,
        thresholds=thresholds,
        estimates=tuple(each.estimates for each in found),
        comparisons=tuple(comparisons),
        findings=checked.of_run,
        quality=checked.quality,
    )


def _find_of_members(
    pooled: Unjudged, found: Sequence[Unjudged], findings: Sequence[Sequence[Finding]]
) -> Iterator[Finding]:
    """Yield what was found about the rows that a pooled row pools: what blocks a part blocks the whole."""
    place = (pooled.comparison.condition, pooled.comparison.candidate)
    if pooled.comparison.workload == ALL:
        for each, own in zip(found, findings, strict=True):
            member = each.comparison
            if member.workload != ALL and (member.condition, member.candidate) == place:
                yield from own


def _decide(evidence: Evidence, latencies: Sequence[Latencies]) -> Decision:
    """Return what to do, for which traffic, up to which load, and when to undo it."""
    run, comparisons, baseline = evidence.run, evidence.comparisons, evidence.run.plan.arms[0].name
    sweeps = divide_loads(run, evidence.estimates, comparisons, margin=evidence.thresholds.margin)
    advice = advise(comparisons, sweeps, latencies, baseline, evidence.thresholds)
    reach = find_reach(run, comparisons)
    return Decision(
        baseline=baseline,
        comparisons=comparisons,
        recommendations=advice.recommendations,
        findings=(*evidence.findings, *sweeps.findings, *reach.failures),
        missing_context=reach.missing_context,
        scope=reach.scope,
        rollback=advice.rollback,
        crossovers=sweeps.crossovers,
        bands=sweeps.bands,
        single_settings=sweeps.single_settings,
        schedules=sweeps.schedules,
        unmeasured=reach.unmeasured,
        omissions=run.omissions,
        num_unfinished=run.num_unfinished,
    )
