"""Numbers as a reader sees them: loads with their unit, ratios with their interval, changes in percent."""

from __future__ import annotations

import math

from draftwise.core import Interval

__all__ = ["LOAD_UNITS", "format_change", "format_load", "format_number", "format_ratio", "format_stretch"]

LOAD_UNITS = {"concurrency": "concurrent requests", "rate": "requests per second"}
"""By axis of load."""


def format_load(load: float, axis: str) -> str:
    """Return a load in the digits that make sense: whole requests at a time, or a rate."""
    return f"{load:.0f}" if axis == "concurrency" else f"{load:.3g}"


def format_stretch(low: float, high: float, axis: str) -> str:
    """Return e.g. `4-9`, `4-more`: two loads, the second maybe unbounded."""
    return f"{format_load(low, axis)}-{'more' if math.isinf(high) else format_load(high, axis)}"


def format_ratio(ratio: Interval) -> str:
    """Return e.g. `1.92x (1.81-2.03)`: the ratio and its confidence interval."""
    return f"{ratio.value:.2f}x ({ratio.span})"


def format_number(value: float | None) -> str:
    """Return a number with two digits, a dash for None."""
    return "-" if value is None else f"{value:.2f}"


def format_change(ratio: Interval | float | None) -> str:
    """Return a ratio of times as a signed percentage, a dash for None."""
    value = ratio.value if isinstance(ratio, Interval) else ratio
    return "-" if value is None else f"{value - 1:+.0%}"
