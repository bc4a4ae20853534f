"""Finds changes in a server's step times that drafting cannot explain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

import numpy as np
from numpy.typing import NDArray

from draftwise.statistics.estimate import normal_quantile, student_quantile
from draftwise.statistics.ratios import Array

_LEAST_SIDE, _LEAST_OF_FEW, _FEWEST = 4, 2, 5
"""Minimum number of readings on each side of a split, the same where there are too few for it, and in all."""
_SPLIT_ALPHA, _CLAIMED_SPLIT_ALPHA = 0.01, 0.02
_SLOPE_ALPHA, _CLAIMED_SLOPE_ALPHA, _LOSS_SLOPE_ALPHA = 0.001, 0.01, 0.05
"""Two-sided errors of calling chance a split (the largest of all: Bonferroni) or a slope, the same for a change that
leaves less than half of the claimed gain, and for such a slope of a claimed loss."""
_SLOWED_T, _CLAIMED_T, _MOST_CLAIMED = 3.0, 2.5, 2.0
"""The same for warm-up prompts, as values of t, and the multiple of a claim beyond which a change does not explain it.
"""
_LEAST_CHANGE, _LEAST_DRIFT = math.log(1.15), math.log(1.06)
"""Smallest log change that raises doubt."""
_UNREST_ALPHA, _FEWEST_UNEVEN, _MOST_OF_UNREST, _MOST_SHARED = 0.005, 12, 3.0, 2.0
"""Error of calling an even pace uneven, fewest readings, the multiple of the unevenness (a mean distance from the
median) that a ratio may owe to it (2 of what rises evenly, 1 of what is slow half of the time), and how many times as
far both may be moved by what they share."""
_FEWEST_WAVES, _MOST_OF_WAVES, _SHARED_Z = 8, 2.0, 1.5
"""Fewest blocks, the multiple of the waves' standard deviation that a claim may owe to them (1.4 from mean to trough),
and standard errors from which two arms' slow changes count as shared."""
_FASTEST, _FEWEST_GAPS, _MOST_OF_PAUSES, _MOST_LOST = 0.1, 4, 2.0, 0.9
"""Quantile of the seconds between arrivals that is no pause, fewest of them that a request tells by, the multiple of
what pauses cost that a ratio may owe to them (some are longer than a request), and the most of the time that they take.
"""
_SHARED, _SHARED_ALPHA = 0.5, 0.005
"""Share of a change that must remain after subtracting the other arm's, and the error of calling chance what remains.
In five quiet runs of eleven methods |t| of what remained was at most 2.6 where a server followed its machine; for
servers that did slow down by themselves it was above 3.7."""
_FEWEST_ANCHORS, _FEWEST_ARMS = 4, 6
"""Fewest repeated prompts, and servers whose late warm-ups tell how much chance moves them."""
_ANCHOR_ALPHA = 0.01
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceChange:
    """A change of pace during a run."""

    place: int
    """Number of readings before the change; half of them for a drift."""
    ratio: float
    """Seconds per step, after over before."""


def find_pace_change(own_T: Array, other_T: Array, *, claimed: float = math.inf) -> PaceChange | None:
    """Return the largest split in an arm's pace that the other arm does not share in the same blocks; None without one.

    Args:
        own_T: logs of the arm's seconds per decoding step, in time order.
        other_T: logs of the other arm's, in the same blocks. Pairing cancels shared changes, which are the machine's.
        claimed: log of the claimed ratio. A change may explain it.
    """
    place, t = _split(own_T)
    if not _is_split(t, len(own_T), _CLAIMED_SPLIT_ALPHA):
        return None
    own, other = (float(each[place:].mean() - each[:place].mean()) for each in (own_T, other_T))
    least = max(_LEAST_DRIFT, min(_LEAST_CHANGE, abs(claimed)))
    if not _is_split(t, len(own_T), _SPLIT_ALPHA) and not _explains(own - other, place / len(own_T), claimed):
        return None
    if abs(own) <= least or abs(own - other) <= max(least, _SHARED * abs(own)):
        return None
    apart = abs(_read_split(own_T - other_T, np.array([place]))[0])
    if apart <= student_quantile(1 - _SHARED_ALPHA / 2, len(own_T) - 2):
        return None
    return PaceChange(place=place, ratio=math.exp(own))


