"""Rules of thumb, priors, published results and measured costs by which a method is chosen, each with its source.

The rows are in `data/advice.json`. What a release accepts is in its generated tables; what pays on an operator's
traffic is for a measurement to decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from draftwise.core import Finding, Severity
from draftwise.knowledge.stored import read_rows

__all__ = [
    "AcceptancePrior",
    "AdviceRule",
    "DraftingCost",
    "PublishedResult",
    "SeenAcceptance",
    "StepCosts",
    "TemperatureEffect",
    "TrafficKind",
    "all_advice",
    "find_prior",
    "find_published_results",
    "find_seen_acceptance",
    "get_advice",
    "get_guide_rank",
    "read_step_costs",
    "read_temperature_effect",
    "read_traffic_kinds",
]

Overlap = Literal["none", "some", "high"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceRule:
    """One rule by which methods are chosen, ordered or refused."""

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
class AcceptancePrior:
    """The acceptance to expect of a method before anything is measured."""

    methods: tuple[str, ...]
    low: float
    high: float
    """Probability that a draft token is accepted, given that those before it were."""
    source: str
    overlap: Overlap | None = None
    """Traffic that it is about; None for every other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenAcceptance:
    """Tokens per step that somebody measured, on traffic of a kind."""

    methods: tuple[str, ...]
    traffic: str
    length: float
    """Tokens per step, or per verified draft where the drafts of every step are."""
    k: int
    conditions: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TemperatureEffect:
    """What sampling does to the acceptance of drafts."""

    greedy: float
    """Factor of the acceptance at temperature 1, for drafts that are the drafter's best tokens."""
    probabilistic: float
    """The same for drafts that are sampled, and accepted by the ratio of both probabilities."""
    source: str

    def factor(self, temperature: float, *, sampled: bool = False) -> float:
        """Return the factor at a temperature: it falls slowly at first, as the best token keeps most of its mass."""
        at_one = self.probabilistic if sampled else self.greedy
        return float(at_one ** (temperature * temperature))


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedResult:
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
    """How much of the output repeats the prompt."""
    place: float
    """Where in a method's acceptance prior this traffic is expected: 0 at the low end, 1 at the high end."""
    repetitive: bool
    """Whether answers repeat earlier answers."""
    explains: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftingCost:
    """What drafting adds to a step besides reading the drafter's weights: kernel launches and host work."""

    methods: tuple[str, ...]
    per_token_s: float
    per_step_s: float
    measured: tuple[str, ...]
    """Those of `methods` that were measured; the others are assumed to cost the same."""
    runner: str
    """The model runner on which they were measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Measured times and efficiencies from which a decode step is estimated."""

    bandwidth_share: float
    """Share of the data sheet's bandwidth that matrix products reach."""
    flops_share: float
    """Share of the data sheet's arithmetic rate that they reach."""
    kv_bandwidth_share: float
    """Share of the data sheet's bandwidth that attention reads keys and values at."""
    sharpness: float
    """Exponent p of (reading^p + computing^p)^(1/p), the time of a product that reads and computes at once."""
    step_s: float
    """Fixed time of a step with asynchronous scheduling."""
    row_s: float
    """Time per verified token, for logits and sampling."""
    sync_s: float
    """Added to a step without asynchronous scheduling."""
    sync_per_sequence_s: float
    piecewise_s: float
    """Added to a step without a full CUDA graph."""
    uncaptured_s: float
    """The least that a drafting step takes beyond the largest captured size."""
    drafting: tuple[DraftingCost, ...]
    source: str

    def get_drafting(self, method: str) -> DraftingCost:
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


def find_prior(method: str, overlap: Overlap | None = None) -> AcceptancePrior | None:
    """Return the acceptance to expect of a method on such traffic; None for one that does not draft."""
    rows = (row for row in _load()["priors"] if method in row["methods"])
    row = next((row for row in rows if row.get("overlap") in (None, overlap)), None)
    return None if row is None else AcceptancePrior(**row)


def find_seen_acceptance(method: str) -> tuple[SeenAcceptance, ...]:
    """Return what was measured of a method's acceptance."""
    return tuple(SeenAcceptance(**row) for row in _load()["seen_acceptance"] if method in row["methods"])


@cache
def read_temperature_effect() -> TemperatureEffect:
    """Return what sampling does to acceptance."""
    return TemperatureEffect(**_load()["temperature"])


def find_published_results(method: str) -> tuple[PublishedResult, ...]:
    """Return the published results of a method."""
    return tuple(PublishedResult(**row) for row in _load()["published_results"] if method in row["methods"])


@cache
def read_traffic_kinds() -> Mapping[str, TrafficKind]:
    """Return the kinds of traffic by name."""
    return {row["name"]: TrafficKind(**row) for row in _load()["traffic"]}


def get_guide_rank(method: str) -> int:
    """Return a method's rank in the guides' order, from 0; KeyError for one that they do not name."""
    for place, methods in enumerate(_load()["order"]):
        if method in methods:
            return place
    raise KeyError(method)


@cache
def read_step_costs() -> StepCosts:
    """Return the measured costs of steps and of drafting."""
    row = _load()["costs"]
    return StepCosts(**{**row, "drafting": tuple(DraftingCost(**each) for each in row["drafting"])})


@cache
def _load() -> Mapping[str, Any]:
    loaded: Mapping[str, Any] = read_rows("advice")
    return loaded
