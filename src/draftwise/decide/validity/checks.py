"""All validity checks: of one comparison, and of a run as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from draftwise.core import Finding, Run
from draftwise.decide.comparison.cell import Cell
from draftwise.decide.comparison.comparisons import Unjudged
from draftwise.decide.thresholds import Thresholds
from draftwise.decide.validity.arms import check_arms
from draftwise.decide.validity.cache_effect import check_cache_effect, report_left_out
from draftwise.decide.validity.client import check_client
from draftwise.decide.validity.drafting import gather_drafting_evidence
from draftwise.decide.validity.finding import info, warning
from draftwise.decide.validity.load import check_failures, check_load, check_noise
from draftwise.decide.validity.measures import list_baseline_answers
from draftwise.decide.validity.outputs import check_outputs, check_stability
from draftwise.decide.validity.prompts import check_prompts, check_repeated_prompts
from draftwise.decide.validity.setup import check_setup
from draftwise.decide.validity.text import TextQuality, check_text
from draftwise.decide.validity.traffic import check_traffic
from draftwise.decide.validity.window.caches import check_prefix_cache, serves_more_hits
from draftwise.decide.validity.window.load import check_foreign_requests
from draftwise.decide.validity.window.machine import check_machine
from draftwise.decide.validity.window.speculation import check_speculation

__all__ = ["check_comparison", "check_run"]


def check_comparison(run: Run, found: Unjudged, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield what is wrong with one comparison; an error blocks its adoption."""
    comparison, cell = found.comparison, found.estimates.cell
    baseline, candidate = cell.sum_counters(cell.baseline), cell.sum_counters(cell.candidate)
    alone = cell.condition.concurrency == 1
    yield from check_speculation(gather_drafting_evidence(run, cell), comparison.speedup, cell.condition, thresholds)
    yield from check_prefix_cache(baseline, candidate, comparison.ttft, thresholds, alone=alone)
    yield from check_cache_effect(run, cell, thresholds)
    yield from check_client(run, cell, thresholds)
    yield from check_failures(cell, thresholds)
    yield from check_prompts(run, cell)
    yield from check_outputs(run, found, thresholds)
    yield from report_left_out(found.estimates)


def check_run(
    run: Run, cells: Sequence[Cell], quality: Sequence[TextQuality], thresholds: Thresholds
) -> Iterator[Finding]:
    """Yield what is wrong with a run as a whole; an error blocks every adoption."""
    of_baseline = list_baseline_answers(run)
    yield from check_traffic(run, thresholds)
    for arm in run.plan.arms:
        before = [turn.before for turn in run.turns if turn.arm == arm.name]
        yield from check_foreign_requests(arm.name, before, thresholds)
    yield from check_load(run, thresholds)
    yield from check_machine(
        (*run.turns, *run.set_aside), thresholds, is_ours=all(arm.url is None for arm in run.plan.arms)
    )
    yield from check_noise(run, of_baseline, thresholds)
    yield from check_setup(run)
    yield from check_arms(run, thresholds)
    yield from check_repeated_prompts(run)
    yield from check_text(run, of_baseline, quality, thresholds)
    yield from check_stability(run, of_baseline)
    if not all(answer.counts_exact for answer in run.answers):
        text = "a server does not say how many tokens a chunk holds: one each is assumed"
        text += " (totals are exact where it reports usage)."
        yield warning("token-counts-estimated", text)
    if any(_has_warm_prefixes(cell, thresholds) for cell in cells):
        text = (
            "later repetitions find their prompts in the prefix cache, in all arms alike: TTFT there is a cached one."
        )
        yield info("prefix-cache-warm", text)


def _has_warm_prefixes(cell: Cell, thresholds: Thresholds) -> bool:
    """Return whether the baseline's prefix cache serves later repetitions with the prompts of the first one."""
    first, later = (cell.keep_repetitions(each) for each in (cell.repetitions[:1], cell.repetitions[1:]))
    return serves_more_hits(first.sum_counters(cell.baseline), later.sum_counters(cell.baseline), thresholds)
