"""Guards against harm that a gain may hide: to first tokens, to slow requests, to prompts that were not drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from draftwise.statistics.estimate import RatioEstimate, beta_quantile, upper_student_quantile
from draftwise.statistics.ratios import Array

_ALPHA = 0.05
"""One-sided error of a guard's answer."""
FEWEST_FOR = {50: 5, 90: 29, 95: 59, 99: 299}
"""Minimum number of requests for an upper bound on a percentile: 1 - share^n is at least 95 % (5 for P50)."""
_SLOW = 1.1
"""A request above this multiple of the baseline's P90 is slow."""
_SLOW_SHARE = 0.10
"""Share of slow requests without harm."""
_HARMED_SHARE = 0.20
"""Share of slow requests that counts as harm."""
_UNSEEN_LOSS = 0.2
"""Assumed loss of a kind of prompt that was not drawn."""
_Z_FOR_POWER = 6.2
"""(1.645 + 0.84)^2: for 80 % power of a one-sided 5 % test."""


class Guard(StrEnum):
    """Whether a harm is shown or excluded."""

    HARM = "harm"
    EXCLUDED = "excluded"
    NO_POWER = "no power"
    """Neither is shown. The guard decides nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardReading:
    """A guard's answer, with its numbers."""

    answer: Guard
    value: float
    """A ratio of times, or a share of the requests."""
    count: int
    """Prompts or requests."""
    needed: int
    """Number needed to exclude an absent harm 8 times in 10; 0 if the answer is known."""


def guard_delay(ratio: RatioEstimate, limit: float) -> GuardReading:
    """Return whether the time to first token grows by more than `limit` (a ratio above 1), candidate over baseline."""
    count, spread, bar = ratio.spread.num_prompts, ratio.spread, math.log1p(limit)
    reach = math.inf
    if math.isfinite(spread.variance):
        reach = upper_student_quantile(_ALPHA, spread.degrees) * spread.error
    if ratio.log - reach > bar:
        return GuardReading(answer=Guard.HARM, value=ratio.value, count=count, needed=0)
    if ratio.log + reach < bar:
        return GuardReading(answer=Guard.EXCLUDED, value=ratio.value, count=count, needed=0)
    needed = _Z_FOR_POWER * spread.variance * count / bar**2 if math.isfinite(spread.variance) else 2 * count
    return GuardReading(answer=Guard.NO_POWER, value=ratio.value, count=count, needed=max(count + 1, math.ceil(needed)))


def guard_tail(candidate_R: Array, baseline_R: Array) -> GuardReading | None:
    """Return whether the candidate has more slow requests than the baseline; None without readings.

    A request is slow above 1.1 times the baseline's P90. A ratio of extreme percentiles does not show harm: acceptance
    is random, which spreads the time per token even if every request gains.

    Args:
        candidate_R: seconds per token of each request.
        baseline_R: the same for the baseline.
    """
    if not len(candidate_R) or not len(baseline_R):
        return None
    count = len(candidate_R)
    slow = int((candidate_R > _SLOW * np.quantile(baseline_R, 1 - _SLOW_SHARE)).sum())
    low = beta_quantile(_ALPHA, slow, count - slow + 1) if slow else 0.0
    high = beta_quantile(1 - _ALPHA, slow + 1, count - slow) if slow < count else 1.0
    answer = Guard.HARM if low > _SLOW_SHARE else Guard.EXCLUDED if high < _HARMED_SHARE else Guard.NO_POWER
    needed = max(FEWEST_FOR[90], count + 1) if answer is Guard.NO_POWER else 0
    return GuardReading(answer=answer, value=slow / count, count=count, needed=needed)


def find_unseen_share(count: int, known: float = 0.0) -> float:
    """Return the largest share of the traffic that a kind of prompt may have if none of `count` drawn prompts is of it.

    With 95 % confidence: 39 % with 6 prompts, 5 % with 60.

    Args:
        known: share of the kinds of which the log is known to hold prompts, but none was drawn.
    """
    return max(known, 1 - math.exp(math.log(_ALPHA) / count))


def find_bar(count: int, margin: float, known: float = 0.0) -> float:
    """Return the ratio that an interval's lower end must exceed for an adoption with this many prompts.

    Above it, the gain survives if an unseen kind of prompt loses 20 %. No interval covers what was not seen. Arguments
    as for `find_unseen_share`.
    """
    unseen = find_unseen_share(count, known)
    return max(1 + margin, math.exp(-math.log1p(-_UNSEEN_LOSS) * unseen / (1 - unseen)))
