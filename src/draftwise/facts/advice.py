"""Rules of thumb, published results and measured costs that choosing a method rests on, each with its source.

The rows lie in `data/advice.json`. They are advice and priors: what a release accepts is in its generated tables, and
what pays on an operator's traffic only a measurement says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from draftwise.core import Finding, Severity
from draftwise.facts.stored import read_data

__all__ = [
    "AdviceRule",
    "Anchor",
    "Band",
    "DraftingCost",
    "StepCosts",
    "TrafficKind",
    "all_advice",
    "anchors_of",
    "find_band",
    "get_advice",
    "guide_order",
    "step_costs",
    "traffic_kinds",
]

Overlap = Literal["none", "some", "high"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceRule:
    """One rule by which methods are chosen, ordered, doubted or refused."""

    code: str
    title: str
    explains: str
    source: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Thresholds, by name."""

    def finding(self, message: str, *, severity: Severity = Severity.INFO, where: str = "", fix: str = "") -> Finding:
        """Return the finding that the rule applies."""
        return Finding(code=self.code, severity=severity, message=message, where=where, fix=fix, source=self.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """What acceptance to expect of a method before anything is measured."""

    methods: tuple[str, ...]
    low: float
    high: float
    """Chance that a draft token is accepted, given that those before it were."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """A published result and the conditions it was measured under."""

    methods: tuple[str, ...]
    result: str
    conditions: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficKind:
    """A kind of traffic that operators name."""

    name: str
    overlap: Overlap
    """How much of the output stands in the prompt."""
    place: float
    """Where in a method's band its acceptance is expected: 0 at the low end, 1 at the high end."""
    repetitive: bool
    """Whether answers repeat earlier answers."""
    explains: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftingCost:
    """What drafting adds to a step besides reading the drafter's weights: launches and the host."""

    methods: tuple[str, ...]
    per_token_s: float
    per_step_s: float
    measured: tuple[str, ...]
    """Those of the methods that were measured; the others are taken to be like them."""
    runner: str
    """Model runner that was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Times and shares that a decode step is estimated from."""

    bandwidth_share: float
    """Part of the data sheet's bandwidth that matrix products reach."""
    flops_share: float
    """Part of the data sheet's arithmetic rate that they reach."""
    step_s: float
    """Of a step, whatever it computes, with asynchronous scheduling."""
    row_s: float
    """Of a verified token: sampling and logits."""
    sync_s: float
    """Added without asynchronous scheduling."""
    sync_per_sequence_s: float
    drafting: tuple[DraftingCost, ...]
    source: str

    def of_method(self, method: str) -> DraftingCost:
        """Return the row of a method; KeyError for one that does not draft."""
        found = next((row for row in self.drafting if method in row.methods), None)
        if found is None:
            raise KeyError(method)
        return found


@cache
def all_advice() -> Mapping[str, AdviceRule]:
    """Return every rule by its code."""
    return {row["code"]: AdviceRule(**row) for row in _load()["rules"]}


def get_advice(code: str) -> AdviceRule:
    """Return a rule by its code; KeyError for an unknown one."""
    return all_advice()[code]


def find_band(method: str) -> Band | None:
    """Return the acceptance that is expected of a method; None for one that does not draft."""
    row = next((row for row in _load()["bands"] if method in row["methods"]), None)
    return None if row is None else Band(**{**row, "methods": tuple(row["methods"])})


def anchors_of(method: str) -> tuple[Anchor, ...]:
    """Return the published results of a method."""
    return tuple(
        Anchor(**{**row, "methods": tuple(row["methods"])}) for row in _load()["anchors"] if method in row["methods"]
    )


@cache
def traffic_kinds() -> Mapping[str, TrafficKind]:
    """Return the kinds of traffic by name."""
    return {row["name"]: TrafficKind(**row) for row in _load()["traffic"]}


def guide_order(method: str) -> int:
    """Return how early the guides try a method, 0 first; KeyError for one that they do not name."""
    for place, methods in enumerate(_load()["order"]):
        if method in methods:
            return place
    raise KeyError(method)


@cache
def step_costs() -> StepCosts:
    """Return the measured costs."""
    row = _load()["costs"]
    drafting = tuple(
        DraftingCost(**{**each, "methods": tuple(each["methods"]), "measured": tuple(each["measured"])})
        for each in row["drafting"]
    )
    return StepCosts(**{**row, "drafting": drafting})


@cache
def _load() -> Mapping[str, Any]:
    loaded: Mapping[str, Any] = read_data("advice")
    return loaded
