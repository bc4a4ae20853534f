"""Sums of evidence that a service's acceptance has fallen, and how far these sums go by chance."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from draftwise.watching.drift.rows import ROWS_PER_DAY, Rows
from draftwise.watching.drift.season import Noise

__all__ = ["Form", "fit_limits", "increments", "run"]

_FALL = 0.10
"""The fall of acceptance length that the likelihood ratio is made for."""
_SLACK = 0.05
"""What the slack form takes off each shortfall: traffic that wanders less adds up to nothing."""
_CLIP = 0.5
"""A shortfall beyond half is no more evidence than half: one odd row decides nothing."""
_MONTH_DAYS = 30
_MONTHS = 400
_SEED = 17


class Form(StrEnum):
    """Two sums; none finds every fall first, so both are kept."""

    LIKELIHOOD = "likelihood"
    """Page's CUSUM: the log-likelihood ratio of a fall by 10 % against none, by each row's own variance. The first
    where rows are many and the traffic is steady."""
    SLACK = "slack"
    """The sum of shortfalls beyond 5 % (Page-Hinkley): the first where the traffic wanders."""


def increments(rows: Rows, shortfall: NDArray[np.float64], noise: Noise) -> Mapping[Form, NDArray[np.float64]]:
    """Return what each row adds; 0 where it says nothing, so that the sums stand still over gaps."""
    bounded = np.clip(shortfall, -_CLIP, _CLIP)
    ratio = _FALL * (bounded - _FALL / 2) / noise.variance(rows.drafts)
    added = {Form.LIKELIHOOD: ratio, Form.SLACK: bounded - _SLACK}
    return {form: np.where(rows.counts, each, 0.0) for form, each in added.items()}


def run(added: NDArray[np.float64], start: float = 0.0) -> NDArray[np.float64]:
    """Return the sum after each row, along the last axis: `s = max(0, s + added)` from `start` on.

    A sum that may not fall below 0 is the plain sum less the lowest that it ever was.
    """
    total = start + np.cumsum(added, axis=-1)
    return np.asarray(total - np.minimum(np.minimum.accumulate(total, axis=-1), 0.0))


def fit_limits(
    added: Mapping[Form, NDArray[np.float64]], days: NDArray[np.int64], *, alarms_per_month: float, margin: float
) -> Mapping[Form, float]:
    """Return for each form the limit that chance passes so often: months are put together from whole days.

    A day keeps what wanders for hours. A month without an alarm has the probability exp(-alarms_per_month), and either
    form can raise one, so that each gets half.

    Args:
        added: by `increments`, of rows without a fall.
        days: of the same rows.
        alarms_per_month: to be expected of both forms together.
        margin: factor on the limits, for what three weeks do not show of a month.
    """
    blocks = np.split(np.arange(len(days)), np.flatnonzero(np.diff(days)) + 1)
    blocks = [block for block in blocks if len(block) > ROWS_PER_DAY // 2]
    drawn = np.random.default_rng(_SEED).integers(0, len(blocks), (_MONTHS, _MONTH_DAYS))
    quantile = float(np.exp(-alarms_per_month / len(added)))
    return {form: margin * float(np.quantile(_peaks(each, blocks, drawn), quantile)) for form, each in added.items()}


def _peaks(
    added: NDArray[np.float64], blocks: list[NDArray[np.int64]], drawn: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the highest sum of each month."""
    width = max(map(len, blocks))
    padded = np.stack([np.pad(added[block], (0, width - len(block))) for block in blocks])
    return np.asarray(run(padded[drawn].reshape(len(drawn), -1)).max(axis=-1))
