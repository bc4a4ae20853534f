"""What to run where: under each condition outside of any sweep, and over each sweep of load at one temperature."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from draftwise.core import Band, Comparison, Condition, Crossover, Recommendation, Verdict

__all__ = ["list_adopted", "recommend"]


def recommend(
    comparisons: Sequence[Comparison], bands: Sequence[Band], crossovers: Sequence[Crossover]
) -> tuple[Recommendation, ...]:
    """Return the recommendations in the order of the comparisons.

    Every sweep over load is covered by its bands; every other condition by its fastest adopted candidates.
    """
    swept = {(band.axis, band.temperature) for band in bands}
    groups: dict[Condition | tuple[str, float], list[Comparison]] = {}
    for each in comparisons:
        sweep = _find_sweep(each.condition)
        groups.setdefault(sweep if sweep is not None and sweep in swept else each.condition, []).append(each)
    return tuple(_recommend(place, group, bands, crossovers) for place, group in groups.items())


def list_adopted(recommendations: Sequence[Recommendation], comparisons: Sequence[Comparison]) -> list[Comparison]:
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
