"""Findings that say more: rulings of a server's version on a configuration, and diagnoses of a running service."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from draftwise.core.finding import Finding


class Effect(StrEnum):
    """What the server does about it."""

    REJECTED = "rejected"
    """The server refuses to start, at `stage` CLI, CONFIG or ENGINE."""
    FAILS_LATER = "fails later"
    """The configuration is accepted, and loading, start-up or requests fail."""
    CHANGED = "changed"
    """The server runs something else than configured, without an error."""
    INEFFECTIVE = "ineffective"
    """Accepted and ignored."""
    UNKNOWN = "unknown"
    """It depends on something unknown: a value that the text leaves open, or a release that was not reviewed."""
    DEFECT = "known defect"
    """Accepted, but a fault of the release may show in answers or speed, or as a crash."""
    DEPRECATED = "deprecated"
    NOTE = "note"
    """Works as configured, with something worth knowing."""


class CheckOutcome(StrEnum):
    """What happens to a configuration, as far as draftwise can judge; sets headline, JSON and exit code."""

    ACCEPTED = "accepted"
    FAILS_LATER = "fails later"
    """The configuration is accepted, and loading, start-up or requests fail."""
    REJECTED = "rejected"
    NOT_JUDGED = "not judged"
    """No problem was found, but some rules were not checked for lack of input."""
    CANNOT_BE_JUDGED = "cannot be judged"
    """An error in the source hides what starts: an open value, an unknown release, or a file that cannot be read."""


class Stage(StrEnum):
    """When the server notices."""

    CLI = "command line"
    CONFIG = "speculative config"
    """While SpeculativeConfig is created."""
    ENGINE = "engine config"
    """While VllmConfig and its other parts are created."""
    START_UP = "start-up"
    """While weights load, and runner, proposer and scheduler are created."""
    REQUEST = "request"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling(Finding):
    """A finding about one version of a server."""

    effect: Effect
    stage: Stage
    exception: str = ""
    """Class that the server raises, e.g. `ValidationError`; empty if it raises nothing."""
    becomes: str = ""
    """What runs instead, for `Effect.CHANGED`."""


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
