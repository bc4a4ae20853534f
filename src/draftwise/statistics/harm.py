"""Guards against harm that a gain may hide: to first tokens, in the tail, to prompts that were not drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from draftwise.statistics.estimate import RatioEstimate, beta_quantile, upper_student_quantile
from draftwise.statistics.ratios import Array

_ALPHA = 0.05
"""One-sided, of each answer of a guard."""
FEWEST_FOR = {50: 5, 90: 29, 95: 59, 99: 299}
"""Requests from which a percentile has an upper end: 1 - share^n is 95 % at least (5 for P50)."""
_SLOW = 1.1
"""Times plain's P90, from where a request is slow."""
_SLOW_SHARE = 0.10
"""Share of the requests that are slow when nothing is harmed."""
_HARMED_SHARE = 0.20
"""Share that has to be excluded."""
_UNSEEN_LOSS = 0.2
"""What a kind of prompt that was not drawn is taken to lose."""
_Z_FOR_POWER = 6.2
"""(1.645 + 0.84)^2: for 80 % power of a one-sided 5 % test."""


class Guard(StrEnum):
    """What is known of a harm."""

    HARM = "harm"
    EXCLUDED = "excluded"
    NO_POWER = "no power"
    """Neither is shown: it decides nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardReading:
    """A guard's answer with the numbers that it rests on."""

    answer: Guard
    value: float
    """A ratio of times, or a share of the requests."""
    count: int
    """Prompts or requests."""
    needed: int
    """How many would exclude a harm that is not there 8 times in 10; 0 where the answer is known."""


def guard_delay(ratio: RatioEstimate, limit: float) -> GuardReading:
    """Return whether times to the first token grow by more than `limit` (a ratio over 1), candidate over baseline."""
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
    """Return whether more of the candidate's requests are slow than of plain's; None without readings.

    Slow is longer than 1.1 times plain's P90. A ratio of extreme percentiles says nothing of harm: drafts are accepted
    by chance, which spreads the time per token also where every request gains.

    Args:
        candidate_R: seconds per token, request by request.
        baseline_R: likewise.
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


def find_unseen_share(count: int) -> float:
    """Return how large a share of the traffic a kind of prompt may have of which `count` drawn ones show nothing.

    95 % sure: 39 % with 6 prompts, 5 % with 60.
    """
    return 1 - math.exp(math.log(_ALPHA) / count)


def find_bar(count: int, margin: float) -> float:
    """Return the ratio that the lower end of an interval must clear for an adoption on this many prompts.

    It would still be a gain if a kind of prompt that was not drawn lost 20 %: no interval holds what was not seen.
    """
    unseen = find_unseen_share(count)
    return max(1 + margin, math.exp(-math.log1p(-_UNSEEN_LOSS) * unseen / (1 - unseen)))
