"""A run's promise for the adopted setup: the numbers to compare production with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from draftwise.core import NO_PROBE, Baseline, Expected, Rollback, RollbackBasis
from draftwise.deploying.order import RunEvidence, ServiceOrder
from draftwise.knowledge.methods import find_method
from draftwise.knowledge.signals import LOAD_SIGNALS, TOKENS_PER_STEP

if TYPE_CHECKING:
    from draftwise.core import Decision

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
        yield "When to roll back: no run adopted this setup for this model, release and GPU."
    yield NO_PROBE
    yield "Values to expect by hour of the week: they need three weeks of this service's traffic."
