"""Formats numbers for readers: loads with their unit, ratios with their interval, changes in percent."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from draftwise.core import Comparison, Condition
from draftwise.deciding.thresholds import Thresholds

if TYPE_CHECKING:
    from draftwise.core import Interval

LOAD_UNITS = {"concurrency": "concurrent requests", "rate": "requests per second"}
"""Units by load axis."""
LATE_FIRST_TOKEN = 1 + Thresholds().ttft_loss
"""Ratio of times to the first token from which a gain mentions it."""


def format_load(load: float, axis: str) -> str:
    """Return a load with useful digits: whole requests in flight, or a rate."""
    return f"{load:.0f}" if axis == "concurrency" else f"{load:.3g}"


def describe_load(condition: Condition) -> str:
    """Return a load in words, without its temperature: `one request at a time`, `2 requests per second`."""
    if condition.concurrency == 1:
        return "one request at a time"
    return condition.load.label if condition.place is None else count_load(condition.place[1], condition.place[0])


def count_load(load: float, axis: str) -> str:
    """Return a load with its unit: `1 concurrent request`, `2.5 requests per second`."""
    unit = LOAD_UNITS[axis]
    return f"{format_load(load, axis)} {unit.replace('requests', 'request') if load == 1 else unit}"


def count_prompts(number: int) -> str:
    """Return e.g. `64 prompts`."""
    return f"{number} prompt{'' if number == 1 else 's'}"


def count_drawn(comparison: Comparison) -> str:
    """Return the number of prompts behind a comparison, e.g. `64 of 246 prompts`."""
    of = comparison.population
    is_part = comparison.num_prompts < of
    return f"{comparison.num_prompts} of {count_prompts(of)}" if is_part else count_prompts(comparison.num_prompts)


def format_stretch(low: float, high: float, axis: str) -> str:
    """Return two loads, e.g. `4-9`, or `4-more` if the second is unbounded."""
    return f"{format_load(low, axis)}-{'more' if math.isinf(high) else format_load(high, axis)}"


def format_ratio(ratio: Interval) -> str:
    """Return e.g. `1.92x (1.81-2.03)`: the ratio and its confidence interval."""
    return f"{ratio.value:.2f}x ({ratio.span})"


def format_number(value: float | None) -> str:
    """Return a number with two digits, a dash for None."""
    return "-" if value is None else f"{value:.2f}"


def format_change(ratio: Interval | float | None) -> str:
    """Return a ratio of times as a signed percentage, a dash for None."""
    value = ratio if ratio is None or isinstance(ratio, float) else ratio.value
    return "-" if value is None else f"{round(value - 1, 2) + 0.0:+.0%}"


def format_points(change: Interval) -> str:
    """Return the interval of a change of a share in points; `not known` if it covers all shares."""
    if change.low <= -1 and change.high >= 1:
        return "not known"
    return f"{100 * change.low:+.0f} to {100 * change.high:+.0f} points"
