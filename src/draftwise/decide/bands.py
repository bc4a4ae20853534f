"""Which setting to run at which load: the bands that a sweep's verdicts make, with their ends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from draftwise.core import Band, Comparison, Crossover, Verdict

__all__ = ["find_bands"]

Point = tuple[float, dict[str, Comparison]]
"""A load and the comparisons there, by candidate."""


def find_bands(comparisons: Iterable[Comparison], crossovers: Sequence[Crossover], baseline: str) -> tuple[Band, ...]:
    """Return the bands of every workload and temperature that was measured at two loads or more.

    At each load the adopted candidate with the best deciding ratio is set, but a candidate that is within its own
    interval of the best goes on (a switch must be worth it), also across a load where nothing was told apart.
    """
    bands: list[Band] = []
    for (workload, temperature, axis), points in _sweeps(comparisons).items():
        if len(points) > 1:
            place = (workload, temperature, axis)
            limits = {e.candidate: e for e in crossovers if (e.workload, e.temperature, e.axis) == place}
            settings = _fill(_choose(points, baseline), points, baseline)
            bands += _merge(*place, [load for load, _ in points], settings, limits, baseline)
    return tuple(bands)


def _sweeps(comparisons: Iterable[Comparison]) -> dict[tuple[str, float, str], list[Point]]:
    """Return the points of every sweep over load, lightest load first."""
    found: dict[tuple[str, float, str], dict[float, dict[str, Comparison]]] = {}
    for each in comparisons:
        if (place := each.condition.place) is not None:
            axis, load = place
            sweep = found.setdefault((each.workload, each.condition.temperature, axis), {})
            sweep.setdefault(load, {})[each.candidate] = each
    return {key: sorted(points.items(), key=lambda point: point[0]) for key, points in found.items()}


def _choose(points: Sequence[Point], baseline: str) -> list[str]:
    settings: list[str] = []
    for _, here in points:
        adopted = {name: each.deciding for name, each in here.items() if each.verdict is Verdict.ADOPT}
        best = max(adopted, key=lambda name: adopted[name].value, default=baseline)
        before = settings[-1] if settings else None
        stays = before in adopted and adopted[before].high >= adopted[best].value
        settings.append(before if stays and before is not None else best)
    return settings


def _fill(settings: Sequence[str], points: Sequence[Point], baseline: str) -> list[str]:
    """Return the settings with a candidate across loads where it was not told apart, between two where it wins."""
    filled = list(settings)
    for i in range(1, len(settings) - 1):
        before = filled[i - 1]
        after = next((each for each in settings[i + 1 :] if each != baseline), baseline)
        here = points[i][1].get(before)
        if filled[i] == baseline and before == after != baseline and here is not None and _may_gain(here):
            filled[i] = before
    return filled


def _may_gain(comparison: Comparison) -> bool:
    return comparison.verdict is Verdict.INCONCLUSIVE and comparison.deciding.value >= 1


def _merge(
    workload: str,
    temperature: float,
    axis: str,
    loads: Sequence[float],
    settings: Sequence[str],
    limits: Mapping[str, Crossover],
    baseline: str,
) -> Iterator[Band]:
    pairs = groupby(zip(loads, settings, strict=True), key=lambda pair: pair[1])
    stretches = [(setting, [load for load, _ in group]) for setting, group in pairs]
    above = 0.0
    for i, (setting, mine) in enumerate(stretches):
        up_to = math.inf
        if i + 1 < len(stretches):
            following, theirs = stretches[i + 1]
            last, first = mine[-1], theirs[0]
            value = _value(limits.get(setting), last) if following == baseline else math.sqrt(last * first)
            up_to = _end(axis, last, first, value)
        yield Band(workload=workload, temperature=temperature, axis=axis, above=above, up_to=up_to, setting=setting)
        above = up_to


def _value(crossover: Crossover | None, last: float) -> float:
    """Return the estimated crossover; without one, the last load at which the candidate was shown to pay."""
    return last if crossover is None or crossover.value is None else crossover.value


def _end(axis: str, last: float, first: float, value: float) -> float:
    """Return where a band ends between the last load at which it won and the first at which another did.

    `value` is the estimated crossover where the baseline follows, else the middle on a logarithmic scale.
    """
    end = min(max(value, last), first)
    if axis == "concurrency":
        return float(max(last, min(math.floor(end), first - 1)))
    return end
