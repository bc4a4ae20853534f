"""Rules of thumb, kinds of traffic and measured costs for choosing a method, each with its source.

The rows are in `data/advice.json` and `data/seen_speedups.json`; facts about a single method are in its own row
(`knowledge.methods`). What a release accepts is in its generated tables. What pays on your traffic, only a measurement
can tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from math import exp, log
from typing import Literal

from draftwise.core import Finding, Severity
from draftwise.knowledge.method_advice import DraftingCost, Overlap
from draftwise.knowledge.methods import find_method, methods_where
from draftwise.knowledge.stored import read_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenSpeedup:
    """One series of readings."""

    targets: tuple[str, ...]
    method: str
    points: tuple[tuple[int, float], ...]
    """(sequences that decode together, speed-up over plain decoding), in order of load."""
    conditions: str
    source: str
    k: int | None = None
    gpu: str | None = None
    """Name of the GPU; None if the source does not name it, or for another kind of machine."""
    gpus: int | None = None
    """Number of GPUs of the server; None if the source does not say."""
    traffic: str | None = None
    """Kind of requests; None for any."""
    ours: bool = False
    """Whether draftwise measured it, so that it can be repeated."""
    tokens_per_step: float | None = None
    context: int = 1024
    """Context length in tokens at which it was measured."""

    def at(self, sequences: int) -> float:
        """Return the speed-up at a load, interpolated over the logarithm; beyond the readings, the nearest one."""
        below = [point for point in self.points if point[0] <= sequences] or [self.points[0]]
        above = [point for point in self.points if point[0] >= sequences] or [self.points[-1]]
        (low, before), (high, after) = below[-1], above[0]
        if low == high:
            return before
        share = log(sequences / low) / log(high / low)
        return exp((1 - share) * log(before) + share * log(after))


def find_seen_speedups(names: Iterable[str], method: str) -> tuple[SeenSpeedup, ...]:
    """Return the readings of a method on a target with any of these names; case does not matter."""
    wanted = {name.lower() for name in names}
    found = (row for row in read_seen_speedups() if row.method == method)
    return tuple(row for row in found if not wanted.isdisjoint(map(str.lower, row.targets)))


@cache
def read_seen_speedups() -> tuple[SeenSpeedup, ...]:
    """Return every series."""
    return tuple(
        SeenSpeedup(**{**row, "points": tuple((count, gain) for count, gain in row["points"])})
        for row in read_rows("seen_speedups")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceRule:
    """One rule by which methods are chosen, ordered or refused."""

    code: str
    title: str
    explains: str
    source: str
    message: str = ""
    """Text of its finding, with placeholders."""
    fix: str = ""
    """Text of its fix, with placeholders."""
    severity: Severity = Severity.INFO
    weight: Literal["", "ends", "off", "doubt"] = ""
    """How strongly it counts against speculation (`plan.pick.Weight`); empty if it does not."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Thresholds, by name."""

    def finding(self, **values: object) -> Finding:
        """Return the finding for a case of the rule.

        Args:
            values: values of the placeholders; `message` and `fix` replace the row's own texts.

        Raises:
            KeyError: a placeholder has no value.
        """
        message = str(values["message"]) if "message" in values else self.message.format_map(values)
        fix = str(values["fix"]) if "fix" in values else self.fix.format_map(values)
        return Finding(code=self.code, severity=self.severity, message=message, fix=fix, source=self.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemperatureEffect:
    """The effect of sampling on acceptance."""

    greedy: float
    """Factor on acceptance at temperature 1, for drafts of the drafter's best tokens."""
    probabilistic: float
    """Likewise for sampled drafts, accepted by the ratio of both probabilities."""
    source: str

    def factor(self, temperature: float, *, sampled: bool = False) -> float:
        """Return the factor at a temperature; it falls slowly at first, while the best token keeps most probability."""
        at_one = self.probabilistic if sampled else self.greedy
        return float(at_one ** (temperature * temperature))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficKind:
    """A named kind of traffic."""

    name: str
    overlap: Overlap
    """How much of the output repeats the prompt."""
    place: float
    """Where in a method's acceptance prior this traffic is expected: 0 at the low end, 1 at the high end."""
    repetitive: bool
    """Whether answers repeat earlier answers."""
    explains: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Measured times and efficiencies from which a decode step is estimated."""

    bandwidth_share: float
    """Share of the data sheet's bandwidth that matrix products reach."""
    flops_share: float
    """Share of the data sheet's arithmetic rate that matrix products reach."""
    kv_bandwidth_share: float
    """Share of the data sheet's bandwidth with which attention reads keys and values."""
    sharpness: float
    """Exponent p of (reading^p + computing^p)^(1/p), the time of a matrix product."""
    step_s: float
    """Fixed seconds of a step with asynchronous scheduling."""
    row_s: float
    """Seconds per verified token, for logits and sampling."""
    sync_s: float
    """Seconds added to a step without asynchronous scheduling."""
    sync_per_sequence_s: float
    piecewise_s: float
    """Seconds added to a step without a full CUDA graph."""
    uncaptured_s: float
    """Minimum seconds of a drafting step beyond the largest captured size."""
    source: str


@cache
def all_advice() -> Mapping[str, AdviceRule]:
    """Return every rule by its code."""
    return {
        row["code"]: AdviceRule(**{**row, "severity": Severity(row.get("severity", "info"))})
        for row in read_rows("advice")["rules"]
    }


def get_advice(code: str) -> AdviceRule:
    """Return a rule by its code; KeyError for an unknown one."""
    return all_advice()[code]


def give_advice(code: str, **values: object) -> Finding:
    """Return the finding for a case of a rule (`AdviceRule.finding`); KeyError for an unknown rule."""
    return get_advice(code).finding(**values)


@cache
def read_temperature_effect() -> TemperatureEffect:
    """Return the effect of sampling on acceptance."""
    return TemperatureEffect(**read_rows("advice")["temperature"])


@cache
def read_traffic_kinds() -> Mapping[str, TrafficKind]:
    """Return the kinds of traffic by name."""
    return {row["name"]: TrafficKind(**row) for row in read_rows("advice")["traffic"]}


@cache
def read_step_costs() -> StepCosts:
    """Return the measured costs of steps."""
    return StepCosts(**read_rows("advice")["costs"])


@cache
def find_drafting_cost(name: str) -> DraftingCost | None:
    """Return the measured cost of drafting with a method, else that of the first method of its kind.

    None for an unknown method, one that drafts nothing, or one of whose kind none was measured.
    """
    method = find_method(name)
    if method is None or method.drafts_from in ("own_code", "none"):
        return None
    if method.advice.cost is not None:
        return method.advice.cost
    alike = methods_where(drafts_from=method.drafts_from, network=method.network).values()
    cost = next((each.advice.cost for each in alike if each.advice.cost is not None), None)
    return None if cost is None else replace(cost, measured=False)
