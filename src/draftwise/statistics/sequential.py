"""Significance with many looks and many comparisons: interim analyses and families, no more false verdicts than one."""

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

__all__ = ["Conclusion", "InterimAnalyses", "adjust_family", "conclude", "settle"]
_GRID = 101
"""Points over which the paths that have not stopped yet are followed."""
_SMALLEST = 1e-12
"""Errors are followed down to here."""
_NO_PROBABILITY = 1e-300
_FEWEST_BLOCKS = 4


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


@dataclass(frozen=True, slots=True)
class InterimAnalyses:
    """After how many repetitions a comparison may be stopped, ascending; the last is the end, and may be the only one.

    Group-sequential testing: a planned number of analyses, and an error that is spent bit by bit (Lan and DeMets,
    "Discrete sequential boundaries for clinical trials", Biometrika 1983). From one repetition to the next the
    estimate moves less than wholly new data would move it, for the prompts stay the same; boundaries for new data then
    hold all the more.
    """

    repetitions: tuple[int, ...]

    @classmethod
    def planned(cls, repeats: int, *, first: int = 2) -> InterimAnalyses:
        """Return an analysis after each repetition from the first one that can tell anything on."""
        return cls(tuple(range(min(first, repeats), repeats + 1)))

    def level(self, done: int, alpha: float = 1 - CONFIDENCE) -> float:
        """Return the two-sided p-value below which an analysis after so many repetitions is significant.

        O'Brien-Fleming-like spending: little early, almost all of `alpha` at the end, so that a run that goes on to
        its end loses next to nothing by the analyses before.

        Intervals of the confidence that is left (1 - level) are repeated ones: those of all analyses hold the truth
        together in 95 % of runs (Jennison and Turnbull, "Interim analyses: the repeated confidence interval approach",
        JRSS B 1989), so that whatever made a run stop, what it reports then is true as often as promised. One at the
        end is hardly wider than a plain 95 % interval, an early one much.
        """
        return _levels(self._fractions(done), alpha)[-1]

    def adjust(self, p_value: float, done: int) -> float:
        """Return the p-value corrected for all analyses: the error at which this one would just be significant."""
        return float(np.exp(np.interp(math.log(max(p_value, _NO_PROBABILITY)), *_table(self._fractions(done)))))

    def _fractions(self, done: int) -> tuple[float, ...]:
        """Return the analyses so far as parts of the plan; a run with one at its end may be cut off anywhere."""
        if len(self.repetitions) == 1:
            return (1.0,)
        last = self.repetitions[-1]
        return (*(each / last for each in self.repetitions if each < done), min(1.0, done / last))


def settle(
    estimate: RatioEstimate, analyses: InterimAnalyses, done: int, *, margin: float, family: int = 1
) -> Conclusion | None:
    """Return the conclusion at which a comparison may stop after so many repetitions; None: go on.

    With several comparisons in a run, it must stand at a level divided by their number: then it is also among those
    that Holm's correction leaves significant at the end. Three paired blocks or fewer settle nothing: by chance they
    agree too often for the small errors of early analyses.
    """
    if estimate.spread.num_blocks < _FEWEST_BLOCKS:
        return None
    return conclude(estimate.interval(1 - analyses.level(done, (1 - CONFIDENCE) / family)), margin)


def adjust_family(p_values: Sequence[float | None]) -> tuple[float | None, ...]:
    """Return Holm's adjusted p-values (Scandinavian Journal of Statistics 1979), in the given order.

    Of all comparisons whose adjusted p-value is at most 0.05, any is false in at most 5 % of runs, however the
    comparisons hang together: candidates share the baseline, and workloads the machine. None stays None.
    """
    known = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, place) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - rank)))
        adjusted[place] = largest
    return tuple(adjusted)


@cache
def _table(fractions: tuple[float, ...]) -> tuple[Array, Array]:
    """Return logarithms of significance levels at the last of some analyses, and of the errors they belong to."""
    errors = np.concatenate([np.geomspace(_SMALLEST, 0.1, 24), np.linspace(0.2, 0.99, 8)])
    levels = [_levels(fractions, float(error))[-1] for error in errors]
    return np.log(levels), np.log(errors)


@cache
def _levels(fractions: tuple[float, ...], alpha: float) -> tuple[float, ...]:
    """Return the two-sided level of each analysis at such fractions of all repetitions.

    Follows the distribution of the score over those paths that have not crossed a boundary yet (Armitage, McPherson
    and Rowe, JRSS A 1969), and puts each boundary where it is crossed as often as the error to spend allows.
    """
    levels: list[float] = []
    spent = 0.0
    score_G, weight_G = np.zeros(1), np.ones(1)
    for before, now in zip((0.0, *fractions), fractions, strict=False):
        total = _spending(alpha, now)
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
