"""What a method brings forward for itself, or why it is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from draftwise.core import Finding, Severity
from draftwise.facts.advice import get_advice
from draftwise.facts.families import PublishedDrafter
from draftwise.facts.methods import get_method
from draftwise.plan.forecast.work import Work
from draftwise.plan.pick.case import Case

__all__ = ["Proposal", "Refusal", "no_drafter", "published_notes", "refuse", "sourced"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A method that is not recommended, and why."""

    method: str
    reasons: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A method that could be tried."""

    method: str
    spec: Mapping[str, Any]
    """Without `num_speculative_tokens`."""
    place: float
    """How early the guides try it, for this target and traffic."""
    lengths: tuple[int, ...]
    """Values of k that its drafter allows."""
    why_lengths: Finding | None = None
    """Where that comes from; None for the usual range."""
    work: Work | None = None
    """Of one pass of the drafter."""
    reasons: tuple[Finding, ...] = ()
    caveats: tuple[Finding, ...] = ()
    alternatives: tuple[PublishedDrafter, ...] = ()
    """Further published drafters for the same method."""
    bound: int | None = None
    """`num_speculative_tokens` where it is only a bound on drafts whose length varies."""
    args: Mapping[str, Any] = field(default_factory=dict)
    """Engine flags that the method needs on this release."""
    stand_in: Mapping[str, Any] | None = None
    """A config.json like the drafter's, to be judged where the drafter itself is not here."""


def refuse(method: str, code: str, message: str, *, fix: str = "") -> Refusal:
    """Return a refusal by one rule."""
    return Refusal(method=method, reasons=(get_advice(code).finding(message, fix=fix),))


def no_drafter(case: Case, method: str) -> Refusal:
    """Return the refusal of a method that lacks its drafter."""
    train = " Or train one: draftwise train." if case.wish.can_train and get_method(method).trainable else ""
    return refuse(
        method,
        "no-drafter-known",
        f"No {method} drafter for {case.target.name} is at hand or published.",
        fix=f"Give one with --drafter.{train}",
    )


def sourced(finding: Finding, row: PublishedDrafter) -> Finding:
    """Return a finding that rests on a row of the table of drafters."""
    return replace(finding, source=f"{row.source}, read {row.checked}")


def published_notes(case: Case, row: PublishedDrafter, *, exact: bool) -> list[Finding]:
    """Return what is worth knowing about a published drafter; `exact` if it was made for this very checkpoint."""
    notes = []
    if not exact:
        made_for = ", ".join(row.targets)
        notes.append(
            get_advice("head-for-another").finding(
                f"{row.model} was made for {made_for}, and {case.target.name} only has its shape.",
                severity=Severity.WARNING,
                fix="If it is a fine-tuned copy, expect less acceptance, or train a drafter: draftwise train.",
            )
        )
    if row.note:
        notes.append(sourced(get_advice("publisher-note").finding(row.note, severity=Severity.WARNING), row))
    if case.wish.air_gapped:
        notes.append(
            get_advice("air-gapped").finding(
                f"Copy {row.model} to the server, and keep the directory's name.", severity=Severity.WARNING
            )
        )
    return notes
