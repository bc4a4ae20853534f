"""The load at which a candidate stops paying, from speed-ups measured at a few loads, and where to measure next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from draftwise.measure.statistics.design import Array
from draftwise.measure.statistics.estimate import CONFIDENCE, Estimate

__all__ = ["Crossing", "LoadPoint", "find_crossing", "next_load"]

_DRAWS = 4000
_FEWEST_SHARED = 3
_LEAST_VARIANCE = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPoint:
    """A speed-up measured under a load: concurrency, or requests per second."""

    load: float
    estimate: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Where the speed-up falls through 1."""

    value: float | None
    """None where it lies outside the measured loads."""
    low: float
    """Lower end of the 95 % interval; the smallest load measured where even that may not pay."""
    high: float
    """Upper end; infinite where the largest load measured may still pay."""


def find_crossing(points: Sequence[LoadPoint], *, confidence: float = CONFIDENCE, seed: int = 0) -> Crossing | None:
    """Return where the speed-up is 1, on a falling line through the measured speed-ups over the logarithm of the load.

    The line is the falling sequence closest to the speed-ups (isotonic regression, weighted by their certainty), with
    straight pieces between loads. Its interval comes from redrawing all speed-ups together: prompts that gain more at
    one load do so at the next, so what prompts add to the error is common to neighbouring loads and does not average
    out (covariance of the prompts' ratios); the luck of turns is each load's own. None without a point of known error.
    """
    known = sorted((p for p in points if math.isfinite(p.estimate.spread.variance)), key=lambda point: point.load)
    if not known:
        return None
    x_K = np.log([point.load for point in known])
    logs_K = np.array([point.estimate.log for point in known])
    covariance_KK = _covariance(known)
    weight_K = 1 / np.diag(covariance_KK)
    value = float(_roots(x_K, _fall(logs_K[None, :], weight_K))[0])
    roots_B = np.sort(_roots(x_K, _fall(_redraw(known, logs_K, covariance_KK, seed), weight_K)))
    low, high = (float(roots_B[int(share * (_DRAWS - 1))]) for share in ((1 - confidence) / 2, (1 + confidence) / 2))
    return Crossing(
        value=math.exp(value) if math.isfinite(value) else None,
        low=float(max(known[0].load, math.exp(low)) if low < math.inf else known[-1].load),
        high=float(math.exp(high) if high > -math.inf else known[0].load),
    )


def next_load(
    points: Sequence[LoadPoint],
    *,
    within: float = 1.25,
    integer: bool = True,
    least: float = 1.0,
    most: float = math.inf,
) -> float | None:
    """Return the load whose measurement tells most about the crossing; None when it is known well enough.

    Well enough: its interval's ends are within a factor of each other and the measured loads around it within twice
    that (a straight line between far loads is only a guess), or no other whole number lies between. Outside the
    measured loads it doubles or halves, up to `most` or down to `least`.
    """
    crossing = find_crossing(points)
    if crossing is None:
        return None
    loads = sorted({point.load for point in points})
    if math.isinf(crossing.high) and 2 * loads[-1] <= most:
        return 2 * loads[-1]
    if crossing.low <= loads[0] and loads[0] / 2 >= least:
        return math.floor(loads[0] / 2) if integer else loads[0] / 2
    if crossing.value is None:
        return None
    below, above = _neighbours(loads, crossing.value)
    if crossing.high <= within * crossing.low and above <= 2 * within * below:
        return None
    ends = (max(crossing.low, loads[0]), min(crossing.high, loads[-1]))
    wanted = [crossing.value, *(math.sqrt(crossing.value * end) for end in ends)]
    return next((load for each in wanted if (load := _free(each, loads, within, integer)) is not None), None)


def _neighbours(loads: Sequence[float], value: float) -> tuple[float, float]:
    """Return the measured loads around a value."""
    return next(((a, b) for a, b in pairwise(loads) if a <= value <= b), (loads[0], loads[-1]))


def _free(wanted: float, loads: Sequence[float], within: float, integer: bool) -> float | None:
    """Return the load if nothing as good as it has been measured yet."""
    if integer:
        near = sorted({math.floor(wanted), math.ceil(wanted)}, key=lambda whole: abs(math.log(whole / wanted)))
        return next((float(whole) for whole in near if whole not in loads), None)
    return wanted if all(abs(math.log(wanted / load)) > math.log(within) / 4 for load in loads) else None


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


def _shared(one: Estimate, other: Estimate) -> float:
    """Return the covariance that two speed-ups have by their common prompts."""
    common = one.log_by_prompt.keys() & other.log_by_prompt.keys()
    if len(common) < _FEWEST_SHARED:
        return 0.0
    logs = [[each.log_by_prompt[prompt] for prompt in common] for each in (one, other)]
    return float(np.cov(logs)[0, 1]) / max(len(one.log_by_prompt), len(other.log_by_prompt))


def _redraw(points: Sequence[LoadPoint], logs_K: Array, covariance_KK: Array, seed: int) -> Array:
    """Return [B, K] speed-ups as they might have come out, with the tails of Student's t."""
    rng = np.random.default_rng(seed)
    normal_BK = rng.multivariate_normal(np.zeros(len(points)), covariance_KK, size=_DRAWS, method="eigh")
    degrees_K = np.array([point.estimate.spread.degrees for point in points])
    return np.asarray(logs_K + normal_BK * np.sqrt(degrees_K / rng.chisquare(degrees_K, (_DRAWS, len(points)))))


def _fall(logs_BK: Array, weight_K: Array) -> Array:
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


def _roots(x_K: Array, falling_BK: Array) -> Array:
    """Return [B] where falling lines cross 0: minus infinity before the first point, infinity after the last."""
    num_above_B = (falling_BK > 0).sum(axis=1)
    after_B = np.clip(num_above_B, 1, max(1, len(x_K) - 1))
    if len(x_K) == 1:
        return np.where(num_above_B == 0, -math.inf, math.inf)
    rows_B = np.arange(len(falling_BK))
    high_B, low_B = falling_BK[rows_B, after_B - 1], falling_BK[rows_B, after_B]
    gap_B = np.where(high_B > low_B, high_B - low_B, 1.0)
    roots_B = x_K[after_B - 1] + (x_K[after_B] - x_K[after_B - 1]) * high_B / gap_B
    roots_B = np.where(num_above_B == 0, -math.inf, roots_B)
    return np.asarray(np.where(num_above_B == len(x_K), math.inf, roots_B))
