"""From the estimates of a cell to the numbers of its comparison, still without a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite

from draftwise.core import Comparison, Verdict
from draftwise.decide.comparison.cell import ALL
from draftwise.decide.comparison.differences import OutputDifference
from draftwise.decide.comparison.estimates import Estimates
from draftwise.decide.comparison.goodput import estimate_goodput
from draftwise.decide.comparison.tails import estimate_percentiles, find_tail_ratio
from draftwise.decide.thresholds import Thresholds
from draftwise.statistics import adjust_family, detectable_ratio, prompts_needed

__all__ = ["Unjudged", "compare_cell", "correct_for_number"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unjudged:
    """A comparison without its verdict, and what its numbers were made of."""

    comparison: Comparison
    estimates: Estimates
    differences: Sequence[OutputDifference] | None
    """None where outputs are not compared."""
    family: int = 1
    """Comparisons of the run that it is one of."""


def compare_cell(
    estimates: Estimates, differences: Sequence[OutputDifference] | None, thresholds: Thresholds
) -> Unjudged:
    """Return the numbers of a comparison.

    All intervals hold at whichever interim analysis the run stopped; p-values are corrected for these analyses.
    """
    cell, ratios, margin = estimates.cell, estimates.ratios, thresholds.margin
    detectable = detectable_ratio(ratios.deciding, margin=margin, alpha=estimates.level)
    goodput, change = estimate_goodput(ratios.paired, ratios.design, thresholds, 1 - estimates.level)
    num_units = len(estimates.whole.units)
    comparison = Comparison(
        workload=cell.workload,
        candidate=cell.candidate,
        condition=cell.condition,
        num_prompts=len(cell.units),
        repetitions=cell.repetitions,
        speedup=estimates.interval(ratios.speedup),
        total=estimates.interval(ratios.total),
        ttft=estimates.find_interval(ratios.ttft),
        tpot=estimates.find_interval(ratios.tpot),
        tail=find_tail_ratio(ratios.paired),
        share_slower=ratios.speedup.share_below(1 - margin),
        counters=cell.sum_counters(cell.candidate),
        equal_outputs=None if differences is None else (num_units - len(differences), num_units),
        warm_speedup=estimates.warm_speedup,
        verdict=Verdict.INCONCLUSIVE,
        reason="",
        throughput=estimates.find_interval(ratios.throughput),
        percentiles=estimate_percentiles(ratios.paired, ratios.design, 1 - estimates.level),
        goodput=goodput,
        goodput_change=change,
        p_value=estimates.analyses.adjust(ratios.deciding.p_value(), estimates.done),
        detectable=detectable if isfinite(detectable) else None,
        # Where nothing varies everything is settled.
        prompts_needed=(
            prompts_needed(ratios.deciding, margin=margin, alpha=estimates.level)
            if ratios.deciding.spread.variance
            else None
        ),
    )
    return Unjudged(comparison=comparison, estimates=estimates, differences=differences)


def correct_for_number(found: Sequence[Unjudged]) -> list[Unjudged]:
    """Return the comparisons with p-values corrected for the others of the run.

    Pooled rows are a family of their own: they repeat what the others say, and would only make them weaker.
    """
    corrected = list(found)
    for pooled in (False, True):
        places = [place for place, each in enumerate(found) if (each.comparison.workload == ALL) is pooled]
        adjusted = adjust_family([found[place].comparison.p_value for place in places])
        for place, p in zip(places, adjusted, strict=True):
            comparison = replace(found[place].comparison, adjusted_p=p)
            corrected[place] = replace(found[place], comparison=comparison, family=len(places))
    return corrected
