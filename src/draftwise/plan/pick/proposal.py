"""How a method could be run for a target, or why it is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from draftwise.core import Finding, Severity
from draftwise.knowledge.advice import get_advice
from draftwise.knowledge.methods import get_method
from draftwise.knowledge.published_drafters import PublishedDrafter
from draftwise.plan.cost.work import Work
from draftwise.plan.pick.case import Case

__all__ = ["Proposal", "Refusal", "cite", "find_published_caveats", "refuse", "refuse_no_drafter"]


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
    trained_on: str | None = None
    """The one kind of traffic that its drafter was trained for."""
    place: int
    """Position in the guides' order of methods, for this target and traffic: the smallest is tried first."""
    at_hand: bool = False
    """Whether the operator gave its drafter."""
    lengths: tuple[int, ...]
    """Values of k that its drafter allows."""
    why_lengths: Finding | None = None
    """Where `lengths` comes from; None for the usual range."""
    work: Work | None = None
    """Of one pass of the drafter."""
    reasons: tuple[Finding, ...] = ()
    caveats: tuple[Finding, ...] = ()
    alternatives: tuple[PublishedDrafter, ...] = ()
    """Further published drafters for the same method."""
    bound: int | None = None
    """`num_speculative_tokens`, if it is only an upper bound on drafts of varying length."""
    args: Mapping[str, Any] = field(default_factory=dict)
    """Engine flags that the method needs on this release."""
    stand_in: Mapping[str, Any] | None = None
    """A config.json like the drafter's, to check in its place if the drafter itself is not on disk."""


def refuse(method: str, code: str, message: str, *, fix: str = "") -> Refusal:
    """Return a method's refusal by one rule."""
    return Refusal(method=method, reasons=(get_advice(code).finding(message, fix=fix),))


def refuse_no_drafter(case: Case, method: str) -> Refusal:
    """Return the refusal of a method that lacks its drafter."""
    train = " Or train one: draftwise train." if case.requirements.can_train and get_method(method).trainable else ""
    return refuse(
        method,
        "no-drafter-known",
        f"No drafter of this kind for {case.target.name} was given or is known to be published.",
        fix=f"Give one with --drafter.{train}",
    )


def cite(finding: Finding, row: PublishedDrafter) -> Finding:
    """Return a finding with a row of the table of drafters as its source."""
    return replace(finding, source=f"{row.source}, read {row.checked}")


def find_published_caveats(case: Case, row: PublishedDrafter, *, exact: bool) -> list[Finding]:
    """Return what is worth knowing about a published drafter; `exact` if it was made for this very checkpoint."""
    notes = []
    if not exact:
        made_for = ", ".join(row.targets)
        notes.append(
            get_advice("head-for-another").finding(
                f"{row.model} was made for {made_for}; {case.target.name} only has the same shape.",
                severity=Severity.WARNING,
                fix="If it is a fine-tuned copy, expect lower acceptance, or train a drafter: draftwise train.",
            )
        )
    if row.note:
        notes.append(cite(get_advice("publisher-note").finding(row.note, severity=Severity.WARNING), row))
    if case.requirements.air_gapped:
        notes.append(
            get_advice("air-gapped").finding(
                f"Copy {row.model} to the server, and keep the name of its directory.", severity=Severity.WARNING
            )
        )
    return notes
