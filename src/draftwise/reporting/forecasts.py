"""Forecasts that were written down before a run, beside what it measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from draftwise.core import Comparison, Expectation, Interval

__all__ = ["Held", "describe_forecasts", "hold_forecasts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A forecast beside the measurement of the same cell."""

    expected: Expectation
    measured: Interval

    @property
    def error(self) -> float:
        """Forecast over measured, minus 1."""
        return self.expected.value / self.measured.value - 1

    @property
    def is_inside(self) -> bool:
        """Whether the measured value lies in the forecast's interval."""
        return self.expected.low <= self.measured.value <= self.expected.high

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        expected = self.expected
        return {
            "candidate": expected.candidate,
            "workload": expected.workload,
            "load": expected.load,
            "forecast": {"value": expected.value, "low": expected.low, "high": expected.high},
            "measured": {"value": self.measured.value, "low": self.measured.low, "high": self.measured.high},
            "is_inside": self.is_inside,
        }


def hold_forecasts(expected: Iterable[Expectation], comparisons: Sequence[Comparison]) -> list[Held]:
    """Return the forecasts of cells that were measured."""
    measured = {(each.candidate, each.workload, each.condition.label): each.deciding for each in comparisons}
    places = ((each, (each.candidate, each.workload, each.load)) for each in expected)
    return [Held(expected=each, measured=measured[place]) for each, place in places if place in measured]


def describe_forecasts(held: Sequence[Held]) -> str:
    """Return in a sentence how good the forecasts were; empty where there are none."""
    if not held:
        return ""
    errors = [abs(each.error) for each in held]
    inside = sum(each.is_inside for each in held)
    return (
        f"Forecasts were off by {median(errors):.1%} in the median, {max(errors):.1%} at most; "
        f"{inside} of {len(held)} measured speed-ups lie in the 90 % interval."
    )
