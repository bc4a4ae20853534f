"""Rulings of a server's version on a configuration: findings that also say when and how they take effect."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from draftwise.core.finding import Finding


class Effect(StrEnum):
    """What the server does about it."""

    REJECTED = "rejected"
    """It refuses to start, at `stage` CLI, CONFIG or ENGINE."""
    FAILS_LATER = "fails later"
    """The configuration is accepted, and loading, start-up or requests fail."""
    CHANGED = "changed"
    """Something else runs than was written, without an error."""
    INEFFECTIVE = "ineffective"
    """Accepted and ignored."""
    UNKNOWN = "unknown"
    """It depends on what is not known here: a value that the text does not tell, or a release that nobody has read."""
    DEFECT = "known defect"
    """Accepted, and a fault of the release may show: in answers, in speed, or as a crash."""
    DEPRECATED = "deprecated"
    NOTE = "note"
    """Works as written, and something is worth knowing."""


class CheckOutcome(StrEnum):
    """What becomes of a configuration, as far as it can be judged: headline, JSON and exit code follow from it."""

    ACCEPTED = "accepted"
    FAILS_LATER = "fails later"
    """The configuration is accepted, and loading, start-up or requests fail."""
    REJECTED = "rejected"
    NOT_JUDGED = "not judged"
    """Nothing was found against it, and rules wait for what was not given."""
    CANNOT_BE_JUDGED = "cannot be judged"
    """An error of the source hides what starts: a value that it leaves open, an unknown release, broken YAML."""


class Stage(StrEnum):
    """When a server notices."""

    CLI = "command line"
    CONFIG = "speculative config"
    """While SpeculativeConfig is made."""
    ENGINE = "engine config"
    """While VllmConfig and its other parts are made."""
    START_UP = "start-up"
    """While weights load and runner, proposer and scheduler are made."""
    REQUEST = "request"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling(Finding):
    """A finding about one version of a server."""

    effect: Effect
    stage: Stage
    exception: str = ""
    """Class that the server raises, e.g. `ValidationError`; empty where it raises nothing."""
    becomes: str = ""
    """What runs instead, for `Effect.CHANGED`."""
