"""Messages between the HTTP process and the engine's process; nothing here needs torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, NamedTuple

from draftwise.core import Finding
from draftwise.engine.config import EngineConfig
from draftwise.engine.outputs import Delta, EngineStats
from draftwise.engine.step.sequence import EngineRequest

__all__ = ["Abort", "Accepted", "Add", "Broke", "Invalid", "Phase", "Ready", "Refused", "StepResult"]


class Add(NamedTuple):
    """To the engine: queue these requests, all or none; the reply is `Accepted` or `Refused` with the same number."""

    number: int
    requests: Sequence[EngineRequest]


class Abort(NamedTuple):
    """To the engine: drop these requests, if they still run."""

    request_ids: Sequence[str]


class Phase(NamedTuple):
    """A phase of the start-up."""

    name: str
    seconds: float | None = None
    """How long it took; None: it has begun."""


class Ready(NamedTuple):
    """The engine is built; its properties."""

    config: EngineConfig
    k: int | None
    """Draft positions; None without speculation."""
    spec: dict[str, Any] | None
    """The resolved speculative config."""
    findings: Sequence[Finding]
    num_pages: int
    stats: EngineStats


class Invalid(NamedTuple):
    """The engine cannot be built: the user's mistakes."""

    findings: Sequence[Finding]


class Broke(NamedTuple):
    """The engine failed, during start-up or later; no more messages follow."""

    reason: str


class Accepted(NamedTuple):
    """The requests of an `Add` are queued."""

    number: int


class Refused(NamedTuple):
    """The requests of an `Add` cannot run; none of them is queued."""

    number: int
    findings: Sequence[Finding]


class StepResult(NamedTuple):
    """Results of a step; `began` and `ended` on the monotonic clock, which all processes of a machine share."""

    began: float
    ended: float
    stats: EngineStats
    rows: list[tuple[Any, ...]]
    """The increments as tuples, which are pickled ten times faster than dataclasses."""

    @classmethod
    def pack(cls, deltas: Iterable[Delta], stats: EngineStats, *, began: float, ended: float) -> StepResult:
        """Pack the increments of a step."""
        return cls(began, ended, stats, list(map(_FIELDS_OF, deltas)))

    def unpack(self) -> list[Delta]:
        """Return the increments."""
        return [Delta(**dict(zip(_NAMES, row, strict=True))) for row in self.rows]


_NAMES = tuple(field.name for field in fields(Delta))
_FIELDS_OF = attrgetter(*_NAMES)
