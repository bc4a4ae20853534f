"""Finds the load at which a candidate stops paying, from speed-ups at a few loads, and the load to measure next.

Shape letters: B curves, K points.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from draftwise.statistics.estimate import CONFIDENCE, RatioEstimate
from draftwise.statistics.ratios import Array

_DRAWS = 4000
_FEWEST_SHARED = 3
_LEAST_VARIANCE = 1e-12
_LEAST_SHARE = 1e-4
_WORTH = 0.9
_NEAR = 2.0
"""Largest factor between loads over which a smooth curve is trusted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPoint:
    """A speed-up measured under a load (concurrency or requests per second)."""

    load: float
    estimate: RatioEstimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """The load at which the speed-up falls below 1."""

    value: float | None
    """The load; None if it lies outside the measured loads."""
    low: float
    """Lower end of the 95 % interval; the smallest measured load if even that may not pay."""
    high: float
    """Upper end; infinite if the largest measured load may still pay."""


def find_crossing(points: Sequence[LoadPoint]) -> Crossing | None:
    """Return where a falling curve through the measured speed-ups, over the log of the load, reaches 1.

    The curve is an isotonic regression of the speed-ups, weighted by their certainty, with monotone cubic pieces
    between loads. The interval comes from redrawing all speed-ups jointly: prompts that gain more at one load do so at
    the next, so their error is shared by neighboring loads (covariance of the prompts' ratios), while errors of paired
    blocks are independent per load. The interval also covers straight pieces, over the load and its log. Between loads
    more than a factor of 2 apart it covers the whole gap, because a curve with a knee (a batch that begins to fill the
    device) is only known to fall. None without a point with a known error.
    """
    known = sorted((p for p in points if math.isfinite(p.estimate.spread.variance)), key=lambda point: point.load)
    if not known:
        return None
    load_K = np.array([point.load for point in known], dtype=np.float64)
    logs_K = np.array([point.estimate.log for point in known])
    covariance_KK = _covariance(known)
    weight_K = 1 / np.diag(covariance_KK)
    value = math.exp(_cross_zero(np.log(load_K), _fit_falling(logs_K[None, :], weight_K))[0])
    drawn_BK = _fit_falling(_redraw(known, logs_K, covariance_KK), weight_K)
    ends = [_interval(roots_B, known[0].load) for roots_B in _find_roots(load_K, drawn_BK)]
    return Crossing(
        value=value if 0 < value < math.inf else None,
        low=min(known[-1].load, *(low for low, _ in ends)),
        high=max(high for _, high in ends),
    )


def _find_roots(load_K: Array, drawn_BK: Array) -> Iterator[Array]:
    """Yield [B] the loads at which curves cross, for each idea of how they run between the measured loads."""
    smooth_B = np.exp(_cross_zero(np.log(load_K), drawn_BK))
    yield smooth_B
    yield np.exp(_cross_zero(np.log(load_K), drawn_BK, straight=True))
    yield _cross_zero(load_K, drawn_BK, straight=True)
    below_B, above_B = _find_brackets(load_K, drawn_BK)
    far_B = (below_B > 0) & (above_B > _NEAR * below_B) & (above_B < math.inf)
    yield np.where(far_B, below_B, smooth_B)
    yield np.where(far_B, above_B, smooth_B)


