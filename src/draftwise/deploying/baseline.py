"""What a run found of the setup that is deployed, as the numbers that production is held against."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import TYPE_CHECKING

from draftwise.core import NO_PROBE, Baseline, Expected
from draftwise.deploying.observe.promise import find_strictest
from draftwise.deploying.order import Evidence

if TYPE_CHECKING:
    from draftwise.core import Decision

__all__ = ["find_expected", "make_baseline"]


def find_expected(decision: Decision, arm: str) -> Expected | None:
    """Return what was counted of an arm where its break-even is the highest; None where nothing was counted.

    An arm that was not adopted has no break-even: then it is what was counted under its last, heaviest condition.
    """
    cells = [each for each in decision.comparisons if each.candidate == arm and each.counters.generation_tokens]
    strictest = find_strictest(rule for rule in decision.rollback if rule.arm == arm)
    if strictest is not None:
        cells = [each for each in cells if (each.workload, each.condition) == (strictest.workload, strictest.condition)]
    if not cells:
        return None
    return Expected(workload=cells[-1].workload, condition=cells[-1].condition, counters=cells[-1].counters)


def make_baseline(evidence: Evidence, setup: str) -> Baseline:
    """Return the baseline of a deployment.

    Args:
        evidence: what was measured of it.
        setup: the text of its setup.json.
    """
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


def _list_missing(evidence: Evidence) -> Iterator[str]:
    if evidence.expected is None:
        yield "What its counters are expected to say: no run counted it for this model, release and GPU."
    if not evidence.curve_ms:
        yield "How long a step takes: no run had it under a fixed number of streams, for this model, release and GPU."
    if not evidence.rollback:
        yield "When to go back: no run adopted it for this model, release and GPU."
    yield NO_PROBE
    yield "What each hour of the week expects: that takes three weeks of its own traffic."
