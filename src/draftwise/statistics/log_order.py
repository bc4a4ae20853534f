"""Analyzes the gain on a log itself: whether it depends on the order, and its interval for the log's prompts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

import numpy as np

from draftwise.core import Interval
from draftwise.statistics.estimate import CONFIDENCE, RatioEstimate, student_quantile
from draftwise.statistics.ratios import Array

_FEWEST = 15
"""Minimum number of prompts to search for a break."""
_PERMUTATIONS, _MOST_BEYOND = 199, 1
"""Number of random orders, and how many may have as large a break (1 % error)."""
_FEWEST_ANCHORS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderBreak:
    """A place in the log after which prompts gain differently."""

    place: int
    """Number of measured prompts before it."""
    before: float
    """Ratio of the (geometric) mean prompt before it."""
    after: float


def find_order_break(logs_N: Array) -> OrderBreak | None:
    """Return the largest break of gains in log order; None if chance explains it.

    Compares the largest cumulative deviation from the mean (CUSUM) with those of random orders.

    Args:
        logs_N: log ratio of each prompt, in the order of the log.
    """
    if len(logs_N) < _FEWEST:
        return None
    deviations_N = logs_N - logs_N.mean()
    rng = np.random.default_rng(len(logs_N))
    orders_PN = rng.permuted(np.tile(deviations_N, (_PERMUTATIONS, 1)), axis=1)
    sums_N = np.abs(np.cumsum(deviations_N))
    place = int(sums_N[:-1].argmax()) + 1
    beyond = int((np.abs(np.cumsum(orders_PN, axis=1)).max(axis=1) >= sums_N[place - 1]).sum())
    if beyond > _MOST_BEYOND or not deviations_N.any():
        return None
    before, after = (math.exp(float(part.mean())) for part in (logs_N[:place], logs_N[place:]))
    return OrderBreak(place=place, before=before, after=after)


def bound_log_itself(estimate: RatioEstimate, changes: Sequence[float], population: int) -> Interval | None:
    """Return a ratio's interval for the log's own prompts; None if too few of them were measured.

    An interval for traffic like the log allows for other prompts. For the log itself, with at least half of it
    measured, only the remaining prompts and the noise of each request are uncertain.

    Args:
        estimate: estimate over prompts measured once each.
        changes: changes of the log ratio of repeated prompts, which show the noise.
        population: number of prompts in the log.
    """
    count = len(estimate.log_by_prompt)
    if len(changes) < _FEWEST_ANCHORS or not 2 <= count <= population <= 2 * count:
        return None
    noise = variance(changes, fmean(changes)) / 2
    between = max(0.0, min(variance(estimate.log_by_prompt.values()), count * estimate.spread.variance) - noise)
    error = math.sqrt(max(estimate.spread.variance - between / population, noise / count))
    degrees = len(changes) - 1 if count == population else estimate.spread.degrees
    reach = student_quantile((1 + CONFIDENCE) / 2, degrees) * error
    return Interval(
        value=math.exp(estimate.log), low=math.exp(estimate.log - reach), high=math.exp(estimate.log + reach)
    )
