"""Paired ratios with bootstrap confidence intervals; the unit that is resampled is the prompt.

Shape letters: P prompts, R passes, B bootstrap resamples.
"""

from __future__ import annotations

import math
import warnings
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from draftwise.core import Interval

__all__ = [
    "CONFIDENCE",
    "FEWEST_PROMPTS",
    "RESAMPLES",
    "mean_ratio",
    "median_over_passes",
    "pooled_ratio",
    "student_quantile",
]

CONFIDENCE = 0.95
RESAMPLES = 10_000
FEWEST_PROMPTS = 6
"""From here on the intervals are worth reading; they are honest, but very wide, below."""

Array = NDArray[np.float64]


def median_over_passes(values_PR: Array) -> Array:
    """Return [P] the median of each prompt's readings; missing readings are NaN, as is a prompt without any."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmedian(values_PR, axis=1), dtype=np.float64)


def mean_ratio(candidate_P: Array, plain_P: Array, *, seed: int = 0) -> Interval:
    """Return the geometric mean over prompts of candidate / plain."""
    logs_P = np.log(candidate_P / plain_P)
    logs_B = logs_P[_resamples(len(logs_P), seed)].mean(axis=1)
    return _interval(float(logs_P.mean()), logs_B, len(logs_P))


def pooled_ratio(
    candidate_tokens_P: Array, candidate_s_P: Array, plain_tokens_P: Array, plain_s_P: Array, *, seed: int = 0
) -> Interval:
    """Return the ratio of all tokens over all seconds, candidate over plain: long answers weigh more."""

    def log_rate(tokens: Array, seconds: Array) -> Array:
        return np.asarray(np.log(tokens.sum(axis=-1) / seconds.sum(axis=-1)))

    rows = _resamples(len(candidate_s_P), seed)
    logs_B = log_rate(candidate_tokens_P[rows], candidate_s_P[rows]) - log_rate(plain_tokens_P[rows], plain_s_P[rows])
    whole = log_rate(candidate_tokens_P, candidate_s_P) - log_rate(plain_tokens_P, plain_s_P)
    return _interval(float(whole), logs_B, len(candidate_s_P))


def _resamples(num_prompts: int, seed: int) -> NDArray[np.int64]:
    """Return [B, P] prompts drawn with replacement."""
    return np.random.default_rng(seed).integers(0, num_prompts, (RESAMPLES, num_prompts))


def _interval(log_value: float, logs_B: Array, num_prompts: int) -> Interval:
    """Return the percentile interval, widened to hold its level for few prompts.

    The plain percentile (and BCa) interval of 6 prompts covers 85 % where it promises 95 %. Stretching its log
    distances by sqrt(n / (n - 1)) * t / z (Hesterberg, "What Teachers Should Know About the Bootstrap", 2015,
    section 5) restores 93-97 % from 4 prompts on; `tests/measure/test_statistics.py` measures it.
    One prompt tells nothing about others: its interval is unbounded.
    """
    if num_prompts < 2:
        return Interval(value=math.exp(log_value), low=0.0, high=math.inf)
    upper = (1 + CONFIDENCE) / 2
    low, high = np.quantile(logs_B, [1 - upper, upper])
    normal = NormalDist().inv_cdf(upper)
    stretch = math.sqrt(num_prompts / (num_prompts - 1)) * student_quantile(upper, num_prompts - 1) / normal
    return Interval(
        value=math.exp(log_value),
        low=math.exp(log_value + (float(low) - log_value) * stretch),
        high=math.exp(log_value + (float(high) - log_value) * stretch),
    )


def student_quantile(probability: float, degrees: int) -> float:
    """Return the quantile of Student's t (Cornish-Fisher; Abramowitz and Stegun 26.7.5).

    Within 1 % of the exact value at 97.5 % from 2 degrees of freedom on, and 11 % below it for 1.
    """
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / float(degrees) ** power for power, term in enumerate(terms, 1))
