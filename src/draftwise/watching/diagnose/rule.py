"""A rule: the code of a diagnosis and the pure function that says whether a pool has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from draftwise.watching.diagnose.case import Case

__all__ = ["Found", "Rule", "tell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a rule saw."""

    message: str
    """A whole sentence."""
    evidence: tuple[str, ...] = ()
    """Observations."""
    loss: float | None = None
    """Its part of the time per token, as a logarithm; None where nothing is known to hold it against."""
    where: str = ""
    """The server that it is about; empty for the whole pool."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One diagnosis that windows, perhaps with a probe or a config, can decide."""

    code: str
    find: Callable[[Case], Found | None]
    """Called only with every reading at hand that the code's row in the registry needs."""
    certainty: float = 1.0
    """Below 1 for what is more often the consequence of something else."""


def tell(name: str, now: float | None, then: float | None = None, *, of: str = "expected", unit: str = "") -> str:
    """Return an observation, such as `tokens per step 1.21, break-even 1.35`."""
    here = "unknown" if now is None else f"{now:.3g}{unit}"
    return f"{name} {here}" if then is None else f"{name} {here}, {of} {then:.3g}{unit}"
