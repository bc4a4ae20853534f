"""Significance with many looks and many comparisons: no more false verdicts than with one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

import numpy as np

from draftwise.core import Interval
from draftwise.statistics.estimate import CONFIDENCE, RatioEstimate, normal_quantile, upper_normal_tail
from draftwise.statistics.ratios import Array

_GRID = 101
"""Points over which the paths that have not stopped yet are followed."""
_SMALLEST = 1e-12
"""Errors are followed down to here."""
_NO_PROBABILITY = 1e-300
_FEWEST_BLOCKS = 4
_MANY, _POSSIBLE = 6, 0.8
"""Number of comparisons from which on those with a larger one-sided p-value do not count, and that p-value."""
_BEFORE_END = 0.95
"""Share of the plan that a look before the end counts for at most."""


class Conclusion(StrEnum):
    """What an interval says, when it says anything."""

    FASTER = "faster"
    """All of it above 1 + margin."""
    SLOWER = "slower"
    """All of it below 1, the estimate below 1 - margin."""
    EQUAL = "equal"
    """All of it within the margin around 1."""


def conclude(interval: Interval, margin: float) -> Conclusion | None:
    """Return what an interval of a speed-up says; None while it is too wide to say anything."""
    if interval.low > 1 + margin:
        return Conclusion.FASTER
    if interval.high < 1 and interval.value <= 1 - margin:
        return Conclusion.SLOWER
    if 1 - margin < interval.low and interval.high < 1 + margin:
        return Conclusion.EQUAL
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """When a comparison was looked at with the intention to stop it, in pairs of readings, and how many were planned.

    Group-sequential testing: an error that is spent bit by bit (Lan and DeMets, "Discrete sequential boundaries for
    clinical trials", Biometrika 1983), O'Brien-Fleming-like: little early, almost all of it at the end. A comparison
    that was never looked at so has the whole of it at its end.
    """

    pairs: tuple[int, ...] = ()
    """Pairs at each look so far, ascending."""
    planned: int = 1
    """Pairs planned, by the first forecast and never by results."""

    def level(self, done: int, alpha: float = 1 - CONFIDENCE, *, is_end: bool = True) -> float:
        """Return the two-sided p-value below which a look at `done` pairs is significant.

        The end takes what is left of `alpha`, wherever the time ended it; the correlation of the looks is that of what
        was really measured.

        Intervals of the confidence that is left (1 - level) are repeated ones: those of all looks hold the truth
        together in 95 % of runs (Jennison and Turnbull, "Interim analyses: the repeated confidence interval approach",
        JRSS B 1989), so that whatever made a run stop, what it reports then is true as often as promised.
        """
        return _levels(*self._plan(done, is_end), alpha)[-1]

    def adjust(self, p_value: float, done: int, *, is_end: bool = True) -> float:
        """Return the p-value corrected for all looks: the error at which this one would just be significant."""
        informations, fractions = self._plan(done, is_end)
        if len(informations) == 1 and fractions == (1.0,):
            return p_value
        return float(np.exp(np.interp(math.log(max(p_value, _NO_PROBABILITY)), *_table(informations, fractions))))

    def _plan(self, done: int, is_end: bool) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return pairs of each look as parts of those that are done, and fractions of the plan by which error is spent.

        A plan that was passed before its end has error left for the end all the same.
        """
        before = sorted({each for each in self.pairs if each < done})
        spent = [min(_BEFORE_END, each / self.planned) for each in before]
        return (
            (*(each / done for each in before), 1.0),
            (*spent, 1.0 if is_end else min(_BEFORE_END, done / self.planned)),
        )


def settle(estimate: RatioEstimate, looks: Looks, done: int, *, margin: float, family: int = 1) -> Conclusion | None:
    """Return the conclusion at which a comparison may stop before its end; None: go on.

    With several comparisons in a run, it must stand at a level divided by their number: then it is also among those
    that Holm's correction leaves significant at the end. Three paired blocks or fewer settle nothing: by chance they
    agree too often for the small errors of early looks.
    """
    if estimate.spread.num_blocks < _FEWEST_BLOCKS:
        return None
    level = looks.level(done, (1 - CONFIDENCE) * _find_possible(family) / family, is_end=False)
    return conclude(estimate.interval(1 - level), margin)


def adjust_family(p_values: Sequence[float | None]) -> tuple[float | None, ...]:
    """Return Holm's adjusted p-values (Scandinavian Journal of Statistics 1979), in the given order.

    If comparisons count whose adjusted p-value is at most some level, at most that share of the runs has a false one
    among them. For up to five comparisons this holds however they depend on one another: candidates share the baseline,
    and workloads the machine. None stays None.

    Most of many candidates are nowhere near the tested side and can be no false verdict. Those with a one-sided p-value
    above 0.8 do not count, and the other p-values are divided by 0.8 (Ellis, Pecanka and Goeman, "Gaining power in
    multiple testing of interval hypotheses via conditionalization", Biostatistics 2020): the same errors where all lie
    at the bound and are independent, fewer where they rise and fall together, as with a shared baseline.

    Args:
        p_values: twice the one-sided ones.
    """
    known = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    share = _find_possible(len(known))
    count = sum(p <= 2 * share for p, _ in known)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, place) in enumerate(known):
        largest = max(largest, min(1.0, p / share * (count - rank))) if rank < count else 1.0
        adjusted[place] = largest
    return tuple(adjusted)


