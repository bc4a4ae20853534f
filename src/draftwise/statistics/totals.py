"""A ratio of two totals over requests, and how sure it is: requests are drawn, what happens inside one is not."""

from __future__ import annotations

import math

import numpy as np

from draftwise.core import Interval
from draftwise.statistics.estimate import CONFIDENCE, upper_student_quantile
from draftwise.statistics.ratios import Array

__all__ = ["find_variance_share", "ratio_of_totals"]


def ratio_of_totals(tops: Array, bottoms: Array, *, confidence: float = CONFIDENCE) -> Interval:
    """Return sum(tops) / sum(bottoms) with its interval over requests; unbounded where there is a single one.

    By the delta method on the logarithm, with Student's t: as wide as the bootstrap over requests within 0.3 % where
    there are many, and not too narrow where there are few.

    Args:
        tops: [R] of each request, not negative.
        bottoms: [R] likewise; their sum is positive.
    """
    ratio = float(tops.sum() / bottoms.sum())
    num = len(tops)
    if num < 2 or ratio == 0:
        return Interval(value=ratio, low=0.0, high=math.inf)
    errors = _errors(tops, bottoms)
    spread = math.sqrt(float((errors**2).sum()) * num / (num - 1)) / float(tops.sum())
    reach = upper_student_quantile((1 - confidence) / 2, num - 1) * spread
    return Interval(value=ratio, low=ratio * math.exp(-reach), high=ratio * math.exp(min(reach, 700.0)))


def find_variance_share(tops: Array, bottoms: Array, *, largest: int) -> float:
    """Return the share of the ratio's variance that its `largest` requests hold; 0 where there is no variance."""
    squares = np.sort(_errors(tops, bottoms) ** 2)[::-1]
    total = float(squares.sum())
    return float(squares[:largest].sum()) / total if total > 0 else 0.0


def _errors(tops: Array, bottoms: Array) -> Array:
    errors: Array = tops - tops.sum() / bottoms.sum() * bottoms
    return errors
