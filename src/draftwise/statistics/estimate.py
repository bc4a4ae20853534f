"""A measured ratio and how sure it is: intervals and p-values, by Student's t on the logarithm."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from draftwise.core import Interval
from draftwise.statistics.clusters import Spread
from draftwise.statistics.student import student_tail, upper_student_quantile

__all__ = ["CONFIDENCE", "Estimate", "to_ratio"]

CONFIDENCE = 0.95
_ROUNDING = 1e-9
"""Differences below this come from arithmetic, not from servers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A ratio of candidate over baseline.

    Interval, p-value, power and stopping all derive from the same two numbers, so that they cannot contradict each
    other: an interval excludes a ratio exactly when the test of that ratio is significant.
    """

    log: float
    """Natural logarithm of the ratio."""
    spread: Spread
    """Of the logarithm."""
    log_by_prompt: Mapping[Hashable, float] = field(default_factory=dict, compare=False, repr=False)
    """Logarithms of the prompts' own ratios, where the design names them: what the cells of a sweep have in common."""

    @property
    def value(self) -> float:
        """The ratio."""
        return to_ratio(self.log)

    def interval(self, confidence: float = CONFIDENCE) -> Interval:
        """Return the interval of the ratio; unbounded where nothing was repeated."""
        if math.isinf(self.spread.variance):
            return Interval(value=self.value, low=0.0, high=math.inf)
        reach = upper_student_quantile((1 - confidence) / 2, self.spread.degrees) * self.spread.error
        return Interval(value=self.value, low=to_ratio(self.log - reach), high=to_ratio(self.log + reach))

    def share_below(self, ratio: float) -> float:
        """Return the share of the prompts whose own ratio lies below a ratio."""
        ratios = [math.exp(log) for log in self.log_by_prompt.values()]
        return sum(each < ratio for each in ratios) / len(ratios)

    def p_value(self, ratio: float = 1.0) -> float:
        """Return the two-sided p-value of the hypothesis that the true ratio is `ratio`."""
        distance = abs(self.log - math.log(ratio))
        if math.isinf(self.spread.variance) or distance < _ROUNDING:
            return 1.0
        if self.spread.variance == 0:
            return 0.0
        return min(1.0, 2 * student_tail(distance / self.spread.error, self.spread.degrees))


def to_ratio(log: float) -> float:
    """Return the ratio of a logarithm; infinite where floating point ends."""
    try:
        return math.exp(log)
    except OverflowError:
        return math.inf
