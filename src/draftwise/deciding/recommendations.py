"""Recommends a setup for each load sweep and for each other condition, with rollback rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isinf

from draftwise.core import (
    Band,
    Comparison,
    Condition,
    Crossover,
    Recommendation,
    Relation,
    Rollback,
    RollbackBasis,
    Verdict,
)
from draftwise.core.grouping import group_by
from draftwise.deciding.bands import Sweeps
from draftwise.deciding.comparison.latencies import QUANTILES, Latencies
from draftwise.deciding.thresholds import Thresholds
from draftwise.knowledge.signals import LOAD_SIGNALS, OUTPUT_TOKENS_PER_S, TOKENS_PER_STEP, TTFT_P99_S, MetricSignal

_ABOVE_REACHED = 1.1
"""Multiple of the adopted P99 below which nothing has changed."""
_FOR_S = 3600.0
"""Long enough that a burst or a shift in the prompt mix does not trigger a rollback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAdvice:
    """What to run, and what to watch afterwards."""

    recommendations: tuple[Recommendation, ...]
    rollback: tuple[Rollback, ...]


def advise(
    comparisons: Sequence[Comparison],
    sweeps: Sweeps,
    latencies: Sequence[Latencies],
    baseline: str,
    thresholds: Thresholds,
) -> RunAdvice:
    """Return what to run where, with rollback rules.

    Args:
        latencies: include the baseline's latencies.
    """
    recommendations = recommend(comparisons, sweeps.bands, sweeps.crossovers)
    adopted = _list_adopted(recommendations, comparisons)
    rules = find_rollbacks(adopted, sweeps.bands, latencies, baseline, thresholds)
    return RunAdvice(recommendations=recommendations, rollback=tuple(rules))


def recommend(
    comparisons: Sequence[Comparison], bands: Sequence[Band], crossovers: Sequence[Crossover]
) -> tuple[Recommendation, ...]:
    """Return the recommendations in the order of the comparisons.

    A load sweep is covered by its bands, any other condition by its fastest adopted candidates.
    """
    swept = {(band.axis, band.temperature) for band in bands}
    groups: dict[Condition | tuple[str, float], list[Comparison]] = {}
    for each in comparisons:
        sweep = _find_sweep(each.condition)
        groups.setdefault(sweep if sweep is not None and sweep in swept else each.condition, []).append(each)
    return tuple(_recommend(place, group, bands, crossovers) for place, group in groups.items())


