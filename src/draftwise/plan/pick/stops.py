"""Which findings of `check` mean that a server does not start."""

from __future__ import annotations

from draftwise.core import Effect, Ruling, Severity
from draftwise.plan.check import Report

__all__ = ["find_stops"]


def find_stops(report: Report) -> tuple[Ruling, ...]:
    """Return the rulings by which the release rejects a setup, or accepts it and then fails to start."""
    return tuple(each for each in report.findings if isinstance(each, Ruling) and _stops(each))


def _stops(ruling: Ruling) -> bool:
    fails = ruling.effect is Effect.FAILS_LATER and ruling.severity is Severity.ERROR
    return fails or ruling.effect is Effect.REJECTED
