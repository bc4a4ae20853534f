"""Says when to undo an adoption: a reading in production, and the value that it must not pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from draftwise.core.documents import json_form
from draftwise.core.load import Condition


class Relation(StrEnum):
    """How a reading in production stands to the value that undoes an adoption."""

    BELOW = "<"
    ABOVE = ">"


class RollbackBasis(StrEnum):
    """Where the value of a rollback rule comes from."""

    BREAK_EVEN = "break-even"
    """The value at which the measured gain is gone."""
    BAND_END = "band end"
    """The heaviest load at which the candidate was shown to pay."""
    PROMISE = "promise"
    """The operator's service level objective."""
    BASELINE = "baseline"
    """What the baseline was measured at, times the largest factor that still is no damage."""


def _open_end(loads: tuple[float, float | None] | None) -> tuple[float, float] | None:
    """Return a stretch of load read from JSON, where null is no end."""
    return None if loads is None else (loads[0], inf if loads[1] is None else loads[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """A reading in production that undoes an adoption; any one of an arm's rules on a workload is enough."""

    workload: str
    arm: str
    metric: str
    """Name of a quantity in `knowledge.signals`, which says of which metrics of a server it is made."""
    relation: Relation
    value: float
    """The limit, in the metric's unit."""
    for_s: float
    """How long it must hold."""
    basis: RollbackBasis
    condition: Condition
    """The adopted cell that the value comes from. Traffic at another temperature has rules of its own."""
    loads: tuple[float, float] | None = field(
        default=None, metadata=json_form(wire=tuple[float, float | None] | None, from_wire=_open_end)
    )
    """Loads (above, up to] of the rule, on the axis of its condition; None for every load."""
    measured: float | None = None
    """What the run measured: of the candidate where the value is its break-even, else of the baseline."""
    switch_to: str | None = None
    """The other candidate that is set from this load on; None where the way is back to the baseline."""
