"""A measured ratio and its uncertainty: intervals, p-values and power, by Student's t on the log scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from statistics import NormalDist, fmean, stdev

from draftwise.core import Interval

CONFIDENCE = 0.95
_ROUNDING = 1e-9
"""Smaller differences come from arithmetic, not from servers."""
POWER = 0.8
_MOST = 1000
"""If more than this multiple of the prompts or repetitions is needed, measuring more cannot settle it."""
_MANY = 1e6
"""Degrees of freedom above which Student's t equals the normal distribution to 6 digits."""
_CLOSE = 1e-14
"""A step of Newton's method below this share of its result is rounding."""
_MOST_STEPS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The uncertainty of an estimate and its sources; `draftwise.statistics.ratios` computes it from readings."""

    variance: float
    """Variance of the estimate; infinite with one prompt, or under load with one paired block."""
    degrees: float
    """Degrees of freedom of the variance."""
    lasting: float
    """Part of the variance that more repetitions of the same prompts would not reduce."""
    num_prompts: int
    num_blocks: int

    @property
    def error(self) -> float:
        """Standard error."""
        return math.sqrt(self.variance)


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioEstimate:
    """A ratio of candidate over baseline.

    Interval, p-value, power and stopping derive from the same two numbers, so they cannot contradict each other: an
    interval excludes a ratio exactly if the test of that ratio is significant.
    """

    log: float
    """Natural logarithm of the ratio."""
    spread: Spread
    """Spread of the logarithm."""
    log_by_prompt: Mapping[Hashable, float] = field(default_factory=dict, compare=False, repr=False)
    """Log ratio of each prompt, if the design names prompts: shared by the cells of a sweep."""

    @property
    def value(self) -> float:
        """The ratio."""
        return to_ratio(self.log)

    def interval(self, confidence: float = CONFIDENCE) -> Interval:
        """Return the interval of the ratio; unbounded if nothing was repeated."""
        if math.isinf(self.spread.variance):
            return Interval(value=self.value, low=0.0, high=math.inf)
        reach = upper_student_quantile((1 - confidence) / 2, self.spread.degrees) * self.spread.error
        return Interval(value=self.value, low=to_ratio(self.log - reach), high=to_ratio(self.log + reach))

    def p_above(self, ratio: float) -> float:
        """Return the one-sided p-value of the hypothesis that the true ratio is no more than `ratio`."""
        p = self.p_value(ratio) / 2
        return p if self.log > math.log(ratio) else 1 - p

    def p_value(self, ratio: float = 1.0) -> float:
        """Return the two-sided p-value of the hypothesis that the true ratio is `ratio`."""
        distance = abs(self.log - math.log(ratio))
        if math.isinf(self.spread.variance) or distance < _ROUNDING:
            return 1.0
        if self.spread.variance == 0:
            return 0.0
        return min(1.0, 2 * student_tail(distance / self.spread.error, self.spread.degrees))


def to_ratio(log: float) -> float:
    """Return the ratio of a logarithm; infinite on overflow."""
    try:
        return math.exp(log)
    except OverflowError:
        return math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerOutlook:
    """What a measurement found, could have found, and would need for a conclusion (power 80 %)."""

    p_value: float
    """Two-sided p-value of no difference."""
    detectable: float
    """Smallest true speed-up that would be found faster than 1 + margin; infinite if the spread is unknown."""
    prompts: int | None
    """Prompts needed for a conclusion, with the same repetitions and block size; None: see `find_outlook`."""
    repetitions: int | None
    """Repetitions of the same prompts needed instead: they average out what a paired block shares, and add no
    prompts."""


def shows_equivalence(differences: Sequence[float], margin: float, alpha: float) -> bool:
    """Return whether the mean of paired differences is shown to lie within `margin` of 0.

    Uses two one-sided t tests (Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 1987). Few or widely spread
    differences show nothing.
    """
    if len(differences) < 2:
        return False
    error = stdev(differences) / math.sqrt(len(differences))
    return abs(fmean(differences)) + student_quantile(1 - alpha, len(differences) - 1) * error < margin


def find_outlook(
    estimate: RatioEstimate, repetitions: int, *, margin: float = 0.0, alpha: float = 1 - CONFIDENCE
) -> PowerOutlook:
    """Return the power outlook, given the observed spread.

    The needed numbers assume that the estimate is true. They are None if the estimate lies so close to a limit that a
    thousand times as many would not suffice, or if nothing varies.
    """
    spread = estimate.spread
    if math.isinf(spread.variance):
        return PowerOutlook(p_value=1.0, detectable=math.inf, prompts=None, repetitions=None)
    reach = upper_student_quantile(alpha / 2, spread.degrees) + student_quantile(POWER, spread.degrees)
    needed = partial(_count_needed, estimate, margin, alpha)
    return PowerOutlook(
        p_value=estimate.p_value(),
        detectable=to_ratio(math.log1p(margin) + reach * spread.error),
        prompts=needed(_with_prompts, spread.num_prompts),
        repetitions=needed(_with_repetitions, repetitions),
    )


def _count_needed(
    estimate: RatioEstimate, margin: float, alpha: float, more: Callable[[Spread, float], Spread], count: int
) -> int | None:
    """Return how many, where there are `count` now, would settle it: to 1 %."""
    if estimate.spread.variance == 0:
        return None

    def is_enough(times: float) -> bool:
        return _power(estimate.log, more(estimate.spread, times), margin, alpha) >= POWER

    if not is_enough(_MOST):
        return None
    low, high = 0.0, float(_MOST)
    while high - low > 0.01 * high and count * high > 1:
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return math.ceil(count * high)


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


def normal_quantile(probability: float) -> float:
    """Return the quantile of the standard normal distribution, for a probability between 0 and 1."""
    return NormalDist().inv_cdf(probability)


def upper_normal_tail(z: float) -> float:
    """Return P(Z > z), with full relative precision in the far tail."""
    return 0.5 * math.erfc(z / math.sqrt(2))


def student_tail(t: float, degrees: float) -> float:
    """Return P(T > t) of Student's t with (possibly fractional) degrees of freedom; relative precision 1e-10.

    By the regularised incomplete beta function, I_x(v/2, 1/2) / 2 with x = v / (v + t^2).
    """
    if t < 0:
        return 1 - student_tail(-t, degrees)
    if degrees > _MANY:
        return upper_normal_tail(t)
    return 0.5 * _incomplete_beta(degrees / (degrees + t * t), degrees / 2, 0.5)


def beta_quantile(probability: float, a: float, b: float) -> float:
    """Return the quantile of the beta distribution, by bisection to 1e-12."""
    low, high = 0.0, 1.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if _incomplete_beta(middle, a, b) < probability else (low, middle)
    return high


@cache
def student_quantile(probability: float, degrees: float) -> float:
    """Return the quantile of Student's t, for a probability between 0 and 1 and at least 1 degree of freedom."""
    if probability < 0.5:
        return -student_quantile(1 - probability, degrees)
    return upper_student_quantile(1 - probability, degrees)


