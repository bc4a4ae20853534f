"""Whether a ratio stayed what it was from the beginning of a measurement to its end.

Intervals take paired blocks for independent. They are not where one of two servers was slow for a good part of the
run: every prompt then has its share of slow blocks, so that prompts agree with each other on a ratio that is half of
one state and half of another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from draftwise.statistics.estimate import CONFIDENCE, fisher_tail, to_ratio
from draftwise.statistics.ratios import Array, Design, Integers

__all__ = ["Change", "find_change"]

_MOST_STRETCHES = 6
_FEWEST_BLOCKS = 3
"""Of a stretch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A ratio that differed between stretches of a run by more than paired blocks within a stretch explain."""

    lowest: float
    """Of the stretches' ratios."""
    highest: float


def find_change(logs_N: Array, design: Design) -> Change | None:
    """Return how a ratio changed in the course of a run; None where it did not, or where too few blocks could tell.

    One-way analysis of variance (Fisher 1925) between stretches of equally many blocks. What prompts gain differently
    is taken out before, as far as they came more than once.

    Args:
        logs_N: logarithms of the ratios of requests, NaN for none.
        design: of these requests, its blocks numbered in the order of time.
    """
    kept_N = np.isfinite(logs_N)
    if not kept_N.any():
        return None
    logs_N, design = logs_N[kept_N], design.only(kept_N)
    logs_B, spent = _mean_of_blocks(logs_N, design)
    count = min(_MOST_STRETCHES, len(logs_B) // _FEWEST_BLOCKS)
    if count < 2:
        return None
    parts = np.array_split(logs_B, count)
    means_S = np.array([part.mean() for part in parts])
    sizes_S = np.array([len(part) for part in parts])
    degrees = max(1.0, len(logs_B) - count - spent)
    between = float(sizes_S @ (means_S - logs_B.mean()) ** 2) / (count - 1)
    within = sum(float(((part - part.mean()) ** 2).sum()) for part in parts) / degrees
    if not between or (within and fisher_tail(between / within, count - 1, degrees) > 1 - CONFIDENCE):
        return None
    # Prompts that were asked in slow stretches only would hide how slow these were.
    measured = [float(part.mean()) for part in np.array_split(_mean(logs_N, design.block_N), count)]
    return Change(lowest=to_ratio(min(measured)), highest=to_ratio(max(measured)))


def _mean_of_blocks(logs_N: Array, design: Design) -> tuple[Array, float]:
    """Return [B] the means of blocks as if all prompts gained the same, and the degrees of freedom that this takes.

    As they are, and none, where prompts came once.
    """
    spent = 0.0
    if np.bincount(design.prompt_N).min() > 1:
        logs_N = logs_N - _mean(logs_N, design.prompt_N)[design.prompt_N] + logs_N.mean()
        spent = (design.num_prompts - 1) * design.num_blocks / len(logs_N)
    return _mean(logs_N, design.block_N), spent


def _mean(values_N: Array, group_N: Integers) -> Array:
    return np.asarray(np.bincount(group_N, weights=values_N) / np.bincount(group_N))
