"""Holds a run's promise of the adopted setup, in numbers and PromQL that production is compared with."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from draftwise.core import NO_LIMITS, NO_PROBE, Baseline, Expected, Rollback, RollbackBasis
from draftwise.deploying.order import RunEvidence, ServiceOrder
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.methods import find_method
from draftwise.knowledge.signals import LOAD_SIGNALS, TOKENS_PER_STEP
from draftwise.knowledge.vllm import Release, get_release

if TYPE_CHECKING:
    from draftwise.core import Decision

PROMETHEUS = "http://prometheus-operated.monitoring:9090"
"""Default address of the Prometheus Operator's server inside a cluster."""
VLLM = "vllm:"
"""Prefix of vLLM's own metrics; Ray's exporter writes `ray_vllm_`."""
_PREFIX = re.compile(r"[a-zA-Z_:][\w:]*", re.ASCII)
_SERIES = re.compile(rf"\b({VLLM}|draftwise:|(?=(?:up|process_start_time_seconds)\b))([\w:]+)(?:\{{([^}}]*)\}})?")
"""A name of the exporter's, of a recording rule's or of the target's own, and what it has to match."""
_SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_sum", "_count", "_bucket"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """Names and labels of a service's metrics."""

    release: Release
    model: str
    """Label `model_name`: the model name in requests."""
    service: str
    """The label `service`, which the scrape takes from the pods."""
    revisions: tuple[str, ...]
    """The label `revision` of the service and of its twin."""
    prefix: str = VLLM

    def find_missing(self, expression: str) -> str:
        """Return the first sample in an expression that the release does not export; empty if it exports all."""
        exported = set(self._list_samples())
        names = (name for origin, name, _ in _SERIES.findall(expression) if origin == VLLM)
        return next((name for name in names if name not in exported), "")

    @property
    def matchers(self) -> tuple[str, ...]:
        """Label matchers of each series."""
        return f"service={json.dumps(self.service)}", f'revision=~"{"|".join(self.revisions)}"'

    def write(self, expression: str, *matchers: str) -> str:
        """Return an expression restricted to this service and to further label matchers."""

        def select(found: re.Match[str]) -> str:
            origin, name, own = found.groups()
            wanted = ",".join(filter(None, (*self.matchers, *matchers, own)))
            return f"{self.prefix if origin == VLLM else origin}{name}{{{wanted}}}"

        return _SERIES.sub(select, expression)

    def _list_samples(self) -> Iterator[str]:
        for name, row in self.release.table("metrics").items():
            yield from (name.removeprefix(VLLM) + suffix for suffix in _SUFFIXES[row["kind"]])


def name_for(order: ServiceOrder, prefix: str) -> Naming:
    """Return the metric names and labels of an order's server.

    Raises:
        InvalidSetup: the prefix is not valid in a metric name.
    """
    if not _PREFIX.fullmatch(prefix):
        raise refusal("metrics-prefix", prefix=prefix)
    served = order.setup.args.get("served_model_name")
    names = served if isinstance(served, list | tuple) else [served]
    release = get_release(order.setup.engine_version)
    return Naming(
        release=release,
        model=str(names[0]) if names and names[0] else order.setup.target,
        service=order.service,
        revisions=(order.revision, order.go_back().revision),
        prefix=prefix,
    )


_SCHEDULE = "num_speculative_tokens_per_batch_size"


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """Tokens per step in the adopted cell with the highest break-even."""

    break_even: float
    """Tokens per step below which the measured gain is lost."""
    measured: float
    """Tokens per step measured in that cell."""
    wanted_gain: float
    """Minimum speed-up worth a change, as a share."""
    rate_per_s: float | None
    """Requests per second; None if the load was no rate."""

    @property
    def worthwhile(self) -> float:
        """Tokens per step from which on the change is worth it."""
        return self.break_even * (1 + self.wanted_gain)


def find_promise(order: ServiceOrder) -> Promise | None:
    """Return the run's promise; None if no run adopted the setup by its counters."""
    strictest = _find_strictest(order.evidence.rollback)
    if strictest is None or strictest.measured is None:
        return None
    place = strictest.condition.place
    return Promise(
        break_even=strictest.value,
        measured=strictest.measured,
        wanted_gain=order.evidence.wanted_gain,
        rate_per_s=place[1] if place is not None and place[0] == "rate" else None,
    )


def _find_strictest(rules: Iterable[Rollback]) -> Rollback | None:
    """Return the rule with the highest break-even of tokens per step. None without such a rule."""
    found = (rule for rule in rules if (rule.basis, rule.metric) == (RollbackBasis.BREAK_EVEN, TOKENS_PER_STEP.name))
    return max(found, key=lambda rule: rule.value, default=None)


def find_crossover(order: ServiceOrder) -> float | None:
    """Return the requests in flight per server beyond which it does not pay: the minimum over workloads."""
    in_flight = LOAD_SIGNALS["concurrency"].name
    ends = [rule.value for rule in _rules(order, RollbackBasis.BAND_END) if rule.metric == in_flight]
    return min(ends, default=None)


def find_expected_coverage(order: ServiceOrder) -> float | None:
    """Return the share of the run's steps with a draft; None if not counted, or if a schedule skips steps."""
    expected, spec = order.evidence.expected, order.setup.spec
    if expected is None or spec is None or _SCHEDULE in spec.options:
        return None
    return expected.counters.coverage


def find_configured_k(order: ServiceOrder) -> int | None:
    """Return the fixed number of draft tokens; None if the setup or the method varies it."""
    spec = order.setup.spec
    method = None if spec is None else find_method(spec.method)
    if spec is None or method is None or method.drafts_from == "text" or _SCHEDULE in spec.options:
        return None
    return spec.num_speculative_tokens


def _rules(order: ServiceOrder, basis: RollbackBasis) -> list[Rollback]:
    return [rule for rule in order.evidence.rollback if rule.basis is basis]


def find_expected(decision: Decision, arm: str) -> Expected | None:
    """Return an arm's counts in the cell with its highest break-even; None if nothing was counted.

    For an arm that was not adopted, they are those of its last, heaviest condition.
    """
    cells = [each for each in decision.comparisons if each.candidate == arm and each.counters.generation_tokens]
    strictest = _find_strictest(rule for rule in decision.rollback if rule.arm == arm)
    if strictest is not None:
        cells = [each for each in cells if (each.workload, each.condition) == (strictest.workload, strictest.condition)]
    if not cells:
        return None
    return Expected(workload=cells[-1].workload, condition=cells[-1].condition, counters=cells[-1].counters)


def make_baseline(evidence: RunEvidence, setup: str) -> Baseline:
    """Return the baseline of a deployment."""
    return Baseline(
        setup_sha256=sha256(setup.encode()).hexdigest(),
        run=evidence.run,
        arm=evidence.arm,
        plain_arm=evidence.plain_arm,
        expected=evidence.expected,
        curve_ms=evidence.curve_ms,
        rollback=evidence.rollback,
        missing=tuple(_list_missing(evidence)),
    )


def _list_missing(evidence: RunEvidence) -> Iterator[str]:
    if evidence.expected is None:
        yield "Counter values to expect: no run measured them for this model, release and GPU."
    if not evidence.curve_ms:
        yield "Duration of a step: no run measured it at a fixed concurrency for this model, release and GPU."
    if not evidence.rollback:
        none = f"{NO_LIMITS}no run adopted this setup for this model, release and GPU."
        yield next((each for each in evidence.unmeasured if each.startswith(NO_LIMITS)), none)
    yield NO_PROBE
    yield "Values to expect by hour of the week: they need three weeks of this service's traffic."
