"""Measures: sends load to servers in paired turns, records every clock reading, and decides.

`decide` and `MeasurementSpec` are imported when they are asked for: a process of the load generator needs neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.core.lazy import import_on_use

if TYPE_CHECKING:
    from draftwise.measure.api import Decided, decide
    from draftwise.measure.spec import Candidate, MeasurementSpec

__all__ = ["Candidate", "Decided", "MeasurementSpec", "decide"]

__getattr__ = import_on_use(__name__, {"api": "Decided decide", "spec": "Candidate MeasurementSpec"})
