"""All guards: of one comparison, and of a run as a whole."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Finding, Interval, Run
from draftwise.decide.comparison.cell import Cell, cells
from draftwise.decide.thresholds import Thresholds
from draftwise.decide.validity.caches import check_prefix_cache, finds_prompts_cached
from draftwise.decide.validity.client import check_client
from draftwise.decide.validity.finding import info, warning
from draftwise.decide.validity.load import check_failures, check_load
from draftwise.decide.validity.machine import check_machine
from draftwise.decide.validity.memory import check_memory
from draftwise.decide.validity.outputs import check_stability
from draftwise.decide.validity.prompts import check_prompts, check_repetitions
from draftwise.decide.validity.setup import check_setup
from draftwise.decide.validity.speculation import check_arms, check_speculation
from draftwise.decide.validity.text import check_text
from draftwise.decide.validity.traffic import check_traffic

__all__ = ["check_cell", "check_run"]


def check_cell(
    run: Run, cell: Cell, speedup: Interval, ttft: Interval | None, thresholds: Thresholds
) -> Iterator[Finding]:
    """Yield what is wrong with one comparison, outputs aside; an error takes its adoption away."""
    yield from check_speculation(run, cell, speedup, thresholds)
    yield from check_prefix_cache(cell, ttft, thresholds)
    yield from check_memory(run, cell, thresholds)
    yield from check_client(run, cell, thresholds)
    yield from check_failures(cell, thresholds)
    yield from check_prompts(run, cell)


def check_run(run: Run, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield what is wrong with a run as a whole; an error takes every adoption away."""
    yield from check_traffic(run, thresholds)
    yield from check_load(run, thresholds)
    yield from check_machine(run, thresholds)
    yield from check_setup(run)
    yield from check_arms(run, thresholds)
    yield from check_repetitions(run)
    yield from check_text(run, thresholds)
    yield from check_stability(run)
    if not all(answer.counts_exact for answer in run.answers):
        text = "a server does not say how many tokens a chunk holds: one each is assumed"
        text += " (totals are exact where it reports usage)."
        yield warning("token-counts-estimated", text)
    if any(finds_prompts_cached(cell, thresholds) for cell in cells(run)):
        text = "later passes find their prompts in the prefix cache, in all arms alike: TTFT there is a cached one."
        yield info("prefix-cache-warm", text)