def find_split_apart(own_T: Array, other_T: Array, *, claimed: float) -> PaceChange | None:
    """Return the largest split between two arms' paces that explains the claim; None without one.

    Both may have slowed down, one more than the other.

    Args:
        own_T: as for `find_pace_change`; the candidate's.
        other_T: the baseline's.
        claimed: log of the claimed ratio.
    """
    apart_T = own_T - other_T
    place, t = _split(apart_T)
    if not _is_split(t, len(own_T), _CLAIMED_SPLIT_ALPHA):
        return None
    change = float(apart_T[place:].mean() - apart_T[:place].mean())
    if abs(change) <= _LEAST_DRIFT or not _explains(change, place / len(own_T), claimed):
        return None
    return PaceChange(place=place, ratio=math.exp(change))


def _explains(change: float, share: float, claimed: float) -> bool:
    """Return whether a change after a share of the blocks leaves less than half of a claim in one of the two parts."""
    favoring = share if (change > 0) is (claimed > 0) else 1 - share
    return abs(change) * favoring > abs(claimed) / 2 or abs(change) >= abs(claimed)


def _is_split(t: float, count: int, alpha: float) -> bool:
    """Return whether the largest t of all splits of a series is not chance."""
    return count >= _FEWEST and abs(t) > student_quantile(1 - alpha / 2 / len(_list_splits(count)), count - 2)


def _list_splits(count: int) -> range:
    side = _LEAST_SIDE if count >= 2 * _LEAST_SIDE else _LEAST_OF_FEW
    return range(side, count - side + 1)


def _split(series_T: Array) -> tuple[int, float]:
    """Return the split with the largest |t|, and t of the means after minus before it."""
    count = len(series_T)
    if count < _FEWEST:
        return 0, 0.0
    at_K = np.array(_list_splits(count))
    t_K = _read_split(series_T, at_K)
    best = int(np.abs(t_K).argmax())
    return int(at_K[best]), float(t_K[best])


def _read_split(series_T: Array, at_K: NDArray[np.int64]) -> Array:
    """Return [K] t of the means after minus before each place."""
    count = len(series_T)
    sums_T, squares_T = np.cumsum(series_T), np.cumsum(series_T**2)
    before_K = sums_T[at_K - 1] / at_K
    after_K = (sums_T[-1] - sums_T[at_K - 1]) / (count - at_K)
    rest_K = squares_T[-1] - at_K * before_K**2 - (count - at_K) * after_K**2
    errors_K = np.sqrt(np.maximum(rest_K, _ROUNDING) / (count - 2) * (1 / at_K + 1 / (count - at_K)))
    t_K: Array = (after_K - before_K) / errors_K
    return t_K


