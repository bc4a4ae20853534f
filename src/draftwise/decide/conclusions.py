"""Everything that a run comes down to, in the parts that reports show and comparisons compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftwise.core import Decision, Run
from draftwise.decide.comparison.acceptance import Acceptance, pool_acceptance
from draftwise.decide.comparison.conversion import Conversion, trace_conversion
from draftwise.decide.comparison.latency import Latencies, summarise_latencies
from draftwise.decide.decision import decide
from draftwise.decide.evidence import gather_evidence
from draftwise.decide.thresholds import Thresholds
from draftwise.decide.validity import TextQuality

__all__ = ["Conclusions", "conclude_run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusions:
    """A run and what follows from it."""

    run: Run
    decision: Decision
    thresholds: Thresholds
    latencies: Sequence[Latencies]
    acceptances: Sequence[Acceptance]
    conversions: Sequence[Conversion]
    quality: Sequence[TextQuality]


def conclude_run(run: Run) -> Conclusions:
    """Return what follows from a run; the same answers always give the same conclusions."""
    evidence = gather_evidence(run)
    latencies = summarise_latencies(evidence.run, evidence.comparisons, evidence.thresholds)
    return Conclusions(
        run=evidence.run,
        decision=decide(evidence, latencies),
        thresholds=evidence.thresholds,
        latencies=latencies,
        acceptances=pool_acceptance(each.cell for each in evidence.estimates),
        conversions=trace_conversion(evidence.comparisons),
        quality=evidence.quality,
    )