def _find_possible(family: int) -> float:
    """Return the largest one-sided p-value that counts in a family of this size."""
    return _POSSIBLE if family >= _MANY else 1.0


@cache
def _table(informations: tuple[float, ...], fractions: tuple[float, ...]) -> tuple[Array, Array]:
    """Return logarithms of significance levels at the last of some looks, and of the errors they belong to."""
    errors = np.concatenate([np.geomspace(_SMALLEST, 0.1, 24), np.linspace(0.2, 0.99, 8)])
    levels = [_levels(informations, fractions, float(error))[-1] for error in errors]
    return np.log(levels), np.log(errors)


@cache
def _levels(informations: tuple[float, ...], fractions: tuple[float, ...], alpha: float) -> tuple[float, ...]:
    """Return the two-sided level of each look.

    Follows the distribution of the score over those paths that have not crossed a boundary yet (Armitage, McPherson
    and Rowe, JRSS A 1969), and puts each boundary where it is crossed as often as the error to spend allows.

    Args:
        informations: what each look knows of what the last one does.
        fractions: parts of the plan, by which error is spent.
        alpha: both sides.
    """
    levels: list[float] = []
    spent = 0.0
    score_G, weight_G = np.zeros(1), np.ones(1)
    for before, now, fraction in zip((0.0, *informations), informations, fractions, strict=False):
        total = _spending(alpha, fraction)
        step = math.sqrt(now - before)
        bound = _boundary(score_G, weight_G, step, total - spent, math.sqrt(now))
        levels.append(2 * upper_normal_tail(bound / math.sqrt(now)))
        score_G, weight_G = _follow(score_G, weight_G, step, bound)
        spent = total
    return tuple(levels)


def _spending(alpha: float, fraction: float) -> float:
    """Return the error that may be spent until then (Lan and DeMets' O'Brien-Fleming-like function, both sides)."""
    return min(alpha, 4 * upper_normal_tail(-normal_quantile(alpha / 4) / math.sqrt(fraction)))


def _boundary(score_G: Array, weight_G: Array, step: float, error: float, scale: float) -> float:
    """Return the score beyond which, on either side, a share `error` of all paths comes to lie."""
    low, high = 0.0, 38.0 * scale
    for _ in range(32):
        middle = (low + high) / 2
        beyond = 2 * float(np.dot(weight_G, _tails((middle - score_G) / step)))
        low, high = (middle, high) if beyond > error else (low, middle)
    return high


def _follow(score_G: Array, weight_G: Array, step: float, bound: float) -> tuple[Array, Array]:
    """Return where the paths are that stayed within the boundary, as points and weights (Simpson's rule)."""
    points_G = np.linspace(-bound, bound, _GRID)
    simpson_G = np.ones(_GRID)
    simpson_G[1:-1:2], simpson_G[2:-1:2] = 4, 2
    away = (points_G[:, None] - score_G[None, :]) / step
    density_G = np.exp(-0.5 * away**2) @ weight_G / (step * math.sqrt(2 * math.pi))
    return points_G, density_G * simpson_G * (points_G[1] - points_G[0]) / 3


def _tails(z_G: Array) -> Array:
    return np.array([upper_normal_tail(z) for z in z_G.tolist()])