def find_drift_apart(own_T: Array, other_T: Array, seconds_T: Array, *, claimed: float = math.inf) -> PaceChange | None:
    """Return the linear drift between two arms' paces; None without one.

    Args:
        own_T: as for `find_pace_change`.
        other_T: as for `find_pace_change`.
        seconds_T: time of each block, ascending.
        claimed: log of the claimed ratio. A drift of half that size may explain all of it: it began before the run.
    """
    count, length = len(own_T), float(seconds_T[-1] - seconds_T[0]) if len(own_T) else 0.0
    if count < _FEWEST or length <= 0:
        return None
    along_T = (seconds_T - seconds_T[0]) / length
    along_T = along_T - along_T.mean()
    apart_T = own_T - other_T
    total = float((along_T**2).sum())
    slope = float(along_T @ apart_T) / total
    rest_T = apart_T - apart_T.mean() - slope * along_T
    error = math.sqrt(max(float((rest_T**2).sum()), _ROUNDING) / (count - 2) / total)
    least = max(_LEAST_DRIFT, min(_LEAST_CHANGE, abs(claimed) / 2))
    explaining = _CLAIMED_SLOPE_ALPHA if claimed > 0 else _LOSS_SLOPE_ALPHA
    alpha = explaining if abs(slope) >= abs(claimed) / 2 else _SLOPE_ALPHA
    if abs(slope) <= max(least, student_quantile(1 - alpha / 2, count - 2) * error):
        return None
    return PaceChange(place=count // 2, ratio=math.exp(slope))


def find_unrest(own_N: Array, other_N: Array, explained_NC: Array | None = None, *, claimed: float) -> float | None:
    """Return how many times as long the slower half of an arm's steps takes as the faster half, if its pace is less
    even than the other arm's and may explain the claimed gain; otherwise None.

    A balancer over unequal replicas, or a limit on one server, causes this. Prompts and the machine affect both arms,
    so their part is removed first (one-sided paired t test of the distances from the median: Brown and Forsythe, JASA
    1974).

    Args:
        own_N: logs of the seconds per decoding step of an arm's requests.
        other_N: logs of the other arm's, for the same requests.
        explained_NC: other covariates of `own_N`, such as draft lengths; None without any.
        claimed: log of the claimed ratio in favor of the other arm.
    """
    count = len(own_N)
    if count < _FEWEST_UNEVEN:
        return None
    known_NC = np.column_stack([np.ones(count), *(() if explained_NC is None else (explained_NC,))])
    own = own_N - known_NC @ np.linalg.lstsq(known_NC, own_N, rcond=None)[0]
    other = other_N - other_N.mean()
    own_far_N, other_far_N = (np.abs(each - np.median(each)) for each in (_without_shared(own, other), other))
    more_N = own_far_N - other_far_N
    error = max(float(more_N.std(ddof=1)), _ROUNDING) / math.sqrt(count)
    excess = math.sqrt(max(0.0, float(own_far_N.mean()) ** 2 - float(other_far_N.mean()) ** 2))
    if more_N.mean() <= student_quantile(1 - _UNREST_ALPHA, count - 1) * error or claimed > _MOST_OF_UNREST * excess:
        return None
    return math.exp(_find_halves(own))


def find_waves(own_T: Array, other_T: Array, *, claimed: float) -> float | None:
    """Return how many times as long the slower half of an arm's blocks takes by the step, if its pace rises and falls
    slowly in time, the other arm's does not, and that may explain the claimed gain; otherwise None.

    A noisy neighbor or a limit that comes and goes: no split and no line fits it. Consecutive blocks are then more
    alike than chance makes them (von Neumann's ratio, Annals of Mathematical Statistics 1941).

    Args:
        own_T: as for `find_pace_change`.
        other_T: as for `find_pace_change`.
        claimed: as for `find_unrest`.
    """
    count = len(own_T)
    if count < _FEWEST_WAVES:
        return None
    own_T, other_T = own_T - own_T.mean(), other_T - other_T.mean()
    # Successive differences take the noise away, which would hide what both share.
    both = float(own_T @ other_T) / count - float((np.diff(own_T) * np.diff(other_T)).mean()) / 2
    is_shared = both > _SHARED_Z * float(own_T.std() * other_T.std()) / math.sqrt(count)
    if not is_shared:
        own_T = _without_shared(own_T, other_T)
    variance, noise = float(own_T.var()), find_step_noise(own_T)
    alike = (1 - noise**2 / max(variance, _ROUNDING)) / math.sqrt((count - 2) / (count**2 - 1))
    slow = variance - noise**2
    if is_shared:
        others = max(_ROUNDING, float(other_T.var()) - find_step_noise(other_T) ** 2)
        followed, times = min(1.0, both / max(slow, _ROUNDING)), min(_MOST_SHARED, both / others)
        slow = min(slow * (1 - followed) ** 2, slow - 2 * times * both + times**2 * others)
    apart = math.sqrt(max(0.0, slow))
    if alike <= normal_quantile(1 - _UNREST_ALPHA) or claimed > _MOST_OF_WAVES * apart or apart < _LEAST_DRIFT:
        return None
    return math.exp(_find_halves(own_T))


def _without_shared(own_N: Array, other_N: Array) -> Array:
    """Return a series without what it shares with another one."""
    shared = min(_MOST_SHARED, max(0.0, float(other_N @ own_N) / max(float(other_N @ other_N), _ROUNDING)))
    return own_N - shared * other_N


def find_pauses(own_N: Sequence[Array], other_N: Sequence[Array], *, claimed: float) -> float | None:
    """Return how many times as long an arm's steps take for pauses within its requests, where the other arm has fewer
    and they may be all of what is claimed; None where they are not.

    A server that is throttled, swapped out or collects garbage many times a second, say: every request has its share of
    it. Lost is what is slower than the fastest tenth of a request, by the step and in all: what the client adds to each
    arrival, and what the prompts of others add to a request, both arms have.

    Args:
        own_N: seconds between arrivals, of requests of an arm.
        other_N: those of the other arm for the same requests.
        claimed: as for `find_unrest`.
    """
    pairs = zip(own_N, other_N, strict=True)
    lost_N = np.array([_compare_pauses(*pair) for pair in pairs if min(map(len, pair)) >= _FEWEST_GAPS])
    count = len(lost_N)
    if count < _FEWEST_UNEVEN:
        return None
    share, error = min(_MOST_LOST, float(lost_N.mean())), float(lost_N.std(ddof=1)) / math.sqrt(count)
    if share <= student_quantile(1 - _UNREST_ALPHA, count - 1) * max(error, _ROUNDING):
        return None
    return 1 / (1 - share) if claimed <= -_MOST_OF_PAUSES * math.log1p(-share) else None


def _compare_pauses(own: Array, other: Array) -> float:
    """Return the share of a request's time that is lost to more pauses than the other arm has."""
    lost, others = (float(gaps.mean()) - _find_fastest(np.sort(gaps)) for gaps in (own, other))
    return min(lost - others, lost - others * len(other) / len(own)) / float(own.mean())


def _find_fastest(sorted_N: Array) -> float:
    """Return what `np.quantile` does, to the bit, in a tenth of its time: a run has thousands of requests."""
    place, part = divmod(_FASTEST * (len(sorted_N) - 1), 1)
    low, high = float(sorted_N[int(place)]), float(sorted_N[min(int(place) + 1, len(sorted_N) - 1)])
    return low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)


