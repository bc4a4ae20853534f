"""The best fixed draft length, the best schedule by batch size, and how a release treats a schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import fsum, isinf
from operator import mul
from typing import Any

from draftwise.core import Effect, Ruling, Setup
from draftwise.plan.check import check

KEY = "num_speculative_tokens_per_batch_size"
"""Key of the speculative config, from vLLM 0.24.0 on."""
Range = tuple[int, int, int]
"""First batch size, last batch size (both included) and k; k = 0 means no drafting."""


def join_ranges(ends: Iterable[tuple[float, int]], *, first: int = 1) -> tuple[Range, ...]:
    """Return the ranges of a schedule, neighbors with the same k joined.

    Args:
        ends: (largest batch size, k) of each range, ascending. Infinity ends the schedule: that range is one batch
            size wide, because vLLM uses the last k for all larger batches.
        first: start of the first range.
    """
    rows: list[Range] = []
    for end, k in ends:
        last = first if isinf(end) else int(end)
        if rows and rows[-1][2] == k:
            rows[-1] = (rows[-1][0], last, k)
        else:
            rows.append((first, last, k))
        first = last + 1
    return tuple(rows)


def make_schedule_keys(ranges: Sequence[Range]) -> dict[str, Any]:
    """Return the keys of a speculative config for a schedule: the largest k, and the ranges."""
    return {"num_speculative_tokens": max(k for _, _, k in ranges), KEY: [list(each) for each in ranges]}


WORTH_A_CHANGE = 1.02
"""Minimum gain of a schedule over the best fixed k; below it, a changing setting is not worth its risk."""
_WORTH_A_RANGE = 0.005
"""Least share of all tokens that one more range has to gain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthChoice:
    """What to draft at the examined loads."""

    fixed_k: int
    fixed_speedup: float
    """Weighted mean over the loads of the best fixed k's speed-up over plain decoding."""
    ranges: tuple[Range, ...]
    """The best schedule with few ranges; one range if a fixed k is best."""
    schedule_gain: float
    """Mean speed-up of that schedule over the best fixed k."""

    @property
    def is_schedule_worth_it(self) -> bool:
        """Whether the schedule's gain exceeds `WORTH_A_CHANGE`."""
        return len(self.ranges) > 1 and self.schedule_gain >= WORTH_A_CHANGE


def choose_lengths(
    batches: Sequence[int],
    lengths: Sequence[int],
    fixed: Callable[[int, int], float],
    scheduled: Callable[[int, int], float] | None = None,
) -> LengthChoice:
    """Return the best fixed k and the best schedule.

    A schedule's k never rises with the batch; in a mixture of experts it could, but the gain is small.

    Args:
        batches: ascending numbers of sequences; a range of the schedule ends at one of them.
        lengths: values of k; 0 means no drafting.
        fixed: (sequences, draft tokens) -> speed-up over plain decoding, with that k fixed.
        scheduled: likewise under a schedule up to the largest of `lengths`, which may cost more than a fixed k; None
            if it costs the same.
    """
    share = [1 / len(batches)] * len(batches)
    tried = sorted(set(lengths))
    table = [[fixed(batch, k) for k in tried] for batch in batches]
    means = [fsum(map(mul, share, column)) for column in zip(*table, strict=True)]
    best = max(range(len(tried)), key=means.__getitem__)
    own = table if scheduled is None else [[scheduled(batch, k) for k in tried] for batch in batches]
    weighted = [[part * value for value in row] for part, row in zip(share, own, strict=True)]
    path = _find_path(weighted, means[best] * _WORTH_A_RANGE)
    gained = fsum(row[column] for row, column in zip(weighted, path, strict=True))
    ends = ((float(batch), tried[column]) for batch, column in zip(batches, path, strict=True))
    return LengthChoice(
        fixed_k=tried[best], fixed_speedup=means[best], ranges=join_ranges(ends), schedule_gain=gained / means[best]
    )


def _find_path(values: Sequence[Sequence[float]], price: float) -> list[int]:
    """Return the column of each row, never rising, with the largest sum less a price for each change."""
    paths: list[tuple[float, tuple[int, ...]]] = [(value, (column,)) for column, value in enumerate(values[0])]
    for row in values[1:]:
        # From the same column, or from any larger one for the price; of equals the first column.
        paths = [
            (reached + row[column], (*path, column))
            for column in range(len(row))
            for reached, path in [
                max(
                    ((sum_ - price * (path[-1] > column), path) for sum_, path in paths if path[-1] >= column),
                    key=lambda each: each[0],
                )
            ]
        ]
    return list(max(paths, key=lambda each: each[0])[1])


_NOT_HONOURED = (Effect.REJECTED, Effect.INEFFECTIVE, Effect.FAILS_LATER)
_FULL_DRAFTS = "schedule-drafts-in-full"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedSchedule:
    """How a release treats a schedule."""

    is_honoured: bool
    drafts_in_full: bool
    """Whether the drafter always drafts the largest k, and the schedule only reduces verification."""
    acts_as_written: bool
    """Whether the release follows it without side costs: neither full drafts nor lost CUDA graphs."""
    remarks: tuple[str, ...]
    """Remarks of `check` with their fixes."""


def judge_schedule(setup: Setup) -> JudgedSchedule:
    """Return how the setup's release treats the schedule in its speculative config.

    Raises:
        InvalidSetup: the release is unknown.
    """
    about = [each for each in check(setup).findings if each.where == KEY]
    rulings = [each for each in about if isinstance(each, Ruling)]
    lost = any(each.effect in _NOT_HONOURED or each.becomes == "null" for each in rulings)
    return JudgedSchedule(
        is_honoured=not lost,
        acts_as_written=not lost and all(each.effect is not Effect.CHANGED for each in rulings),
        drafts_in_full=any(each.code == _FULL_DRAFTS for each in about),
        remarks=tuple(f"{each.message} {each.fix}".strip() for each in about),
    )
