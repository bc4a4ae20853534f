"""Writes report.html and summary.json from the raw readings in a run directory, and from nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from draftwise.core import Decision
from draftwise.decide.comparison.acceptance import ACCEPTANCE_QUANTILES, DEFINITION
from draftwise.decide.comparison.cell import ALL
from draftwise.decide.comparison.latency import QUANTILES
from draftwise.decide.conclusions import Conclusions, conclude_run
from draftwise.facts.signals import TOKENS_PER_STEP
from draftwise.report.conditions import describe_rollback, describe_scope, describe_unmeasured, list_schedules
from draftwise.report.plots import LOSSES, VERDICT_COLOURS, draw_plots
from draftwise.report.sentences import describe_decision
from draftwise.report.summary import summarise
from draftwise.report.tables import (
    group_findings,
    list_band_rows,
    list_context_rows,
    list_crossover_rows,
    make_grids,
    name_workload,
    sort_comparisons,
)
from draftwise.report.units import format_change, format_number
from draftwise.runs import RunDirectory
from draftwise.statistics import CONFIDENCE

__all__ = ["render_page", "write_conclusions", "write_report"]

_FOLDED = 16
"""Rows from which a table is folded away: a summary stands before it."""
_SHOWN = (50, 99)
"""Percentiles whose ratios have a column."""
_LONGEST = 280
"""Characters of a sentence up to which it reads well as one."""


def write_report(directory: RunDirectory) -> tuple[Decision, dict[str, Any]]:
    """Write both files and return the decision and the summary.

    Raises:
        InvalidSetup: the directory is not a run.
        StorageError: the disk is full.
    """
    return write_conclusions(directory, conclude_run(directory.read()))


def write_conclusions(directory: RunDirectory, found: Conclusions) -> tuple[Decision, dict[str, Any]]:
    """Write both files of a run whose conclusions are there already."""
    summary = summarise(found)
    directory.write("summary.json", json.dumps(summary, indent=2) + "\n")
    directory.write("report.html", render_page(found))
    return found.decision, summary


def render_page(found: Conclusions) -> str:
    """Return the report as one HTML page that needs no other file and no script."""
    run, decision = found.run, found.decision
    template = _environment().get_template("page.html.j2")
    return template.render(
        run=run,
        plan=run.plan,
        title=run.context.model.name or "unknown model",
        started=run.context.started,
        decision=decision,
        clauses=_split_clauses(describe_decision(decision)),
        unmeasured=describe_unmeasured(decision),
        rollback=describe_rollback(decision),
        scope=describe_scope(decision.scope),
        thresholds=found.thresholds,
        comparisons=sort_comparisons(decision.comparisons),
        conditions=list(dict.fromkeys(each.condition.label for each in decision.comparisons)),
        bands=list_band_rows(decision.bands),
        crossovers=list_crossover_rows(decision.crossovers),
        schedules=list_schedules(decision),
        grids=make_grids(decision.comparisons),
        findings=group_findings(decision),
        context=list_context_rows(run),
        latencies=found.latencies,
        acceptances=found.acceptances,
        conversions=found.conversions,
        quality=found.quality,
        plots=draw_plots(found),
        colours=VERDICT_COLOURS,
        losses=LOSSES,
        quantiles=QUANTILES,
        shown_quantiles=_SHOWN,
        acceptance_quantiles=ACCEPTANCE_QUANTILES,
        confidence=CONFIDENCE,
        folded=_FOLDED,
        pooled=ALL,
        definitions={"tokens per step": TOKENS_PER_STEP.definition, "conversion": DEFINITION},
    )


def _environment() -> Environment:
    def load(name: str) -> str:
        return (files("draftwise.report") / name).read_text(encoding="utf-8")

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=FunctionLoader(load)
    )
    filters: dict[str, Callable[..., str]] = {
        "x": format_number,
        "three": lambda value: "-" if value is None else f"{value:.3g}",
        "percent": lambda value: "-" if value is None else f"{value:.0%}",
        "change": format_change,
        "workload": name_workload,
    }
    environment.filters |= filters
    return environment


def _split_clauses(sentence: str) -> list[str]:
    """Return a sentence in the parts to show it in: a long one clause by clause."""
    return [sentence] if len(sentence) <= _LONGEST else sentence.split("; ")
