"""Where a condition lies on an axis of load: how many requests at a time, or how many a second."""

from __future__ import annotations

from draftwise.core import Condition, OpenLoop

__all__ = ["UNITS", "format_load", "place_on_axis"]

UNITS = {"concurrency": "concurrent requests", "rate": "requests per second"}
"""By axis."""


def place_on_axis(condition: Condition) -> tuple[str, float] | None:
    """Return the axis of load that a condition lies on (`concurrency` or `rate`) and where.

    None for ramps, bursts and replays: their load is no single number.
    """
    if condition.concurrency is not None:
        return "concurrency", condition.concurrency
    rate = condition.load.rate_per_s if isinstance(condition.load, OpenLoop) else None
    return None if rate is None else ("rate", rate)


def format_load(load: float, axis: str) -> str:
    """Return a load in the digits that make sense: whole requests at a time, or a rate."""
    return f"{load:.0f}" if axis == "concurrency" else f"{load:.3g}"
