"""Correction for the number of comparisons in a run."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["adjust_family"]


def adjust_family(p_values: Sequence[float | None]) -> tuple[float | None, ...]:
    """Return Holm's adjusted p-values (Scandinavian Journal of Statistics 1979), in the given order.

    Of all comparisons whose adjusted p-value is at most 0.05, any is false in at most 5 % of runs, however the
    comparisons hang together: candidates share the baseline, and workloads the machine. None stays None.
    """
    known = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, place) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - rank)))
        adjusted[place] = largest
    return tuple(adjusted)
