"""One decision from all comparisons: what to do, for which traffic, up to which load, and when to undo it."""

from __future__ import annotations

from collections.abc import Sequence

from draftwise.core import Decision
from draftwise.decide.bands import find_bands
from draftwise.decide.batch_schedule import propose_schedules
from draftwise.decide.comparison.latency import Latencies
from draftwise.decide.coverage import find_unmeasured
from draftwise.decide.crossovers import find_crossovers
from draftwise.decide.evidence import Evidence
from draftwise.decide.missing_context import find_missing, list_options
from draftwise.decide.recommendations import list_adopted, recommend
from draftwise.decide.rollback import find_rollbacks
from draftwise.decide.scope import find_scope

__all__ = ["decide"]


def decide(evidence: Evidence, latencies: Sequence[Latencies]) -> Decision:
    """Return what a run concludes; the same evidence always gives the same decision."""
    run, comparisons = evidence.run, evidence.comparisons
    baseline = run.plan.arms[0].name
    crossovers = find_crossovers(evidence.load_points, comparisons)
    bands = find_bands(comparisons, crossovers, baseline)
    recommendations = recommend(comparisons, bands, crossovers)
    missing = find_missing(run.plan, run.context)
    adopted = list_adopted(recommendations, comparisons)
    return Decision(
        baseline=baseline,
        comparisons=comparisons,
        recommendations=recommendations,
        findings=evidence.findings,
        missing_context=missing,
        context_options=tuple(list_options(missing, run.plan, run.context)),
        scope=find_scope(run, comparisons),
        rollback=tuple(find_rollbacks(adopted, bands, latencies, baseline, evidence.thresholds)),
        crossovers=crossovers,
        bands=bands,
        schedules=propose_schedules(run, bands),
        unmeasured=tuple(find_unmeasured(run)),
        num_unfinished=run.num_unfinished,
    )
