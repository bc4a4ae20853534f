"""When to undo an adoption: the numbers at which its gain is gone, to watch in production."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isinf

from draftwise.core import Band, Comparison, Relation, Rollback, RollbackBasis
from draftwise.decide.comparison.latency import QUANTILES, Latencies
from draftwise.decide.thresholds import Thresholds
from draftwise.facts.signals import LOAD_SIGNALS, OUTPUT_TOKENS_PER_S, TOKENS_PER_STEP, TTFT_P99_S

__all__ = ["find_rollbacks"]

_FOR_S = 3600.0
"""Long enough that a burst or a change in the mix of prompts does not undo an adoption."""


def find_rollbacks(
    adopted: Sequence[Comparison],
    bands: Sequence[Band],
    latencies: Sequence[Latencies],
    baseline: str,
    thresholds: Thresholds,
) -> Iterator[Rollback]:
    """Yield the rules of every adopted workload and candidate: the first one that holds undoes the adoption.

    Tokens per step: the cost of a step depends on batch and k, hardly on what is accepted, so speed-up moves with
    tokens per step, and is gone where they have fallen by as much. Of several loads the heaviest counts: there a step
    costs most.

    Args:
        adopted: comparisons that are acted on, any number per workload and candidate.
        bands: where each setting ends.
        latencies: for what the baseline reached.
    """
    groups: dict[tuple[str, str], list[Comparison]] = {}
    for each in adopted:
        groups.setdefault((each.workload, each.candidate), []).append(each)
    for group in groups.values():
        heaviest = max(group, key=lambda each: (each.condition.place or ("", 0.0))[1])
        place = (heaviest.workload, heaviest.condition.label, baseline)
        row = next((row for row in latencies if (row.workload, row.condition, row.arm) == place), None)
        yield from _watch_speed(heaviest, row, several=len(group) > 1)
        yield from _watch_load(heaviest, bands)
        yield from _watch_first_token(heaviest, row, thresholds)


def _watch_speed(heaviest: Comparison, baseline: Latencies | None, *, several: bool) -> Iterator[Rollback]:
    measured = heaviest.counters.tokens_per_step
    if measured is not None:
        yield Rollback(
            workload=heaviest.workload,
            arm=heaviest.candidate,
            metric=TOKENS_PER_STEP.name,
            relation=Relation.BELOW,
            value=measured / heaviest.deciding.value,
            for_s=_FOR_S,
            basis=RollbackBasis.BREAK_EVEN,
            measured=measured,
            condition=heaviest.condition if several else None,
        )
    elif baseline is not None and baseline.throughput is not None:
        yield Rollback(
            workload=heaviest.workload,
            arm=heaviest.candidate,
            metric=OUTPUT_TOKENS_PER_S.name,
            relation=Relation.BELOW,
            value=baseline.throughput,
            for_s=_FOR_S,
            basis=RollbackBasis.BASELINE,
            measured=baseline.throughput,
            condition=heaviest.condition if several else None,
        )


def _watch_load(heaviest: Comparison, bands: Sequence[Band]) -> Iterator[Rollback]:
    place = (heaviest.workload, heaviest.candidate, heaviest.condition.temperature)
    ends = [band for band in bands if (band.workload, band.setting, band.temperature) == place]
    if ends and not isinf(ends[-1].up_to):
        yield Rollback(
            workload=heaviest.workload,
            arm=heaviest.candidate,
            metric=LOAD_SIGNALS[ends[-1].axis].name,
            relation=Relation.ABOVE,
            value=ends[-1].up_to,
            for_s=_FOR_S,
            basis=RollbackBasis.BAND_END,
        )


def _watch_first_token(heaviest: Comparison, baseline: Latencies | None, thresholds: Thresholds) -> Iterator[Rollback]:
    measured = None
    if thresholds.slo_ttft_s is not None:
        value, basis = thresholds.slo_ttft_s, RollbackBasis.PROMISE
    elif baseline is not None and baseline.percentiles_ms["ttft"]:
        measured = baseline.percentiles_ms["ttft"][QUANTILES.index(99)] / 1e3
        value, basis = (1 + thresholds.ttft_damage) * measured, RollbackBasis.BASELINE
    else:
        return
    yield Rollback(
        workload=heaviest.workload,
        arm=heaviest.candidate,
        metric=TTFT_P99_S.name,
        relation=Relation.ABOVE,
        value=value,
        for_s=_FOR_S,
        basis=basis,
        measured=measured,
    )
