"""Measures: sends load to servers in paired turns, records every clock reading, and decides.

`decide` and `MeasurementSpec` are imported when they are asked for: a process of the load generator needs neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftwise.measure.api import Decided, decide
    from draftwise.measure.spec import Candidate, MeasurementSpec

__all__ = ["Candidate", "Decided", "MeasurementSpec", "decide"]


def __getattr__(name: str) -> Any:
    """Import an entry from its module."""
    if name in ("Decided", "decide"):
        from draftwise.measure import api

        return getattr(api, name)
    if name in ("Candidate", "MeasurementSpec"):
        from draftwise.measure import spec

        return getattr(spec, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