def _find_halves(series_T: Array) -> float:
    """Return the mean of the larger half of a series minus that of the others."""
    ordered_T, half = np.sort(series_T), len(series_T) // 2
    return float(ordered_T[half:].mean() - ordered_T[:half].mean())


def find_step_noise(series_T: Array) -> float:
    """Return the standard deviation of a series without what changes slowly in it (von Neumann, Annals of Mathematical
    Statistics 1941)."""
    return math.sqrt(float((np.diff(series_T) ** 2).mean()) / 2)


def has_slowed(own: float, other: float, error: float, *, claimed: float = math.inf) -> bool:
    """Return whether a server takes longer for the same than before the run, and more so than the other one: by 15 %,
    or by half of what is claimed.

    Args:
        own: logarithm of its seconds of a step after over before.
        other: that of the other server.
        error: standard error of the difference of the two.
        claimed: log of the claimed ratio.
    """
    least = max(_LEAST_DRIFT, min(_LEAST_CHANGE, abs(claimed)))
    explains = 0.5 < (own - other) / max(abs(claimed), _ROUNDING) < _MOST_CLAIMED
    return own > least and own - other > max(least, (_CLAIMED_T if explains else _SLOWED_T) * error)


def find_warm_noise(changes: Sequence[float]) -> float:
    """Return the standard deviation of the difference of two servers' changes since their warm-up, by what most of the
    run's servers show (median distance from the median); 0 of too few.

    Args:
        changes: logarithm of the seconds of a step after over before, of each server.
    """
    if len(changes) < _FEWEST_ARMS:
        return 0.0
    return math.sqrt(2) * median(abs(each - median(changes)) for each in changes) / normal_quantile(0.75)


def has_moved(differences: Sequence[float]) -> bool:
    """Return whether repeated prompts gain differently than before (t test of late minus early, 1 %).

    These differences exclude the spread between prompts. A mean change below 15 % raises no doubt.
    """
    if len(differences) < _FEWEST_ANCHORS or abs(fmean(differences)) <= _LEAST_CHANGE:
        return False
    error = stdev(differences) / math.sqrt(len(differences))
    return abs(fmean(differences)) > student_quantile(1 - _ANCHOR_ALPHA / 2, len(differences) - 1) * error
