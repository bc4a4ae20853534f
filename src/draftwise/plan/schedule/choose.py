"""The best fixed draft length over the loads of an operator, and whether a changing one is worth it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftwise.plan.schedule.ranges import Range, join_ranges

__all__ = ["WORTH_A_CHANGE", "Choice", "choose_lengths"]

WORTH_A_CHANGE = 1.02
"""Least gain of a schedule over the best fixed k: below it a setting that changes is not worth its risk."""
_WORTH_A_RANGE = 0.005
"""Least share of all tokens that one more range has to gain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What to draft at the loads that were looked at."""

    fixed_k: int
    fixed_speedup: float
    """Mean speed-up of the best fixed k over plain decoding, over the loads by their weight."""
    ranges: tuple[Range, ...]
    """The best schedule of few ranges; one range where a fixed k is best."""
    schedule_gain: float
    """Mean speed-up of that schedule over that of the best fixed k."""

    @property
    def is_schedule_worth_it(self) -> bool:
        """Whether the schedule gains more than a setting that changes is worth."""
        return len(self.ranges) > 1 and self.schedule_gain >= WORTH_A_CHANGE


def choose_lengths(
    batches: Sequence[int],
    lengths: Sequence[int],
    fixed: Callable[[int, int], float],
    scheduled: Callable[[int, int], float] | None = None,
    *,
    weights: Sequence[float] | None = None,
) -> Choice:
    """Return the best fixed k and the best schedule.

    A schedule's k never rises with the batch: in a mixture of experts, where it could, the gain is small.

    Args:
        batches: ascending numbers of sequences; a range of the schedule ends at one of them.
        lengths: values of k; 0 among them is no drafting.
        fixed: speed-up over plain decoding at so many sequences with so many draft tokens, if that k is fixed.
        scheduled: the same under a schedule that goes up to the largest of `lengths`, which may cost more than a fixed
            k; None: the same as fixed.
        weights: of each batch size, e.g. how often it occurs; None for equal ones.
    """
    weight = np.array(weights if weights is not None else np.ones(len(batches)), dtype=float)
    weight /= weight.sum()
    tried = sorted(set(lengths))
    table = np.array([[fixed(batch, k) for k in tried] for batch in batches])
    means = weight @ table
    best = int(np.argmax(means))
    own = table if scheduled is None else np.array([[scheduled(batch, k) for k in tried] for batch in batches])
    path = _find_path(own * weight[:, None], float(means[best]) * _WORTH_A_RANGE)
    gained = float(sum(weight[row] * own[row, column] for row, column in enumerate(path)))
    ends = ((float(batch), tried[column]) for batch, column in zip(batches, path, strict=True))
    return Choice(
        fixed_k=tried[best],
        fixed_speedup=float(means[best]),
        ranges=join_ranges(ends),
        schedule_gain=gained / float(means[best]),
    )


def _find_path(values: NDArray[np.float64], price: float) -> list[int]:
    """Return the column of each row, never rising, with the largest sum less a price for each change."""
    rows, columns = values.shape
    reached, came = values[0].copy(), np.zeros((rows, columns), dtype=int)
    for row in range(1, rows):
        # From any larger column for the price, or on in the same one.
        options = np.where(np.tri(columns, dtype=bool).T, reached[None, :] - price, -np.inf)
        options[np.diag_indices(columns)] = reached
        came[row] = options.argmax(axis=1)
        reached = options.max(axis=1) + values[row]
    path = [int(reached.argmax())]
    for row in range(rows - 1, 0, -1):
        path.append(int(came[row][path[-1]]))
    return path[::-1]
