"""Whether the prompts can show what speculation does for real traffic."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from draftwise.core import Finding, Run, SpecConfig, Workload
from draftwise.measure.cell import Cell
from draftwise.measure.guards.finding import error, info, warning
from draftwise.measure.guards.speculation import acceptance_was_set
from draftwise.measure.statistics import FEWEST_PROMPTS
from draftwise.measure.thresholds import Thresholds

__all__ = ["check_prompts", "check_workloads"]


def check_prompts(run: Run, cell: Cell) -> Iterator[Finding]:
    """Yield what the prompts of a comparison cannot show."""
    if len(cell.units) < FEWEST_PROMPTS:
        yield info("few-prompts", f"{len(cell.units)} prompts say little about others.", "Give more with --prompts.")
    noise = [each.name for each in run.plan.workloads if each.name in cell.workloads and each.random_tokens]
    if noise and not acceptance_was_set(_spec(run, cell.candidate)):
        text = f"the prompts of {noise[0]} are random tokens: what a model says to noise is drafted as no real text is."
        yield error("random-prompts", text, "Measure acceptance with prompts of your own, random ones load a server.")


def _spec(run: Run, arm: str) -> SpecConfig | None:
    return next((each.spec for each in run.plan.arms if each.name == arm), None)


def check_workloads(run: Run, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield workloads that ask the same more than once."""
    for workload in run.plan.workloads:
        again = len(workload.prompts) - len(_contents(workload))
        if again > thresholds.repeated_prompts * len(workload.prompts):
            text = f"{again} of {len(workload.prompts)} prompts are repetitions of others"
            why = "caches, and methods that look up text, do better on them than on prompts that are all new."
            yield warning("repeated-prompts", f"{text}: {why}", where=workload.name)


def _contents(workload: Workload) -> Counter[str]:
    return Counter(each.text if each.text is not None else json.dumps(each.messages) for each in workload.prompts)
