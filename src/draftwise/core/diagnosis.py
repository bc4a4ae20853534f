"""A diagnosis of a running service: the fault, its certainty, and its cost."""

from __future__ import annotations

from dataclasses import dataclass

from draftwise.core.finding import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis(Finding):
    """A finding about a pool of servers, with its evidence; `where` is the pool, or one server of it."""

    evidence: tuple[str, ...] = ()
    """One observation each, such as `tokens per step 1.21, break-even 1.35`."""
    loss: float | None = None
    """Natural logarithm of the slow-down that it explains; None without a value to compare with."""
    certainty: float = 1.0
    """Weight from 0 to 1, relative to a finding that nothing else can explain."""
    follows_from: str = ""
    """Code of another diagnosis of the same pool that explains this one; those are listed last."""
    candidates: tuple[str, ...] = ()
    """Codes of causes that the readings cannot tell apart: known defects of the release that the setup meets, then
    diagnoses, easiest to settle first."""
    settles: str = ""
    """The command that tells most of the candidates apart."""
