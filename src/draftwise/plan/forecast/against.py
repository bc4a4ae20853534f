"""A forecast beside what was measured: how far off it was, which is how unsure the next one is."""

from __future__ import annotations

from draftwise.core import Comparison, Condition, Forecast, ForecastCell, HeldAgainst

__all__ = ["find_cell", "hold_against"]


def hold_against(made: Forecast, k: int, comparison: Comparison) -> HeldAgainst | None:
    """Return a comparison beside what was forecast for its candidate, workload and load; None where nothing was.

    Args:
        made: the forecast.
        k: draft tokens of the candidate.
        comparison: what was measured.
    """
    cell = find_cell(made, comparison.candidate, k, comparison.workload, comparison.condition)
    if cell is None:
        return None
    found = cell.speedup
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
        replayed_tokens_per_step=cell.tokens_per_step,
        counted_tokens_per_step=comparison.counters.tokens_per_step,
    )


def find_cell(made: Forecast, setting: str, k: int, workload: str, condition: Condition) -> ForecastCell | None:
    """Return what is forecast of a server on a workload, by the workload's own requests where the log has them."""
    same = [
        each
        for each in made.cells
        if (each.setting, each.k) == (setting, k)
        and (each.axis, each.load) == condition.place
        and each.temperature == condition.temperature
    ]
    return next((each for group in (workload, None) for each in same if each.group == group), None)