def _list_adopted(recommendations: Sequence[Recommendation], comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons to act on, condition by condition in the order of all comparisons."""
    order = {condition: place for place, condition in enumerate(dict.fromkeys(each.condition for each in comparisons))}
    adopted = (each for recommendation in recommendations for each in recommendation.adopted)
    return sorted(adopted, key=lambda each: order[each.condition])


def _find_sweep(condition: Condition) -> tuple[str, float] | None:
    return None if condition.place is None else (condition.place[0], condition.temperature)


def _recommend(
    place: Condition | tuple[str, float],
    comparisons: Sequence[Comparison],
    bands: Sequence[Band],
    crossovers: Sequence[Crossover],
) -> Recommendation:
    if isinstance(place, Condition):
        adopted = tuple(_find_winners(comparisons).values())
        return Recommendation(condition=place, comparisons=tuple(comparisons), adopted=adopted)
    mine = tuple(band for band in bands if (band.axis, band.temperature) == place)
    return Recommendation(
        condition=None,
        comparisons=tuple(comparisons),
        adopted=tuple(_find_set(comparisons, mine)),
        bands=mine,
        crossovers=tuple(each for each in crossovers if (each.axis, each.temperature) == place),
    )


def _find_winners(comparisons: Sequence[Comparison]) -> Mapping[str, Comparison]:
    """Return the fastest candidate to adopt by workload (and for all together), where there is one."""
    best: dict[str, Comparison] = {}
    for each in comparisons:
        if each.verdict is Verdict.ADOPT:
            rival = best.get(each.workload)
            if rival is None or each.deciding.value > rival.deciding.value:
                best[each.workload] = each
    return best


def _find_set(comparisons: Sequence[Comparison], bands: Sequence[Band]) -> Iterator[Comparison]:
    """Yield the adopted comparisons of the candidates that the bands set at each load."""
    for each in comparisons:
        load = 0.0 if each.condition.place is None else each.condition.place[1]
        chosen = {(band.workload, band.setting) for band in bands if band.above < load <= band.up_to}
        if each.verdict is Verdict.ADOPT and (each.workload, each.candidate) in chosen:
            yield each


def find_rollbacks(
    adopted: Sequence[Comparison],
    bands: Sequence[Band],
    latencies: Sequence[Latencies],
    baseline: str,
    thresholds: Thresholds,
) -> Iterator[Rollback]:
    """Yield the rollback rules of every adopted cell. The first rule that fires calls for a rollback.

    The cost of a step depends on batch size and k, but hardly on acceptance. So speed-up is proportional to tokens per
    step, and a fall by the same factor removes the gain. Each load has its own limit, because larger batches cost more
    per step. Each temperature has its own loads, because acceptance is lower at higher temperatures.

    Args:
        adopted: adopted comparisons, any number per workload, candidate and temperature.
        bands: load limits of each setting.
        latencies: include those of the baseline and the candidates.
    """
    groups = group_by(lambda each: (each.workload, each.candidate, each.condition.temperature), adopted)
    rows = {(row.workload, row.condition, row.arm): row for row in latencies}
    for group in groups.values():
        cells = sorted(group, key=lambda each: (each.condition.place or ("", 0.0))[1])
        for each in cells:
            loads = _find_stretch(each, cells, bands)
            place = (each.workload, each.condition.label)
            plain, candidate = (rows.get((*place, arm)) for arm in (baseline, each.candidate))
            yield from _watch_speed(each, plain, loads)
            if thresholds.slo_ttft_s is None:
                yield from _watch_first_token(each, plain, candidate, loads, thresholds)
        yield from _watch_load(cells[-1], bands, baseline)
        if thresholds.slo_ttft_s is not None:
            yield _make_rule(cells[-1], TTFT_P99_S, (Relation.ABOVE, thresholds.slo_ttft_s), RollbackBasis.PROMISE)


def _find_stretch(cell: Comparison, cells: Sequence[Comparison], bands: Sequence[Band]) -> tuple[float, float] | None:
    """Return the loads (above, up_to] that a cell speaks for: down to the next lighter one that was adopted.

    The heaviest one of a band speaks up to the band's end. None for a load outside of any sweep, which speaks for all.
    """
    if cell.condition.place is None:
        return None
    axis, load = cell.condition.place
    place = (cell.workload, cell.candidate, cell.condition.temperature, axis)
    mine = (band for band in bands if (band.workload, band.setting, band.temperature, band.axis) == place)
    band = next((band for band in mine if band.above < load <= band.up_to), None)
    if band is None:
        return None
    others = [each.condition.place[1] for each in cells if each.condition.place is not None]
    lighter = [other for other in others if band.above < other < load]
    heavier = any(load < other <= band.up_to for other in others)
    return max([band.above, *lighter]), load if heavier else band.up_to


def _watch_speed(cell: Comparison, baseline: Latencies | None, loads: tuple[float, float] | None) -> Iterator[Rollback]:
    measured = cell.counters.tokens_per_step
    if measured is not None:
        limit = Relation.BELOW, measured / cell.deciding.value
        yield _make_rule(cell, TOKENS_PER_STEP, limit, RollbackBasis.BREAK_EVEN, loads=loads, measured=measured)
    elif baseline is not None and baseline.throughput is not None and cell.condition.concurrency is not None:
        yield _make_rule(
            cell,
            OUTPUT_TOKENS_PER_S,
            (Relation.BELOW, baseline.throughput),
            RollbackBasis.BASELINE,
            # A server with fewer requests puts out less, whatever it runs.
            loads=(cell.condition.concurrency - 1, inf),
            measured=baseline.throughput,
        )


def _watch_load(heaviest: Comparison, bands: Sequence[Band], baseline: str) -> Iterator[Rollback]:
    """Yield the rule on the load at which a candidate's last band ends, with the setting of the band that follows."""
    mine = [band for band in bands if _place(band) == (heaviest.workload, heaviest.condition.temperature)]
    ends = [band for band in mine if band.setting == heaviest.candidate]
    if ends and not isinf(ends[-1].up_to):
        after = next(band.setting for band in mine if (band.axis, band.above) == (ends[-1].axis, ends[-1].up_to))
        limit, switch_to = (Relation.ABOVE, ends[-1].up_to), None if after == baseline else after
        signal = LOAD_SIGNALS[ends[-1].axis]
        yield _make_rule(heaviest, signal, limit, RollbackBasis.BAND_END, switch_to=switch_to)


def _place(band: Band) -> tuple[str, float]:
    return band.workload, band.temperature


def _watch_first_token(
    cell: Comparison,
    baseline: Latencies | None,
    candidate: Latencies | None,
    loads: tuple[float, float] | None,
    thresholds: Thresholds,
) -> Iterator[Rollback]:
    """Yield the rule on first tokens that are late by the baseline's, and later than those that were adopted."""
    measured, reached = _read_first_token(baseline), _read_first_token(candidate)
    if measured is not None:
        late = max((1 + thresholds.ttft_damage) * measured, _ABOVE_REACHED * (reached or 0.0))
        limit = Relation.ABOVE, late
        yield _make_rule(cell, TTFT_P99_S, limit, RollbackBasis.BASELINE, loads=loads, measured=measured)


def _make_rule(
    cell: Comparison,
    signal: MetricSignal,
    limit: tuple[Relation, float],
    basis: RollbackBasis,
    *,
    loads: tuple[float, float] | None = None,
    measured: float | None = None,
    switch_to: str | None = None,
) -> Rollback:
    """Return the rule that what was adopted for a cell goes when a signal stays beyond a limit."""
    relation, value = limit
    return Rollback(
        workload=cell.workload,
        arm=cell.candidate,
        metric=signal.name,
        relation=relation,
        value=value,
        for_s=_FOR_S,
        basis=basis,
        condition=cell.condition,
        loads=loads,
        measured=measured,
        switch_to=switch_to,
    )


def _read_first_token(row: Latencies | None) -> float | None:
    """Return the P99 of the time to the first token in seconds."""
    times = () if row is None else row.percentiles_ms["ttft"]
    return times[QUANTILES.index(99)] / 1e3 if times else None
