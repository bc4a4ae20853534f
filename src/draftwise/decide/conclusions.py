"""Everything that a run comes down to, in the parts that reports show and comparisons compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftwise.core import Decision, Run
from draftwise.decide.comparison.acceptance import Acceptance, acceptances
from draftwise.decide.comparison.conversion import Conversion, conversions
from draftwise.decide.comparison.latency import Latencies, latencies
from draftwise.decide.decision import decide
from draftwise.decide.thresholds import Thresholds, thresholds_of
from draftwise.decide.validity import TextQuality, text_quality

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
    """Return what follows from a run; the same readings always give the same conclusions."""
    decision, thresholds = decide(run), thresholds_of(run)
    return Conclusions(
        run=run,
        decision=decision,
        thresholds=thresholds,
        latencies=latencies(run, decision.comparisons, thresholds),
        acceptances=acceptances(run, decision.comparisons),
        conversions=conversions(decision.comparisons),
        quality=text_quality(run),
    )
