"""The rules that undo an adoption: readings in production with a limit."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from draftwise.core.documents import json_form
from draftwise.core.load import Condition


class Relation(StrEnum):
    """How a reading in production must compare with the limit to undo an adoption."""

    BELOW = "<"
    ABOVE = ">"


class RollbackBasis(StrEnum):
    """Source of a rollback rule's limit."""

    BREAK_EVEN = "break-even"
    """The value at which the measured gain is lost."""
    BAND_END = "band end"
    """The highest load at which the candidate was shown to pay."""
    PROMISE = "promise"
    """The operator's service level objective."""
    BASELINE = "baseline"
    """The baseline's measured value, times the largest factor that counts as no damage."""


def _open_end(loads: tuple[float, float | None] | None) -> tuple[float, float] | None:
    """Return a stretch of load read from JSON, where null is no end."""
    return None if loads is None else (loads[0], inf if loads[1] is None else loads[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """A reading in production that undoes an adoption; one of an arm's rules on a workload is enough."""

    workload: str
    arm: str
    metric: str
    """Name of a quantity in `knowledge.signals`, which lists the metrics that it is computed from."""
    relation: Relation
    value: float
    """The limit, in the metric's unit."""
    for_s: float
    """Seconds for which it must hold."""
    basis: RollbackBasis
    condition: Condition
    """Condition of the adopted cell. Traffic at another temperature has its own rules."""
    loads: tuple[float, float] | None = field(
        default=None, metadata=json_form(wire=tuple[float, float | None] | None, from_wire=_open_end)
    )
    """Loads (above, up to] of the rule, on the axis of its condition; None for every load."""
    measured: float | None = None
    """Value measured in the run: the candidate's if the limit is its break-even, else the baseline's."""
    switch_to: str | None = None
    """Candidate to switch to from this load on; None for the baseline."""
