"""A decision in one sentence: what to run for which traffic, up to which load."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from draftwise.core import Band, Comparison, Crossover, Interval, Verdict
from draftwise.decide.comparison.axis import UNITS, format_load, place_on_axis
from draftwise.decide.comparison.cell import ALL
from draftwise.decide.comparison.verdict import deciding

__all__ = ["compose", "format_ratio", "listed"]

_PLAIN = "plain decoding"
_SPLIT = "no single setting pays for all of it, so split the traffic"


def format_ratio(ratio: Interval) -> str:
    """Return e.g. `1.92x (1.81-2.03)`: the ratio and its confidence interval."""
    return f"{ratio.value:.2f}x ({ratio.span})"


def listed(names: Sequence[str]) -> str:
    """Return e.g. `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def compose(
    comparisons: Sequence[Comparison], bands: Sequence[Band], crossovers: Sequence[Crossover], plain: str
) -> str:
    """Return the sentence.

    Every sweep over load is told by its bands; every other condition by its fastest adopted candidate.
    """
    if not comparisons:
        return "Nothing was measured on both sides yet, so there is nothing to decide."
    places = _places(comparisons, bands, crossovers)
    if not any(each.verdict is Verdict.ADOPT for each in comparisons):
        return _nothing_pays(comparisons)
    parts = [text for place in places for text in place.phrases(plain, several=len(places) > 1)]
    sentence = "; ".join(parts)
    return f"{sentence[0].upper()}{sentence[1:]} ({_explain(comparisons)})."


def _explain(comparisons: Sequence[Comparison]) -> str:
    """Return what the numbers in the sentence are; with one request at a time that goes without saying."""
    measured = {(each.condition, deciding(each).name) for each in comparisons}
    ranges = "ranges: 95 % confidence"
    if len(measured) > 1 or comparisons[0].condition.concurrency == 1:
        return ranges
    ((condition, name),) = measured
    return f"{name} at {condition.label}; {ranges}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """One condition outside of any sweep, or one sweep over load at one temperature."""

    where: str
    comparisons: Sequence[Comparison]
    bands: Sequence[Band]
    crossovers: Sequence[Crossover]

    def phrases(self, plain: str, *, several: bool) -> list[str]:
        found = self._swept(plain) if self.bands else self._single()
        return [f"{self.where}: {found[0]}", *found[1:]] if several else found

    def _single(self) -> list[str]:
        won = winners(self.comparisons)
        names = list(dict.fromkeys(each.workload for each in self.comparisons if each.workload != ALL))
        groups = _by_candidate([won[name] for name in names if name in won])
        parts = [
            f"adopt {candidate} for {listed([f'{each.workload} {_ratio(each)}' for each in group])}"
            for candidate, group in groups
        ]
        if lost := [name for name in names if name not in won]:
            parts.append(f"keep {_PLAIN} for {listed(lost)}")
        if len(names) > 1:
            best = won.get(ALL)
            parts.append(_SPLIT if best is None else f"one setting for all of it: {best.candidate}, {_ratio(best)}")
        return parts

    def _swept(self, plain: str) -> list[str]:
        told: dict[str, list[str]] = {}
        for workload in dict.fromkeys(band.workload for band in self.bands):
            told.setdefault(self._stretches(workload, plain), []).append(workload)
        lost = told.pop("", [])
        parts = [
            f"one setting for all of it: {text}" if names == [ALL] else f"adopt for {listed(names)}: {text}"
            for text, names in told.items()
        ]
        if singles := [name for name in lost if name != ALL]:
            parts.append(f"keep {_PLAIN} for {listed(singles)} at every load measured")
        if ALL in lost and parts:
            parts.append(_SPLIT)
        return parts

    def _stretches(self, workload: str, plain: str) -> str:
        """Return what to run at which load on one workload; empty where that is plain decoding at all of them."""
        mine = [band for band in self.bands if band.workload == workload]
        if all(band.setting == plain for band in mine):
            return ""
        ends = {each.candidate: each for each in self.crossovers if each.workload == workload}
        following = [*(band.setting for band in mine[1:]), None]
        parts = [
            self._stretch(band, ends.get(band.setting) if after == plain else None, plain)
            for band, after in zip(mine, following, strict=True)
        ]
        return ", ".join(parts)

    def _stretch(self, band: Band, end: Crossover | None, plain: str) -> str:
        name, unit = _PLAIN if band.setting == plain else band.setting, UNITS[band.axis]
        gain = "" if band.setting == plain else f" ({self._best(band)})"
        if math.isinf(band.up_to):
            return f"{name} above{gain}" if band.above else f"{name} at every load measured{gain}"
        if end is None or end.value is None:
            return f"{name} up to {format_load(band.up_to, band.axis)} {unit}{gain}"
        if band.up_to == (math.floor(end.value) if band.axis == "concurrency" else end.value):
            return f"{name} below {format_load(end.value, band.axis)} {unit} ({_span(end)}){gain}"
        # The verdicts end before the estimate does: some load between was not told apart.
        estimate = f"its gain ends at about {format_load(end.value, band.axis)}, {_span(end)}"
        return f"{name} up to {format_load(band.up_to, band.axis)} {unit} ({estimate}){gain}"

    def _best(self, band: Band) -> str:
        """Return the gains of a band's setting at its lightest and its heaviest load."""
        gains = [
            (place[1], deciding(each).ratio.value)
            for each in self.comparisons
            if (each.workload, each.candidate) == (band.workload, band.setting)
            and (place := place_on_axis(each.condition)) is not None
            and band.above < place[1] <= band.up_to
        ]
        ends = sorted({min(gains), max(gains)})
        return ", ".join(f"{gain:.2f}x at {load:g}" for load, gain in ends)


def winners(comparisons: Sequence[Comparison]) -> Mapping[str, Comparison]:
    """Return the fastest candidate to adopt by workload (and for all together), where there is one."""
    best: dict[str, Comparison] = {}
    for each in comparisons:
        if each.verdict is Verdict.ADOPT:
            rival = best.get(each.workload)
            if rival is None or deciding(each).ratio.value > deciding(rival).ratio.value:
                best[each.workload] = each
    return best


def _places(comparisons: Sequence[Comparison], bands: Sequence[Band], crossovers: Sequence[Crossover]) -> list[_Place]:
    swept = {(band.axis, band.temperature) for band in bands}
    groups: dict[str, list[Comparison]] = {}
    of_sweep: dict[str, tuple[str, float]] = {}
    for each in comparisons:
        place, temperature = place_on_axis(each.condition), each.condition.temperature
        if place is not None and (place[0], temperature) in swept:
            where = f"by {place[0]}" if temperature == 0 else f"by {place[0]} at T={temperature:g}"
            of_sweep[where] = (place[0], temperature)
        else:
            where = each.condition.label
        groups.setdefault(where, []).append(each)
    return [
        _Place(
            where=where,
            comparisons=group,
            bands=[band for band in bands if (band.axis, band.temperature) == of_sweep.get(where)],
            crossovers=[each for each in crossovers if (each.axis, each.temperature) == of_sweep.get(where)],
        )
        for where, group in groups.items()
    ]


def _by_candidate(won: Sequence[Comparison]) -> list[tuple[str, list[Comparison]]]:
    names = dict.fromkeys(each.candidate for each in won)
    return [(name, [each for each in won if each.candidate == name]) for name in names]


def _ratio(comparison: Comparison) -> str:
    return format_ratio(deciding(comparison).ratio)


def _span(crossover: Crossover) -> str:
    high = "more" if math.isinf(crossover.high) else format_load(crossover.high, crossover.axis)
    return f"{format_load(crossover.low, crossover.axis)}-{high}"


def _nothing_pays(comparisons: Sequence[Comparison]) -> str:
    single = [each for each in comparisons if each.workload != ALL]
    names, several = list(dict.fromkeys(each.workload for each in single)), len({c.condition for c in single}) > 1
    best = max(single, key=lambda each: deciding(each).ratio.value)
    where = f"{best.workload} at {best.condition.label}" if several else best.workload
    return (
        f"Keep {_PLAIN} for {listed(names)}{' at every load measured' if several else ''}: no candidate earned an "
        f"adoption; the fastest was {best.candidate} on {where} with {_ratio(best)}, {best.verdict}: {best.reason}."
    )
