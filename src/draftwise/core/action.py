"""Holds steps for a service whose speculation does not pay: possible, proposed and done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Step(StrEnum):
    """A rung of the ladder, the mildest first. No server can change how it drafts while it runs."""

    NOTE = "note"
    """Tell somebody."""
    PROBE = "probe"
    """Ask a replica a few prompts: what is in the way, the traffic or the drafter?"""
    LOWER_K = "lower-k"
    """Deploy a config that drafts less."""
    SHIFT = "shift"
    """Take replicas out of the traffic by their weight."""
    DRAIN = "drain"
    """Take replicas out of the traffic for good; requests in flight end there."""
    RESTART = "restart"
    """Restart one replica, and compare."""
    ROLL_BACK = "roll-back"
    """Commit the twin without speculation."""
    RETRAIN = "retrain"
    """Train a drafter for the traffic that there is now."""
    TRICKLE = "trickle"
    """Send a twentieth of the traffic to a replica that is out of it, to see whether it pays again."""
    RELEASE = "release"
    """Put a replica back into the traffic."""


OUT = (Step.SHIFT, Step.DRAIN)
"""Steps that take replicas out of the traffic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A step on replicas of a service, and what it rests on."""

    step: Step
    replicas: tuple[str, ...] = ()
    """URLs; none for a step on the whole service."""
    cause: str
    """Code of the finding that asks for it, or `pays-again` and `still-below-break-even` of a replica that is tried."""
    reason: str
    """A whole sentence."""
    evidence: Mapping[str, float] = field(default_factory=dict)
    """The numbers that the sentence rests on, by name."""
    executes: bool = False
    """Whether it is to be carried out; else it is a proposal."""
