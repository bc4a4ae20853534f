"""Compares a run's predicted time and speed-ups with the measured ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import ClassVar

from draftwise.core import Comparison, Estimate, Expectation, Interval, Run
from draftwise.core.documents import json_form
from draftwise.knowledge.messages import text_of


@dataclass(frozen=True, slots=True, kw_only=True)
class UndisturbedTime:
    """The turns that count, if their expected times before the first request are known."""

    JSON_DERIVED: ClassVar[tuple[str, ...]] = ("error",)
    turns: int
    expected_s: float
    took_s: float

    @property
    def error(self) -> float:
        """Expected over actual seconds, minus 1."""
        return self.expected_s / self.took_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldEstimate(Estimate):
    """An estimate of a finished session, compared with the actual time."""

    JSON_DERIVED: ClassVar[tuple[str, ...]] = ("error",)
    turns: int
    """Turns measured after it: fewer than expected if verdicts settled early or time was short, more if disturbed
    turns were retaken."""
    took_s: float
    """Seconds until the last of these turns ended."""

    @property
    def error(self) -> float:
        """Expected over actual seconds per turn, minus 1."""
        return (self.left_s / self.ahead) / (self.took_s / self.turns) - 1


def hold_estimates(estimates: Iterable[Estimate]) -> list[HeldEstimate]:
    """Return the estimates that turns followed, from sessions that ended normally."""
    found = []
    for session in _split_sessions(estimates):
        last = session[-1]
        for each in session if not last.ahead else ():
            if each.ahead and last.done > each.done:
                held = HeldEstimate(**asdict(each), turns=last.done - each.done, took_s=last.at_s - each.at_s)
                found.append(held)
    return found


def find_undisturbed(run: Run) -> UndisturbedTime | None:
    """Return expected and actual time of the turns that count; None if no expected time is known."""
    known = [(each.expected_s, each.took_s) for each in run.turns if each.expected_s and each.took_s]
    expected_s, took_s = sum(each for each, _ in known), sum(each for _, each in known)
    return UndisturbedTime(turns=len(known), expected_s=expected_s, took_s=took_s) if known else None


def _split_sessions(estimates: Iterable[Estimate]) -> Iterator[list[Estimate]]:
    session: list[Estimate] = []
    for each in estimates:
        if session and each.at_s < session[-1].at_s:
            yield session
            session = []
        session.append(each)
    if session:
        yield session


def describe_estimates(held: Iterable[HeldEstimate], undisturbed: UndisturbedTime | None = None) -> str:
    """Return in words the expected and actual time of each session; empty if none ended normally."""
    sessions = [
        (
            f"{each.turns} turns took {each.took_s / 60:.1f} min, but {each.left_s / 60:.1f} min were expected for "
            f"{each.ahead}, {_tell_error(each.error)} for each"
        )
        for each in held
        if not each.done
    ]
    if sessions and undisturbed is not None:
        sessions.append(f"{_tell_error(undisturbed.error)} for the {undisturbed.turns} that count")
    return "; ".join(sessions)


def _tell_error(error: float) -> str:
    return f"{abs(error):.0%} too {'much' if error > 0 else 'little'}"


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
    """Return in a sentence how good the forecasts were; empty without forecasts."""
    if not held:
        return ""
    errors = [abs(each.error) for each in held]
    inside = sum(each.is_inside for each in held)
    return text_of("forecast-errors", median=median(errors), errors=max(errors), inside=inside, held=len(held))
