"""What a guard knows from one look to the next, and what of it survives its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from draftwise.core.action import Step
from draftwise.guarding.evidence import Sample
from draftwise.watching.drift import Drift, DriftModel, Form

__all__ = ["Latch", "State"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Latch:
    """A replica that was taken out of the traffic, and stays out until it is shown to pay again."""

    step: Step
    """`shift` or `drain`, and `trickle` while a twentieth of the traffic tries it."""
    since_s: float
    """Of that step, since the epoch."""
    out_since_s: float
    """When it was taken out."""
    cause: str
    """What it was taken out for."""
    means: str = ""
    """The executor that does it, as it was named on the command line."""
    is_confirmed: bool = False
    """Whether it is known to have been done; it is on disk before that it will be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All that a decision rests on beside the reading of the moment."""

    recent: Mapping[str, tuple[Sample, ...]] = field(default_factory=dict)
    """By replica, since the latest change of its traffic; not kept over a restart of the guard."""
    low_since_s: Mapping[str, float] = field(default_factory=dict)
    """By replica, since when it is known to be below break-even."""
    latches: Mapping[str, Latch] = field(default_factory=dict)
    last_step_s: float | None = None
    """When a step was last carried out, whichever."""
    proposed: Mapping[str, float] = field(default_factory=dict)
    """By step and replicas, when it was last proposed."""
    rolled_back_s: float | None = None
    """When the way back was last written."""
    hands_off: frozenset[str] = frozenset()
    """Replicas that somebody else put back into the traffic: nothing is done to them until that is acknowledged."""
    learn_from_s: float = 0.0
    """Rows of before the last acknowledged change are of another service."""
    drift_model: DriftModel | None = None
    drift: Drift = field(default_factory=Drift)

    def to_dict(self) -> dict[str, Any]:
        """Return what survives as JSON."""
        return {
            "latches": {replica: asdict(latch) for replica, latch in self.latches.items()},
            "low_since_s": dict(self.low_since_s),
            "last_step_s": self.last_step_s,
            "proposed": dict(self.proposed),
            "rolled_back_s": self.rolled_back_s,
            "hands_off": sorted(self.hands_off),
            "learn_from_s": self.learn_from_s,
            "drift_model": None if self.drift_model is None else self.drift_model.to_dict(),
            "drift": {
                "sums": {str(form): each for form, each in self.drift.sums.items()},
                "alarm_s": self.drift.alarm_s,
            },
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> State:
        """Return what `to_dict` wrote.

        Raises:
            ValueError, LookupError, TypeError: it is something else.
        """
        known = {each.name for each in fields(cls)} - {"recent"}
        if odd := given.keys() ^ known:
            raise ValueError(f"it lacks, or should not have, {', '.join(sorted(odd))}")
        model, drift = given["drift_model"], given["drift"]
        parts = {
            "latches": {name: Latch(**{**each, "step": Step(each["step"])}) for name, each in given["latches"].items()},
            "hands_off": frozenset(given["hands_off"]),
            "drift_model": None if model is None else DriftModel.from_dict(model),
            "drift": Drift(sums={Form(form): each for form, each in drift["sums"].items()}, alarm_s=drift["alarm_s"]),
        }
        return cls(**{**given, **parts})

    def mark(self, replicas: Iterable[str], means: str, *, is_confirmed: bool) -> State:
        """Return the state in which a step on replicas is by an executor, and known to have been done or not."""
        marked = {
            name: replace(self.latches[name], means=means, is_confirmed=is_confirmed)
            for name in replicas if name in self.latches
        }  # fmt: skip
        return replace(self, latches={**self.latches, **marked})

    def without(self, replicas: tuple[str, ...]) -> State:
        """Return the state in which replicas are in the traffic again, and are judged afresh."""
        return replace(
            self,
            latches={name: each for name, each in self.latches.items() if name not in replicas},
            recent={name: each for name, each in self.recent.items() if name not in replicas},
            low_since_s={name: each for name, each in self.low_since_s.items() if name not in replicas},
        )

    def acknowledge(self, now_s: float) -> State:
        """Return the state after an operator said that what changed is known: it is learned from now on."""
        return replace(self, hands_off=frozenset(), learn_from_s=now_s, drift_model=None, drift=Drift(), proposed={})
