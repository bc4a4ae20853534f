"""Normal and Student distributions without scipy: tail probabilities fine enough for hundreds of comparisons."""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

__all__ = ["normal_quantile", "student_quantile", "student_tail", "upper_normal_tail"]

_MANY = 1e6
"""Degrees of freedom from which Student's t is normal to 6 digits."""


def normal_quantile(probability: float) -> float:
    """Return the quantile of the standard normal distribution, for a probability between 0 and 1."""
    return NormalDist().inv_cdf(probability)


def upper_normal_tail(z: float) -> float:
    """Return P(Z > z), to full relative precision far out too."""
    return 0.5 * math.erfc(z / math.sqrt(2))


def student_tail(t: float, degrees: float) -> float:
    """Return P(T > t) of Student's t with (possibly broken) degrees of freedom; relative precision 1e-10.

    By the regularised incomplete beta function, I_x(v/2, 1/2) / 2 with x = v / (v + t^2).
    """
    if t < 0:
        return 1 - student_tail(-t, degrees)
    if degrees > _MANY:
        return upper_normal_tail(t)
    return 0.5 * _incomplete_beta(degrees / (degrees + t * t), degrees / 2, 0.5)


@cache
def student_quantile(probability: float, degrees: float) -> float:
    """Return the quantile of Student's t, for a probability between 0 and 1 and 1 degree of freedom or more."""
    if probability < 0.5:
        return -student_quantile(1 - probability, degrees)
    return upper_student_quantile(1 - probability, degrees)


@cache
def upper_student_quantile(tail: float, degrees: float) -> float:
    """Return t with P(T > t) = tail, at most 1/2: by bisection, as the tail falls steadily."""
    low, high = 0.0, 1.0
    while student_tail(high, degrees) > tail:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if student_tail(middle, degrees) > tail else (low, middle)
    return (low + high) / 2


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
