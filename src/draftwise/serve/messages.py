"""What the HTTP process and the engine's process tell each other; nothing here needs torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, NamedTuple

from draftwise.core import Finding
from draftwise.engine.config import EngineConfig
from draftwise.engine.outputs import Delta, EngineStats
from draftwise.engine.step.sequence import Request

__all__ = ["Abort", "Accepted", "Add", "Broke", "Invalid", "Phase", "Ready", "Refused", "Step"]


class Add(NamedTuple):
    """To the engine: take these requests, all or none; answered with `Accepted` or `Refused` of that number."""

    number: int
    requests: Sequence[Request]


class Abort(NamedTuple):
    """To the engine: drop these requests, if they still run."""

    request_ids: Sequence[str]


class Phase(NamedTuple):
    """A phase of the start-up."""

    name: str
    seconds: float | None = None
    """None: it has begun; else what it took."""


class Ready(NamedTuple):
    """The engine is built; what there is to know of it."""

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
    """The engine failed, while it was built or later; no more will come."""

    reason: str


class Accepted(NamedTuple):
    """The requests of an `Add` are queued."""

    number: int


class Refused(NamedTuple):
    """The requests of an `Add` cannot run, and none of them does."""

    number: int
    findings: Sequence[Finding]


class Step(NamedTuple):
    """What a step gave: `began` and `ended` on the monotonic clock, which all processes of a machine share."""

    began: float
    ended: float
    stats: EngineStats
    rows: list[tuple[Any, ...]]
    """The increments as plain tuples: pickled ten times faster than as dataclasses."""

    @classmethod
    def of(cls, deltas: Iterable[Delta], stats: EngineStats, *, began: float, ended: float) -> Step:
        """Pack the increments of a step."""
        return cls(began, ended, stats, list(map(_FIELDS_OF, deltas)))

    def deltas(self) -> list[Delta]:
        """Return the increments."""
        return [Delta(**dict(zip(_NAMES, row, strict=True))) for row in self.rows]


_NAMES = tuple(field.name for field in fields(Delta))
_FIELDS_OF = attrgetter(*_NAMES)
