"""Ratios from one reading per prompt and arm: what a pair of columns of a table says."""

from __future__ import annotations

import warnings

import numpy as np

from draftwise.core import Interval
from draftwise.measure.statistics.design import Array, Design
from draftwise.measure.statistics.ratios import prompt_ratio, total_ratio

__all__ = ["mean_ratio", "median_over_passes", "pooled_ratio"]


def median_over_passes(values_PR: Array) -> Array:
    """Return [P] the median of each prompt's readings; missing readings are NaN, as is a prompt without any."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmedian(values_PR, axis=1), dtype=np.float64)


def mean_ratio(candidate_P: Array, plain_P: Array) -> Interval:
    """Return the geometric mean over prompts of candidate / plain, of positive readings."""
    found = prompt_ratio(candidate_P, plain_P, _alone(len(candidate_P)))
    assert found is not None, "readings are positive"
    return found.interval()


def pooled_ratio(candidate_tokens_P: Array, candidate_s_P: Array, plain_tokens_P: Array, plain_s_P: Array) -> Interval:
    """Return the ratio of all tokens over all seconds, candidate over plain: long answers weigh more."""
    found = total_ratio(candidate_tokens_P, candidate_s_P, plain_tokens_P, plain_s_P, _alone(len(candidate_s_P)))
    assert found is not None, "readings are there"
    return found.interval()


def _alone(num_prompts: int) -> Design:
    """Return the design of prompts that were each met once, alone."""
    prompt_P = np.arange(num_prompts)
    return Design(prompt_N=prompt_P, pair_N=prompt_P)
