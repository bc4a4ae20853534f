"""One decision from all comparisons: what to do, for which traffic, up to which load, and when to undo it."""

from __future__ import annotations

from collections.abc import Sequence

from draftwise.core import Band, Comparison, Decision, Run, Verdict
from draftwise.decide.bands import find_bands
from draftwise.decide.batch_schedule import propose_schedules
from draftwise.decide.comparison.axis import place_on_axis
from draftwise.decide.comparison.comparisons import compare_along_loads
from draftwise.decide.comparison.latency import latencies
from draftwise.decide.coverage import find_unmeasured
from draftwise.decide.crossovers import find_crossovers
from draftwise.decide.missing_context import find_missing
from draftwise.decide.rollback import describe_rollback
from draftwise.decide.scope import describe_scope
from draftwise.decide.sentence import compose, winners
from draftwise.decide.thresholds import thresholds_of
from draftwise.decide.validity import check_run

__all__ = ["TOKENS_PER_STEP", "decide"]

TOKENS_PER_STEP = (
    "Tokens per step = generation_tokens / (generation_tokens - spec_decode_num_accepted_tokens), from the growth of "
    "the server's counters: what one forward pass of the target emits, steps without a draft included."
)


def decide(run: Run) -> Decision:
    """Return what a run concludes; the same readings always give the same decision."""
    thresholds, plain = thresholds_of(run), run.plan.arms[0].name
    findings = tuple(check_run(run, thresholds))
    comparisons, points = compare_along_loads(run, findings, thresholds)
    crossovers = find_crossovers(points, comparisons)
    bands = find_bands(comparisons, crossovers, plain)
    rows = latencies(run, comparisons, thresholds)
    return Decision(
        sentence=compose(comparisons, bands, crossovers, plain),
        rollback=tuple(describe_rollback(_adopted(comparisons, bands), bands, rows, plain, thresholds)),
        comparisons=comparisons,
        findings=findings,
        missing_context=find_missing(run.plan, run.context),
        crossovers=crossovers,
        bands=bands,
        schedules=tuple(dict.fromkeys(proposal.spec.to_json() for proposal in propose_schedules(run, bands))),
        scope=describe_scope(run),
        unmeasured=find_unmeasured(run),
    )


def _adopted(comparisons: Sequence[Comparison], bands: Sequence[Band]) -> list[Comparison]:
    """Return the comparisons that the decision acts on: of each load the candidate that is set there."""
    acted: list[Comparison] = []
    for condition in dict.fromkeys(each.condition for each in comparisons):
        here = [each for each in comparisons if each.condition == condition]
        place = place_on_axis(condition)
        swept = [b for b in bands if place is not None and (b.axis, b.temperature) == (place[0], condition.temperature)]
        if swept and place is not None:
            chosen = {(b.workload, b.setting) for b in swept if b.above < place[1] <= b.up_to}
            acted += [e for e in here if (e.workload, e.candidate) in chosen and e.verdict is Verdict.ADOPT]
        else:
            acted += winners(here).values()
    return acted
