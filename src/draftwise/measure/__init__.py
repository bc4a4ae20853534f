"""Measures: sends load to servers in paired turns, records every clock reading, and decides.

`MeasurementSpec` is imported on first use, because load-generator processes do not need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.core.lazy import import_on_use

if TYPE_CHECKING:
    from draftwise.measure.measurement_spec import Candidate, MeasurementSpec

__all__ = ["Candidate", "MeasurementSpec"]

__getattr__ = import_on_use(__name__, {"measurement_spec": "Candidate MeasurementSpec"})
