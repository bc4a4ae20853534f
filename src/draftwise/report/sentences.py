"""A decision in one sentence: what to run for which traffic, up to which load."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from draftwise.core import Band, Comparison, Crossover, Decision, Recommendation, Verdict
from draftwise.decide.comparison.cell import ALL
from draftwise.decide.validity.finding import join_names
from draftwise.report.units import LOAD_UNITS, format_load, format_ratio, format_stretch

__all__ = ["describe_decision"]

_BASELINE = "plain decoding"
_SPLIT = "no single setting pays for all of it, so split the traffic"


def describe_decision(decision: Decision) -> str:
    """Return the sentence: of every sweep over load its bands, of every other condition the fastest candidates."""
    if not decision.comparisons:
        return "Nothing was measured on both sides yet, so there is nothing to decide."
    if not any(each.verdict is Verdict.ADOPT for each in decision.comparisons):
        return _describe_no_gain(decision.comparisons)
    several = len(decision.recommendations) > 1
    parts: list[str] = []
    for recommendation in decision.recommendations:
        phrases = (
            _describe_sweep(recommendation, decision.baseline)
            if recommendation.bands
            else _describe_condition(recommendation)
        )
        parts += [f"{_name_place(recommendation)}: {phrases[0]}", *phrases[1:]] if several else phrases
    sentence = "; ".join(parts)
    return f"{sentence[0].upper()}{sentence[1:]} ({_explain(decision.comparisons)}).{_doubt(decision)}"


def _doubt(decision: Decision) -> str:
    """Return the sentence that names adopted candidates whose speculation no counter proves, empty without any."""
    adopted = {each.candidate for recommendation in decision.recommendations for each in recommendation.adopted}
    names = [name for name in decision.scope.unproven if name in adopted]
    return f" Speculation is not proven for {_join(names)}: no counters of its server can be read." if names else ""


def _name_place(recommendation: Recommendation) -> str:
    if recommendation.condition is not None:
        return recommendation.condition.label
    band = recommendation.bands[0]
    return f"by {band.axis}" if band.temperature == 0 else f"by {band.axis} at T={band.temperature:g}"


def _explain(comparisons: Sequence[Comparison]) -> str:
    """Return what the numbers in the sentence are; with one request at a time that goes without saying."""
    measured = {(each.condition, each.decided_by) for each in comparisons}
    ranges = "ranges: 95 % confidence"
    if len(measured) > 1 or comparisons[0].condition.concurrency == 1:
        return ranges
    ((condition, measure),) = measured
    return f"{measure} at {condition.label}; {ranges}"


def _describe_condition(recommendation: Recommendation) -> list[str]:
    won = {each.workload: each for each in recommendation.adopted}
    names = list(dict.fromkeys(each.workload for each in recommendation.comparisons if each.workload != ALL))
    by_candidate: dict[str, list[str]] = {}
    for name in names:
        if name in won:
            by_candidate.setdefault(won[name].candidate, []).append(f"{name} {format_ratio(won[name].deciding)}")
    parts = [f"adopt {candidate} for {_join(gains)}" for candidate, gains in by_candidate.items()]
    if lost := [name for name in names if name not in won]:
        parts.append(f"keep {_BASELINE} for {_join(lost)}")
    if len(names) > 1:
        best = won.get(ALL)
        whole = "" if best is None else f"one setting for all of it: {best.candidate}, {format_ratio(best.deciding)}"
        parts.append(whole or _SPLIT)
    return parts


def _describe_sweep(recommendation: Recommendation, baseline: str) -> list[str]:
    told: dict[str, list[str]] = {}
    for workload in dict.fromkeys(band.workload for band in recommendation.bands):
        told.setdefault(_Stretches(recommendation, workload, baseline).describe(), []).append(workload)
    lost = told.pop("", [])
    parts = [
        f"one setting for all of it: {text}" if names == [ALL] else f"adopt for {_join(names)}: {text}"
        for text, names in told.items()
    ]
    if singles := [name for name in lost if name != ALL]:
        parts.append(f"keep {_BASELINE} for {_join(singles)} at every load measured")
    if ALL in lost and parts:
        parts.append(_SPLIT)
    return parts


@dataclass(frozen=True, slots=True)
class _Stretches:
    """What to run at which load on one workload of a sweep."""

    recommendation: Recommendation
    workload: str
    baseline: str

    def describe(self) -> str:
        """Return the stretches, empty where the baseline is best at all loads."""
        bands = [band for band in self.recommendation.bands if band.workload == self.workload]
        if all(band.setting == self.baseline for band in bands):
            return ""
        ends = {each.candidate: each for each in self.recommendation.crossovers if each.workload == self.workload}
        following = [*(band.setting for band in bands[1:]), None]
        return ", ".join(
            self._describe_band(band, ends.get(band.setting) if after == self.baseline else None)
            for band, after in zip(bands, following, strict=True)
        )

    def _describe_band(self, band: Band, end: Crossover | None) -> str:
        is_baseline, unit = band.setting == self.baseline, LOAD_UNITS[band.axis]
        name, gain = (_BASELINE, "") if is_baseline else (band.setting, f" ({self._describe_gain(band)})")
        if math.isinf(band.up_to):
            return f"{name} above{gain}" if band.above else f"{name} at every load measured{gain}"
        last = format_load(band.up_to, band.axis)
        if end is None or end.value is None:
            return f"{name} up to {last} {unit}{gain}"
        crossing, interval = format_load(end.value, end.axis), format_stretch(end.low, end.high, end.axis)
        if band.up_to == (math.floor(end.value) if band.axis == "concurrency" else end.value):
            return f"{name} below {crossing} {unit} ({interval}){gain}"
        # The verdicts end before the estimate does: at some load between no difference was shown.
        return f"{name} up to {last} {unit} (its gain ends at about {crossing}, {interval}){gain}"

    def _describe_gain(self, band: Band) -> str:
        """Return the gains of a band's setting at its lightest and its heaviest load."""
        gains = [
            (place[1], each.deciding.value)
            for each in self.recommendation.comparisons
            if (each.workload, each.candidate) == (band.workload, band.setting)
            and (place := each.condition.place) is not None
            and band.above < place[1] <= band.up_to
        ]
        ends = sorted({min(gains), max(gains)})
        return ", ".join(f"{gain:.2f}x at {load:g}" for load, gain in ends)


def _describe_no_gain(comparisons: Sequence[Comparison]) -> str:
    single = [each for each in comparisons if each.workload != ALL]
    names, several = list(dict.fromkeys(each.workload for each in single)), len({c.condition for c in single}) > 1
    best = max(single, key=lambda each: each.deciding.value)
    where = f"{best.workload} at {best.condition.label}" if several else best.workload
    return (
        f"Keep {_BASELINE} for {_join(names)}{' at every load measured' if several else ''}: no candidate earned an "
        f"adoption; the fastest was {best.candidate} on {where} with {format_ratio(best.deciding)}, {best.verdict}: "
        f"{best.reason}."
    )


def _join(names: Sequence[str]) -> str:
    return join_names(names, most=len(names))
