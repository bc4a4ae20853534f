"""A forecast beside what was measured: how far off it was, which is how unsure the next one is."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Comparison, Forecast, HeldAgainst, Interval

__all__ = ["hold_against"]


def hold_against(made: Forecast, k: int, comparison: Comparison) -> HeldAgainst | None:
    """Return a comparison beside what was forecast for its candidate, workload and load; None where nothing was.

    Args:
        made: the forecast.
        k: draft tokens of the candidate.
        comparison: what was measured.
    """
    found = next(_find(made, k, comparison), None)
    if found is None:
        return None
    measured = comparison.deciding
    return HeldAgainst(
        setting=comparison.candidate,
        workload=comparison.workload,
        load=comparison.condition.label,
        predicted=found.value,
        measured=measured.value,
        measured_low=measured.low,
        measured_high=measured.high,
        is_inside=found.low <= measured.value <= found.high,
    )


def _find(made: Forecast, k: int, comparison: Comparison) -> Iterator[Interval]:
    """Yield the speed-ups forecast for the same cell, those for the workload's own requests first."""
    same = [
        each
        for each in made.cells
        if (each.setting, each.k) == (comparison.candidate, k)
        and (each.axis, each.load) == comparison.condition.place
        and each.temperature == comparison.condition.temperature
    ]
    for group in (comparison.workload, None):
        yield from (each.speedup for each in same if each.group == group)
