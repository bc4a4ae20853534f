"""Forecasts that were written down before a run, beside what it measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import ClassVar

from draftwise.core import Comparison, Expectation, Interval
from draftwise.core.documents import json_form

__all__ = ["MeasuredForecast", "describe_forecasts", "hold_forecasts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredForecast:
    """A forecast compared with the measurement of the same cell."""

    JSON_DERIVED: ClassVar[tuple[str, ...]] = ("is_inside",)
    candidate: str
    workload: str
    load: str
    """Label of the condition, e.g. `c=8`."""
    expected: Interval = field(metadata=json_form(key="forecast"))
    """Forecast speed-up, with its 90 % interval."""
    measured: Interval

    @property
    def error(self) -> float:
        """Forecast over measured, minus 1."""
        return self.expected.value / self.measured.value - 1

    @property
    def is_inside(self) -> bool:
        """Whether the measured value lies in the forecast's interval."""
        return self.expected.low <= self.measured.value <= self.expected.high


def hold_forecasts(expected: Iterable[Expectation], comparisons: Sequence[Comparison]) -> list[MeasuredForecast]:
    """Return the forecasts of cells that were measured."""
    measured = {(each.candidate, each.workload, each.condition.label): each.deciding for each in comparisons}
    return [
        MeasuredForecast(
            candidate=each.candidate,
            workload=each.workload,
            load=each.load,
            expected=Interval(value=each.value, low=each.low, high=each.high),
            measured=measured[place],
        )
        for each in expected
        if (place := (each.candidate, each.workload, each.load)) in measured
    ]


def describe_forecasts(held: Sequence[MeasuredForecast]) -> str:
    """Return in a sentence how good the forecasts were; empty where there are none."""
    if not held:
        return ""
    errors = [abs(each.error) for each in held]
    inside = sum(each.is_inside for each in held)
    return (
        f"Forecasts were off by {median(errors):.1%} in the median, {max(errors):.1%} at most; "
        f"{inside} of {len(held)} measured speed-ups lie in the 90 % interval."
    )