@cache
def upper_student_quantile(tail: float, degrees: float) -> float:
    """Return t with P(T > t) = tail <= 1/2, by Newton's method from below (the tail is convex)."""
    t, farther = 0.0, 1.0
    while student_tail(farther, degrees) > tail:
        t, farther = farther, 2 * farther
    for _ in range(_MOST_STEPS):
        density = _student_density(t, min(degrees, _MANY))
        step = (student_tail(t, degrees) - tail) / density if density else 0.0
        t += step
        if step <= _CLOSE * t:
            break
    return t


def _student_density(t: float, degrees: float) -> float:
    half = (degrees + 1) / 2
    front = math.lgamma(half) - math.lgamma(degrees / 2) - math.log(degrees * math.pi) / 2
    return math.exp(front - half * math.log1p(t * t / degrees))


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Return I_x(a, b) (Abramowitz and Stegun 26.5.8, evaluated by Lentz's method)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    return front / a * _beta_fraction(x, a, b)


def _beta_fraction(x: float, a: float, b: float) -> float:
    tiny = 1e-300
    c, d = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1), tiny)
    value = d
    for m in range(1, 1000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        change = 1.0
        for term in (even, odd):
            d = 1 / _away_from_zero(1 + term * d, tiny)
            c = _away_from_zero(1 + term / c, tiny)
            change = c * d
            value *= change
        if abs(change - 1) < 1e-14:
            break
    return value


def _away_from_zero(value: float, tiny: float) -> float:
    return value if abs(value) > tiny else tiny
