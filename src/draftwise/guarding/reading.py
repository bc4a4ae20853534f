"""What a guard goes by: the operator's and the run's rules, and what is seen of a service at one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from draftwise.core import Window
from draftwise.core.action import Step

__all__ = ["HOUR_S", "MIN_WINDOWS", "ProbeReading", "Reading", "Request", "Rules"]

HOUR_S = 3600.0
MIN_WINDOWS = 3
"""A replica is low, or pays again, over so many windows at least."""
_HEALTHY = 1.05
"""A replica pays again from so many times its break-even on: at break-even itself it would come and go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the operator and the run said."""

    break_even: float
    """Tokens per step below which every measured cell loses."""
    pays: float
    """Tokens per step from which on a replica that was taken out pays again."""
    hold_s: float = 30.0
    """For how long a replica has to be below break-even."""
    stale_s: float = 10.0
    """A window that ended longer ago is no reading of now."""
    roll_back_after_s: float = HOUR_S
    min_spec: int = 0
    """Replicas that speculate and stay in the traffic whatever they show."""
    step_gap_s: float = HOUR_S
    can: frozenset[Step] = frozenset()
    """Steps for which an executor was named."""
    trickles: bool = False
    """Whether a replica that is out may be tried with a twentieth of the traffic."""

    @classmethod
    def of(cls, break_evens: Sequence[float], *, every_s: float, min_spec: int, trickles: bool) -> Rules:
        """Return the rules for the break-evens of a run's cells, and for a look every so many seconds.

        Which cell the traffic is like is not known: a replica is low below all of them, and pays above all of them.
        Without any, none is ever low, and none that is out is put back.
        """
        return cls(
            break_even=min(break_evens, default=0.0),
            pays=_HEALTHY * max(break_evens, default=inf),
            hold_s=max(30.0, MIN_WINDOWS * every_s),
            stale_s=2 * every_s + 5,
            min_spec=min_spec,
            trickles=trickles,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReading:
    """What a probe of one replica found."""

    at_s: float
    tokens_per_step: float
    is_same: bool | None
    """Whether it drafts as it did when it was known to be good; None where nothing is known of that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A step that a diagnosis asks for."""

    step: Step
    replicas: tuple[str, ...] = ()
    cause: str
    """Code of the diagnosis."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is seen of a service at one moment."""

    at_s: float
    """Since the epoch."""
    spec: Mapping[str, Window | None]
    """By URL, the window that ends now; None where the replica does not answer."""
    plain: Mapping[str, Window | None]
    probes: Mapping[str, ProbeReading] = field(default_factory=dict)
    """By URL, the latest."""
    requests: tuple[Request, ...] = ()
