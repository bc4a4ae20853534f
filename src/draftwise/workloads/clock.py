"""Reads the times that logs and traces carry."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

__all__ = ["from_begin", "to_seconds"]

_UNITS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
"""(smallest reading, readings a second): epoch times of our day in ns, us and ms; seconds have ten digits."""


def to_seconds(value: Any, per_s: float = 1.0) -> float | None:
    """Return a time in seconds on one clock: an ISO date, or a number; None where it is no time.

    Numbers are epoch times in s, ms, us or ns, told by their size; smaller ones count from some beginning, `per_s` of
    them a second. A date without a zone is taken as UTC.
    """
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    try:
        number = float(value)
    except (TypeError, ValueError):
        return _from_iso(value)
    if not math.isfinite(number):
        return None
    return number / next((each for least, each in _UNITS if abs(number) >= least), per_s)


def _from_iso(value: Any) -> float | None:
    try:
        return to_seconds(datetime.fromisoformat(value.strip()))
    except (AttributeError, ValueError, OverflowError):
        return None


def from_begin(times: Sequence[float | None]) -> tuple[float | None, ...]:
    """Return times counted from the earliest; all None where one is missing, since arrivals are all or nothing."""
    known = [time for time in times if time is not None]
    if not known or len(known) < len(times):
        return (None,) * len(times)
    begin = min(known)
    # Rounded to a microsecond: an epoch time as a float carries no more, and the digits would look like it did.
    return tuple(round(time - begin, 6) for time in known)
