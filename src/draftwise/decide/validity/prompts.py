"""Whether the prompts can show what speculation does for real traffic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from draftwise.core import Finding, Run, Severity
from draftwise.decide.comparison.cell import Cell
from draftwise.decide.comparison.differences import has_synthetic_acceptance
from draftwise.decide.validity.finding import info
from draftwise.statistics import FEWEST_PROMPTS
from draftwise.workloads import check_workloads

__all__ = ["check_prompts", "check_repeated_prompts"]


def check_prompts(run: Run, cell: Cell) -> Iterator[Finding]:
    """Yield what the prompts of a comparison cannot show about its candidate."""
    if len(cell.units) < FEWEST_PROMPTS:
        yield info("few-prompts", f"{len(cell.units)} prompts say little about others.", "Give more with --prompts.")
    measured = not has_synthetic_acceptance(run, cell.candidate)
    mine = [workload for workload in run.plan.workloads if workload.name in cell.workloads]
    for found in check_workloads(mine, measures_acceptance=measured):
        if found.severity is Severity.ERROR:
            yield replace(found, where="")


def check_repeated_prompts(run: Run) -> Iterator[Finding]:
    """Yield workloads that ask the same more than once."""
    measured = not all(arm.has_synthetic_acceptance for arm in run.plan.arms[1:])
    for found in check_workloads(run.plan.workloads, measures_acceptance=measured):
        if found.severity is not Severity.ERROR:
            yield found