def _interval(roots_B: Array, smallest: float) -> tuple[float, float]:
    """Return the ends between which the draws lie, none of them below the smallest load."""
    ordered_B = np.maximum(np.sort(roots_B), smallest)
    low, high = (ordered_B[int(share * (_DRAWS - 1))] for share in ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return float(low), float(high)


def next_load(
    points: Sequence[LoadPoint],
    *,
    within: float = 1.25,
    integer: bool = True,
    least: float = 1.0,
    most: float = math.inf,
) -> float | None:
    """Return the load whose measurement narrows the crossing most; None once it is known well enough.

    It is known well enough if the interval's ends are within a given factor, if measured loads are next to everything
    between them, or if one more measurement as certain as its neighbors would narrow the interval by less than a tenth.
    In the last case, more prompts or repetitions would help, not more loads. Between distant loads, the next load is
    their geometric mean; outside the measured ones, it doubles or halves, up to `most` or down to `least`.
    """
    crossing = find_crossing(points)
    if crossing is None:
        return None
    known = {point.load: point for point in points if math.isfinite(point.estimate.spread.variance)}
    loads = sorted(known)
    if math.isinf(crossing.high) and 2 * loads[-1] <= most:
        return 2 * loads[-1]
    if known[loads[0]].estimate.interval().low <= 1 and loads[0] / 2 >= least:
        return math.floor(loads[0] / 2) if integer else loads[0] / 2
    if crossing.value is None or crossing.high <= within * crossing.low:
        return None
    below, above = _around(loads, crossing.value)
    if above > _NEAR * below:
        return _free(math.sqrt(below * above), loads, within, integer)
    ends = (max(crossing.low, loads[0]), min(crossing.high, loads[-1]))
    wanted = [crossing.value, *(math.sqrt(crossing.value * end) for end in ends)]
    free = (load for each in wanted if (load := _free(each, loads, within, integer)) is not None)
    return next((load for load in free if _narrows(known, load, crossing)), None)


def _around(loads: Sequence[float], load: float) -> tuple[float, float]:
    """Return the measured loads around a load."""
    return next((pair for pair in pairwise(loads) if pair[0] <= load <= pair[1]), (loads[0], loads[-1]))


def _free(wanted: float, loads: Sequence[float], within: float, integer: bool) -> float | None:
    """Return the load, or the nearest whole number, if nothing as good as it has been measured yet."""
    near = [wanted]
    if integer:
        near = sorted({math.floor(wanted), math.ceil(wanted)}, key=lambda whole: abs(math.log(whole / wanted)))
    far = math.log(within) / 4
    return next((float(each) for each in near if all(abs(math.log(each / load)) > far for load in loads)), None)


def _narrows(known: Mapping[float, LoadPoint], load: float, crossing: Crossing) -> bool:
    """Return whether the interval would shrink by a tenth if that load turned out as its neighbors suggest."""
    below, above = (known[each] for each in _around(sorted(known), load))
    part = math.log(load / below.load) / math.log(above.load / below.load)
    expected = find_crossing(
        [*known.values(), LoadPoint(load=load, estimate=_between(below.estimate, above.estimate, part))]
    )
    return expected is not None and _width(expected) < _WORTH * _width(crossing)


def _between(below: RatioEstimate, above: RatioEstimate, part: float) -> RatioEstimate:
    """Return the estimate to expect between two others, so much of the way."""
    by_prompt = {
        prompt: (1 - part) * log + part * above.log_by_prompt[prompt]
        for prompt, log in below.log_by_prompt.items()
        if prompt in above.log_by_prompt
    }
    larger = max(below.spread, above.spread, key=lambda spread: spread.variance)
    return RatioEstimate(log=(1 - part) * below.log + part * above.log, spread=larger, log_by_prompt=by_prompt)


def _width(crossing: Crossing) -> float:
    return math.log(crossing.high / crossing.low)


def _covariance(points: Sequence[LoadPoint]) -> Array:
    """Return [K, K] the covariance of the speed-ups' logarithms."""
    size = len(points)
    found_KK = np.zeros((size, size))
    for i, one in enumerate(points):
        found_KK[i, i] = max(one.estimate.spread.variance, _LEAST_VARIANCE)
        for j in range(i):
            found_KK[i, j] = found_KK[j, i] = _shared(one.estimate, points[j].estimate)
    values, vectors = np.linalg.eigh(found_KK)
    return np.asarray(vectors * np.maximum(values, _LEAST_VARIANCE) @ vectors.T)


def _shared(one: RatioEstimate, other: RatioEstimate) -> float:
    """Return the covariance that two speed-ups have by their common prompts."""
    common = [prompt for prompt in one.log_by_prompt if prompt in other.log_by_prompt]
    if len(common) < _FEWEST_SHARED:
        return 0.0
    logs = [[each.log_by_prompt[prompt] for prompt in common] for each in (one, other)]
    return float(np.cov(logs)[0, 1]) / max(len(one.log_by_prompt), len(other.log_by_prompt))


def _redraw(points: Sequence[LoadPoint], logs_K: Array, covariance_KK: Array) -> Array:
    """Return [B, K] speed-ups as they might have come out, with the tails of Student's t.

    Where the spread of the prompts was underestimated, it was so at all loads: one quantile of the chi-square
    distribution for all of them (by Wilson and Hilferty's cube, PNAS 1931).
    """
    rng = np.random.default_rng(0)
    normal_BK = rng.multivariate_normal(np.zeros(len(points)), covariance_KK, size=_DRAWS, method="eigh")
    part_K = 2 / (9 * np.array([point.estimate.spread.degrees for point in points]))
    share_BK = (1 - part_K + np.sqrt(part_K) * rng.standard_normal((_DRAWS, 1))) ** 3
    return np.asarray(logs_K + normal_BK / np.sqrt(np.maximum(share_BK, _LEAST_SHARE)))


def _fit_falling(logs_BK: Array, weight_K: Array) -> Array:
    """Return [B, K] the falling sequences closest to given ones (min-max formula of isotonic regression)."""
    size = logs_BK.shape[1]
    sums_BK = np.concatenate([np.zeros((len(logs_BK), 1)), np.cumsum(logs_BK * weight_K, axis=1)], axis=1)
    mass_K = np.concatenate([[0.0], np.cumsum(weight_K)])
    fitted_BK = np.full_like(logs_BK, math.inf)
    for first in range(size):
        means_BK = (sums_BK[:, first + 1 :] - sums_BK[:, [first]]) / (mass_K[first + 1 :] - mass_K[first])
        highest_BK = np.maximum.accumulate(means_BK[:, ::-1], axis=1)[:, ::-1]
        fitted_BK[:, first:] = np.minimum(fitted_BK[:, first:], highest_BK)
    return fitted_BK


def _find_brackets(x_K: Array, falling_BK: Array) -> tuple[Array, Array]:
    """Return [B] the last point at which falling curves lie above 0, and [B] the first at which they do not.

    Minus infinity and infinity without one.
    """
    num_above_B = (falling_BK > 0).sum(axis=1)
    edges = np.concatenate([[-math.inf], x_K, [math.inf]])
    return edges[num_above_B], edges[num_above_B + 1]


def _cross_zero(x_K: Array, falling_BK: Array, *, straight: bool = False) -> Array:
    """Return [B] where falling curves cross 0: minus infinity before the first point, infinity after the last.

    Between points they are monotone cubics, or straight.
    """
    num_above_B = (falling_BK > 0).sum(axis=1)
    outside_B = np.where(num_above_B == 0, -math.inf, math.inf)
    if len(x_K) == 1:
        return outside_B
    last_B = np.clip(num_above_B, 1, len(x_K) - 1)
    inside_B = (num_above_B > 0) & (num_above_B < len(x_K))
    rows_B = np.arange(len(falling_BK))
    ends_2B = np.stack([falling_BK[rows_B, last_B - 1], falling_BK[rows_B, last_B]])
    width_B = x_K[last_B] - x_K[last_B - 1]
    if straight:
        fall_B = ends_2B[0] - ends_2B[1]
        part_B = ends_2B[0] / np.where(fall_B > 0, fall_B, 1.0)
    else:
        slopes_BK = _slopes(x_K, falling_BK)
        part_B = _cross(ends_2B, np.stack([slopes_BK[rows_B, last_B - 1], slopes_BK[rows_B, last_B]]) * width_B)
    return np.where(inside_B, x_K[last_B - 1] + width_B * part_B, outside_B)


def _cross(ends_2B: Array, rises_2B: Array) -> Array:
    """Return [B] where cubics of given ends and slopes cross 0, as a part of the way, by bisection."""
    low_B, high_B = np.zeros(ends_2B.shape[1]), np.ones(ends_2B.shape[1])
    for _ in range(30):
        t_B = (low_B + high_B) / 2
        u_B = 1 - t_B
        first_B = u_B**2 * ((1 + 2 * t_B) * ends_2B[0] + t_B * rises_2B[0])
        height_B = first_B + t_B**2 * ((3 - 2 * t_B) * ends_2B[1] - u_B * rises_2B[1])
        low_B, high_B = np.where(height_B > 0, t_B, low_B), np.where(height_B > 0, high_B, t_B)
    return high_B


def _slopes(x_K: Array, y_BK: Array) -> Array:
    """Return [B, K] slopes with which cubic pieces stay monotone (Fritsch and Butland, SIAM J. Sci. Comput. 1984)."""
    step_K = np.diff(x_K)
    secant_BK = np.diff(y_BK, axis=1) / step_K
    slopes_BK = np.empty_like(y_BK)
    slopes_BK[:, 0], slopes_BK[:, -1] = secant_BK[:, 0], secant_BK[:, -1]
    before_BK, after_BK = secant_BK[:, :-1], secant_BK[:, 1:]
    weight_K = (step_K[:-1] + 2 * step_K[1:]) / (3 * (step_K[:-1] + step_K[1:]))
    mixed_BK = weight_K * after_BK + (1 - weight_K) * before_BK
    product_BK = before_BK * after_BK
    slopes_BK[:, 1:-1] = np.where(product_BK > 0, product_BK / np.where(mixed_BK == 0, 1.0, mixed_BK), 0.0)
    return slopes_BK
