"""What a measurement could have found, and what it would take to settle what it left open."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from draftwise.statistics.clusters import Spread
from draftwise.statistics.estimate import CONFIDENCE, Estimate, to_ratio
from draftwise.statistics.student import student_quantile, student_tail, upper_student_quantile

__all__ = ["POWER", "detectable_ratio", "prompts_needed", "repetitions_needed"]

POWER = 0.8
_MOST = 1000
"""Times as many prompts or repetitions as there are: from there on it cannot be settled by measuring more."""


def detectable_ratio(estimate: Estimate, *, margin: float = 0.0, alpha: float = 1 - CONFIDENCE) -> float:
    """Return the smallest true speed-up that would be called faster than 1 + margin in 80 % of such measurements.

    Going by the spread seen; infinite where there is none to see.
    """
    spread = estimate.spread
    if math.isinf(spread.variance):
        return math.inf
    reach = upper_student_quantile(alpha / 2, spread.degrees) + student_quantile(POWER, spread.degrees)
    return to_ratio(math.log1p(margin) + reach * spread.error)


def prompts_needed(estimate: Estimate, *, margin: float, alpha: float = 1 - CONFIDENCE) -> int | None:
    """Return how many prompts (in as many repetitions, blocks of the same size) would settle it with 80 % power.

    Taking the estimate for the truth; None where it lies so close to a limit that a thousand times as many would not.
    """
    count = estimate.spread.num_prompts
    times = _times_needed(estimate, margin, alpha, _with_prompts)
    return None if times is None else math.ceil(count * times)


def repetitions_needed(
    estimate: Estimate, repetitions: int, *, margin: float, alpha: float = 1 - CONFIDENCE
) -> int | None:
    """Return how many repetitions of the same prompts would settle it; None where no number of them would.

    Repetitions average out the variance that the requests of a paired block share; they do not add prompts.
    """
    times = _times_needed(estimate, margin, alpha, _with_repetitions)
    return None if times is None else math.ceil(repetitions * times)


def _times_needed(
    estimate: Estimate, margin: float, alpha: float, more: Callable[[Spread, float], Spread]
) -> float | None:
    """Return how many times as much would settle it, to 1 %."""
    if math.isinf(estimate.spread.variance):
        return None

    def is_enough(times: float) -> bool:
        return _power(estimate.log, more(estimate.spread, times), margin, alpha) >= POWER

    if not is_enough(_MOST):
        return None
    low, high = 0.0, float(_MOST)
    while high - low > 0.01 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _power(log: float, spread: Spread, margin: float, alpha: float) -> float:
    """Return the probability that an estimate around `log` settles on what is true of `log` itself."""
    if spread.error == 0:
        return 1.0
    bound = upper_student_quantile(alpha / 2, spread.degrees)

    def clears(distance: float) -> float:
        return student_tail(bound - distance / spread.error, spread.degrees)

    if log > math.log1p(margin):
        return clears(log - math.log1p(margin))
    if log <= math.log1p(-margin):
        return clears(-log)
    return clears(math.log1p(margin) - log) + clears(log - math.log1p(-margin)) - 1


def _with_prompts(spread: Spread, times: float) -> Spread:
    return replace(spread, variance=spread.variance / times, degrees=max(1.0, spread.degrees * times))


def _with_repetitions(spread: Spread, times: float) -> Spread:
    passing = spread.variance - spread.lasting
    return replace(spread, variance=spread.lasting + passing / times)
