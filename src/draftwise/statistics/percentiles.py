"""Ratios of percentiles over requests, P50 to P99, with intervals over prompts and paired blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from draftwise.core import Interval
from draftwise.statistics.estimate import CONFIDENCE, RatioEstimate, Spread, normal_quantile, student_quantile, to_ratio
from draftwise.statistics.ratios import Array, Design, Integers, find_spread

PERCENTILES = (50, 90, 95, 99)
_RESAMPLES = 10_000
_ENOUGH = 8.0
"""Minimum number of independent readings beyond a percentile to treat the curve of readings as straight around it."""
_SHORTEST_S = 1e-9


def percentile_ratios(
    candidate_N: Sequence[Sequence[float]],
    baseline_N: Sequence[Sequence[float]],
    design: Design,
    *,
    percentiles: Sequence[int] = PERCENTILES,
    confidence: float = CONFIDENCE,
) -> dict[int, Interval]:
    """Return candidate / baseline for percentiles over all readings; empty if an arm has no readings.

    A percentile's error follows from that of the share of readings below it, which is a simple mean (Woodruff,
    "Confidence intervals for medians and other position measures", JASA 1952; with clusters Francisco and Fuller,
    Annals of Statistics 1991). With 8 or more independent readings beyond the percentile, the slope of the readings
    converts that error. With fewer, both arms' shares are drawn jointly 10,000 times (the prompts are the same) and
    looked up in the sorted readings. An interval that reaches beyond the extreme reading is unbounded: 100 requests do
    not show how bad P99 can be.

    Args:
        candidate_N: readings in seconds, one or more per request of the design; empty for a request without an answer.
        baseline_N: the same for the baseline.
    """
    candidate, baseline = _Samples(candidate_N), _Samples(baseline_N)
    if not len(candidate) or not len(baseline):
        return {}
    return {each: _ratio(candidate, baseline, design, each / 100, confidence) for each in percentiles}


def _ratio(candidate: _Samples, baseline: _Samples, design: Design, share: float, confidence: float) -> Interval:
    arms = (candidate, baseline)
    log = candidate.log_at(share) - baseline.log_at(share)
    influences = [arm.influence(share) for arm in arms]
    spreads = [find_spread(influence_N, design) for influence_N in influences]
    if any(math.isinf(each.variance) for each in spreads):
        return Interval(value=to_ratio(log), low=0.0, high=math.inf)
    beyond = min(share, 1 - share)
    slopes = [_slope(arm, share, each.error) for arm, each in zip(arms, spreads, strict=True)]
    is_enough = all(share * (1 - share) * beyond >= _ENOUGH * each.variance for each in spreads)
    # Few prompts may agree on a share so well that its error is nothing, and yet all lie on one side of it.
    if is_enough and all(map(math.isfinite, slopes)):
        moved_N = slopes[1] * influences[1] - slopes[0] * influences[0]
        return RatioEstimate(log=log, spread=find_spread(moved_N, design)).interval(confidence)
    together = find_spread(influences[0] - influences[1], design)
    low, high = _draw(arms, share, spreads, together, confidence)
    return Interval(value=to_ratio(log), low=to_ratio(low), high=to_ratio(high))


def _slope(arm: _Samples, share: float, error: float) -> float:
    """Return by how much the logarithm of a percentile grows with the share, seen over one standard error.

    Infinite where that reaches beyond the extreme readings.
    """
    low, high = arm.logs_at(np.array([share - error, share + error]))
    if math.isinf(low) or math.isinf(high):
        return math.inf
    return float(high - low) / (2 * error) if error else 0.0


def _draw(
    arms: Sequence[_Samples], share: float, spreads: Sequence[Spread], together: Spread, confidence: float
) -> tuple[float, float]:
    """Return the ends of the interval of the log ratio, from draws of both arms' shares."""
    errors = [each.error for each in spreads]
    common = (sum(each.variance for each in spreads) - together.variance) / 2
    alike = max(-1.0, min(1.0, common / (errors[0] * errors[1]))) if all(errors) else 0.0
    upper = (1 + confidence) / 2
    stretch = student_quantile(upper, min(each.degrees for each in spreads)) / normal_quantile(upper)
    first_B, second_B = _draw_normals()
    drawn = (first_B, alike * first_B + math.sqrt(1 - alike**2) * second_B)
    ours_B, theirs_B = (
        arm.logs_at(_shift(share, stretch * error * z_B)) for arm, error, z_B in zip(arms, errors, drawn, strict=True)
    )
    seen_B = np.isfinite(ours_B) & np.isfinite(theirs_B)
    seen_S = np.sort(ours_B[seen_B] - theirs_B[seen_B])
    lowest, highest = int((1 - upper) * _RESAMPLES), int(upper * _RESAMPLES)
    num_unseen = _RESAMPLES - len(seen_S)  # whichever end is asked for, they lie beyond it
    low = seen_S[lowest - num_unseen] if lowest >= num_unseen else -math.inf
    high = seen_S[highest] if highest < len(seen_S) else math.inf
    return float(low), float(high)


@cache
def _draw_normals() -> tuple[Array, Array]:
    """Return [B] and [B] independent normal numbers, the same ones every time.

    The first ones ascend: what is looked up for them in sorted readings then lies next to the last lookup.
    """
    drawn_BA = np.random.default_rng(0).standard_normal((_RESAMPLES, 2))
    drawn_BA = drawn_BA[drawn_BA[:, 0].argsort()]
    return drawn_BA[:, 0].copy(), drawn_BA[:, 1].copy()


def _shift(share: float, by_B: Array) -> Array:
    """Return [B] shares moved by so much, on the logistic scale: they stay between 0 and 1."""
    logits_B = math.log(share / (1 - share)) + by_B / (share * (1 - share))
    return np.asarray(1 / (1 + np.exp(-np.clip(logits_B, -700, 700))))


class _Samples:
    """An arm's readings in seconds, one or many of each request.

    Args:
        per_request: in the order of the design; empty for requests without an answer.
    """

    def __init__(self, per_request: Sequence[Sequence[float]]) -> None:
        self._num_N: Integers = np.array([len(values) for values in per_request], dtype=np.int64)
        values_M = np.concatenate([np.asarray(values, dtype=np.float64) for values in per_request])
        order_M = np.argsort(values_M)
        self._logs_M: Array = np.log(np.maximum(values_M[order_M], _SHORTEST_S))
        self._request_M: Integers = np.repeat(np.arange(len(self._num_N)), self._num_N)[order_M]
        self._place_M: Array = (np.arange(len(values_M)) + 0.5) / max(1, len(values_M))

    def __len__(self) -> int:
        return len(self._logs_M)

    def log_at(self, share: float) -> float:
        """Return the log of the value below which a share of the readings lies."""
        place = share * (len(self) - 1)
        low, high = self._logs_M[math.floor(place)], self._logs_M[math.ceil(place)]
        return float(low + (high - low) * (place - math.floor(place)))

    def logs_at(self, shares_B: Array) -> Array:
        """Return [B] such logs; infinite beyond the smallest and the largest reading."""
        return np.interp(shares_B, self._place_M, self._logs_M, left=-math.inf, right=math.inf)

    def influence(self, share: float) -> Array:
        """Return [N] the influence of each request on the share of readings below that value."""
        below = int(np.searchsorted(self._logs_M, self.log_at(share), side="right"))
        below_N = np.bincount(self._request_M[:below], minlength=len(self._num_N))
        return np.asarray((below_N - self._num_N * (below / len(self))) / len(self))
