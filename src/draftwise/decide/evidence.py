"""One pass over a run, from its answers to a verdict on every comparison: what decisions and early stopping rest on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from draftwise.core import Comparison, Finding, Run
from draftwise.decide.comparison.cell import ALL
from draftwise.decide.comparison.comparisons import Unjudged, compare_cell, correct_for_number
from draftwise.decide.comparison.differences import compare_outputs
from draftwise.decide.comparison.estimates import Estimates, SweepKey, estimate_cells, gather_load_points
from draftwise.decide.disturbance import set_aside_disturbed
from draftwise.decide.thresholds import Thresholds, get_thresholds
from draftwise.decide.validity import TextQuality, assess_text, check_comparison, check_run
from draftwise.decide.verdict import judge_cell
from draftwise.statistics import LoadPoint

__all__ = ["Evidence", "gather_evidence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A run, its numbers, and what they are worth."""

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

    @property
    def load_points(self) -> Mapping[SweepKey, list[LoadPoint]]:
        """The ratios that decide, as points on the axes of load."""
        return gather_load_points(self.estimates)


def gather_evidence(run: Run) -> Evidence:
    """Return the verdicts on a run and what they rest on: first the numbers, then whether they are valid."""
    run, thresholds = set_aside_disturbed(run), get_thresholds(run)
    estimates = estimate_cells(run, thresholds)
    found = correct_for_number([compare_cell(each, compare_outputs(run, each.whole), thresholds) for each in estimates])
    quality = tuple(assess_text(run))
    of_run = tuple(check_run(run, [each.whole for each in estimates], quality, thresholds))
    of_cells = [tuple(check_comparison(run, each, thresholds)) for each in found]
    comparisons = (
        # Findings of a pooled row count for its verdict, and are told once, with the rows that it pools.
        judge_cell(
            each,
            [*own, *_find_of_members(each, found, of_cells), *of_run],
            () if each.comparison.workload == ALL else own,
            thresholds,
        )
        for each, own in zip(found, of_cells, strict=True)
    )
    return Evidence(
        run=run,
        thresholds=thresholds,
        estimates=estimates,
        comparisons=tuple(comparisons),
        findings=of_run,
        quality=quality,
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
