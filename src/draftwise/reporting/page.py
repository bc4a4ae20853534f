"""Writes report.html, summary.json and rollback.rules.yml from the raw readings in a run directory alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined

from draftwise.core import Decision
from draftwise.core.documents import to_json
from draftwise.deciding.conclusions import Conclusions, conclude_run
from draftwise.knowledge.signals import TOKENS_PER_STEP
from draftwise.reporting.actions import describe_way_back, list_actions
from draftwise.reporting.conditions import (
    describe_missing,
    describe_rollback,
    describe_scope,
    describe_single_settings,
    describe_unmeasured,
)
from draftwise.reporting.forecasts import describe_forecasts, hold_forecasts
from draftwise.reporting.page_tables import (
    Table,
    tabulate_acceptances,
    tabulate_conversions,
    tabulate_crossovers,
    tabulate_forecasts,
    tabulate_grid,
    tabulate_latencies,
    tabulate_percentiles,
    tabulate_quality,
    tabulate_readings,
    tabulate_verdicts,
)
from draftwise.reporting.plots import VERDICT_COLOURS, draw_plots
from draftwise.reporting.promql import ALERTS, write_alerts
from draftwise.reporting.sentences import list_clauses
from draftwise.reporting.summary import Summary, summarise
from draftwise.reporting.tables import (
    group_findings,
    list_band_rows,
    list_context_rows,
    make_grids,
    sort_comparisons,
)
from draftwise.runs import RunDirectory
from draftwise.statistics import CONFIDENCE

__all__ = ["open_templates", "render_page", "write_conclusions", "write_report"]

_FOLDED = 16
"""Rows from which a table is folded away: a summary stands before it."""
_MOST_RULES = 12
"""Rollback rules that stand open; a sweep over many workloads and temperatures has more."""
_LONGEST = 280
"""Characters of a sentence up to which it reads well as one."""


def write_report(directory: RunDirectory) -> tuple[Decision, Summary]:
    """Write page, summary and alerts, and return the decision and the summary.

    Raises:
        InvalidSetup: the directory is not a run.
        StorageError: the disk is full.
    """
    return write_conclusions(directory, conclude_run(directory.read()))


def write_conclusions(directory: RunDirectory, found: Conclusions) -> tuple[Decision, Summary]:
    """Write all files of a run whose conclusions are there already."""
    summary = summarise(found)
    directory.write("summary.json", json.dumps(to_json(summary), indent=2) + "\n")
    directory.write("report.html", render_page(found))
    directory.write(ALERTS, write_alerts(found.decision.rollback))
    return found.decision, summary


def render_page(found: Conclusions) -> str:
    """Return the report as one HTML page that needs no other file and no script."""
    run, decision = found.run, found.decision
    headline, *clauses = _split_clauses(list_clauses(decision))
    return (
        open_templates()
        .get_template("page.html.j2")
        .render(
            run=run,
            plan=run.plan,
            title=decision.scope.model or "unknown model",
            started=run.context.started,
            headline=headline,
            clauses=clauses,
            not_evidence=describe_missing(decision),
            unmeasured=describe_unmeasured(decision),
            actions=list_actions(decision, run),
            rollback=describe_rollback(decision),
            most_rules=_MOST_RULES,
            way_back=describe_way_back(decision, run),
            alerts=write_alerts(decision.rollback),
            single_settings=describe_single_settings(decision),
            scope=describe_scope(decision.scope),
            thresholds=found.thresholds,
            bands=list_band_rows(decision.bands),
            findings=group_findings(decision),
            context=list_context_rows(run),
            plots=draw_plots(found),
            forecast_errors=describe_forecasts(hold_forecasts(run.expected, decision.comparisons)),
            colours=VERDICT_COLOURS,
            confidence=CONFIDENCE,
            folded=_FOLDED,
            definitions={"tokens per step": TOKENS_PER_STEP.definition},
            **_tabulate(found),
        )
    )


def _tabulate(found: Conclusions) -> dict[str, Table | list[Table]]:
    """Return the tables by their names in the template."""
    decision, with_goodput = found.decision, found.thresholds.has_slo
    comparisons = sort_comparisons(decision.comparisons)
    several = len({each.condition for each in comparisons}) > 1
    return {
        "verdicts": tabulate_verdicts(comparisons),
        "readings": tabulate_readings(comparisons),
        "grids": list(map(tabulate_grid, make_grids(comparisons))) if several else [],
        "crossovers": tabulate_crossovers(decision.crossovers),
        "forecasts": tabulate_forecasts(hold_forecasts(found.run.expected, comparisons)),
        "quality": tabulate_quality(found.quality),
        "conversions": tabulate_conversions(found.conversions),
        "acceptances": tabulate_acceptances(found.acceptances),
        "percentiles": tabulate_percentiles(comparisons, with_goodput=with_goodput),
        "latencies": tabulate_latencies(found.latencies, with_goodput=with_goodput),
    }


def open_templates() -> Environment:
    """Return what renders the templates of this folder."""

    def load(name: str) -> str:
        return (files("draftwise.reporting") / name).read_text(encoding="utf-8")

    return Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=FunctionLoader(load)
    )


def _split_clauses(clauses: Sequence[str]) -> list[str]:
    """Return the clauses of a sentence, one by one where all of it is too long to be read as one."""
    whole = f"{'; '.join(clauses)}."
    return [whole] if len(whole) <= _LONGEST else [f"{each}." for each in clauses]
