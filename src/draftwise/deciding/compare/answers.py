"""Whether the verdicts of one run still hold in another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from draftwise.core import Comparison, Interval, Verdict

__all__ = ["Kept", "VerdictChange", "compare_verdicts", "divide_ratios"]


class Kept(StrEnum):
    """What became of a verdict."""

    STILL = "still true"
    CHANGED = "no longer true"
    OPEN = "cannot be told"
    """The second measurement is inconclusive where the first was not."""
    NEWLY = "newly told"
    """The first was inconclusive, the second is not."""
    NEITHER = "told by neither"
    """Inconclusive in both: no answer that could stay true."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictChange:
    """One candidate on one workload under one condition, in both runs."""

    workload: str
    condition: str
    candidate: str
    before: Comparison
    after: Comparison
    change: Interval
    """Deciding ratio after over before: above 1 speculation gains more than it did."""
    kept: Kept


def compare_verdicts(before: Sequence[Comparison], after: Sequence[Comparison]) -> tuple[VerdictChange, ...]:
    """Return every comparison that both runs have."""
    known = {each.key: each for each in before}
    found = []
    for each in after:
        old = known.get(each.key)
        if old is not None:
            found.append(
                VerdictChange(
                    workload=each.workload,
                    condition=each.condition.label,
                    candidate=each.candidate,
                    before=old,
                    after=each,
                    change=divide_ratios(old.deciding, each.deciding),
                    kept=_judge(old.verdict, each.verdict),
                )
            )
    return tuple(found)


def divide_ratios(before: Interval, after: Interval) -> Interval:
    """Return after / before with an interval made from theirs, the two runs being independent.

    Distances of the limits are added in quadrature on the logarithms (MOVER; Zou and Donner, Statistics in Medicine
    27, 2008), so that it keeps the level of the intervals that go in.
    """

    def log(value: float) -> float:
        return math.log(value) if value > 0 else -math.inf

    value = log(after.value) - log(before.value)
    low = value - math.hypot(log(after.value) - log(after.low), log(before.high) - log(before.value))
    high = value + math.hypot(log(after.high) - log(after.value), log(before.value) - log(before.low))
    return Interval(value=math.exp(value), low=math.exp(low), high=math.exp(high) if high < 700 else math.inf)


def _judge(before: Verdict, after: Verdict) -> Kept:
    if before is after is Verdict.INCONCLUSIVE:
        return Kept.NEITHER
    if before is after:
        return Kept.STILL
    if after is Verdict.INCONCLUSIVE:
        return Kept.OPEN
    return Kept.NEWLY if before is Verdict.INCONCLUSIVE else Kept.CHANGED
