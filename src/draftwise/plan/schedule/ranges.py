"""The draft length by batch size, as vLLM's own schedule writes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isinf
from typing import Any

__all__ = ["KEY", "Range", "join_ranges", "make_schedule_keys"]

KEY = "num_speculative_tokens_per_batch_size"
"""Key of the speculative config, from vLLM 0.24.0 on."""
Range = tuple[int, int, int]
"""First batch size, last batch size (both included) and k; k = 0 means no drafting."""


def join_ranges(ends: Iterable[tuple[float, int]], *, first: int = 1) -> tuple[Range, ...]:
    """Return the ranges of a schedule, neighbours with the same k joined.

    Args:
        ends: the largest batch size of each range and its k, in ascending order. Infinity ends the schedule: that range
            is one batch size wide, as vLLM goes on with the last k for all larger batches.
        first: where the first range begins.
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
    """Return the keys of a speculative config that follow a schedule: the largest k, and the ranges."""
    return {"num_speculative_tokens": max(k for _, _, k in ranges), KEY: [list(each) for each in ranges]}
