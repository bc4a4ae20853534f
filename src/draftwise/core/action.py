"""Steps for a service whose speculation does not pay: possible, proposed and done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Step(StrEnum):
    """A step of the guard, mildest first. No server can change how it drafts while it runs."""

    NOTE = "note"
    """Report only."""
    PROBE = "probe"
    """Send a replica a few prompts, to tell whether traffic or drafter is the cause."""
    LOWER_K = "lower-k"
    """Deploy a config that drafts less."""
    SHIFT = "shift"
    """Take replicas out of the traffic by setting their weight."""
    DRAIN = "drain"
    """Take replicas out of the traffic for good; requests in flight finish there."""
    RESTART = "restart"
    """Restart one replica, and compare."""
    ROLL_BACK = "roll-back"
    """Commit the twin without speculation."""
    RETRAIN = "retrain"
    """Train a drafter for the current traffic."""
    TRICKLE = "trickle"
    """Send a twentieth of the traffic to a replica that is out of it, to see whether it pays again."""
    RELEASE = "release"
    """Put a replica back into the traffic."""


OUT = (Step.SHIFT, Step.DRAIN)
"""Steps that take replicas out of the traffic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A step on replicas of a service, and its evidence."""

    step: Step
    replicas: tuple[str, ...] = ()
    """URLs; empty for a step on the whole service."""
    cause: str
    """Code of the finding that requires it; for a replica on trial, `pays-again` or `still-below-break-even`."""
    reason: str
    """Why, as a sentence."""
    evidence: Mapping[str, float] = field(default_factory=dict)
    """The numbers behind the reason, by name."""
    executes: bool = False
    """Whether the guard carries it out; otherwise it is a proposal."""
