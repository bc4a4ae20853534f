"""How `decide` and `report` show a decision in a terminal: the verdicts as a table, findings, what to type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftwise.cli._console import show_table
from draftwise.core import Comparison, Decision, Finding, Run, Severity, Verdict
from draftwise.reporting.conditions import (
    describe_missing,
    describe_rollback,
    describe_single_settings,
    describe_unmeasured,
    describe_way_back,
    list_actions,
)
from draftwise.reporting.predictions import describe_forecasts, hold_forecasts
from draftwise.reporting.promql import ALERTS
from draftwise.reporting.sentences import describe_decision
from draftwise.reporting.tables import Repeated, group_findings, sort_comparisons
from draftwise.reporting.units import format_change, format_number

__all__ = ["show_decision"]

_COLOURS = {
    Verdict.ADOPT: "bold green",
    Verdict.REJECT: "bold red",
    Verdict.MIXED: "bold yellow",
    Verdict.NO_GAIN: "red",
    Verdict.NOT_BEST: "cyan",
    Verdict.INCONCLUSIVE: "dim",
    Verdict.BLOCKED: "bold magenta",
}
_MOST_PLACES = 4
"""Where a finding applies, beyond the first place, before they are only counted."""


def show_decision(console: Console, decision: Decision, run: Run) -> None:
    """Print whether the run is evidence, the verdicts, the findings, the decision and what to type."""
    tell = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    if missing := describe_missing(decision):
        tell(missing, style="red")
    if decision.comparisons:
        comparisons = sort_comparisons(decision.comparisons)
        tables = (_table(comparisons, shown=shown) for shown in (tuple(_NUMBERS), _ALWAYS))
        show_table(console, *tables, _table(comparisons, shown=_ALWAYS, repeated=True))
    _show_findings(console, decision)
    console.print()
    tell(describe_decision(decision), style="bold")
    for line in describe_single_settings(decision):
        tell(line)
    for action in list_actions(decision, run):
        tell(f"\nTo paste: {action.heading}", style="dim")
        tell(f"  {action.text}")
        for remark in action.remarks:
            tell(f"  {remark}", style="dim")
    rules = describe_rollback(decision)
    if rules:
        tell("\nRoll back:", style="dim")
    for rule in rules:
        tell(f"  {rule}")
    if rules:
        tell(f"  To go back: {describe_way_back(decision, run)}")
        tell(f"  As alerts for Prometheus: {ALERTS}, beside the report", style="dim")
    if errors := describe_forecasts(hold_forecasts(run.expected, decision.comparisons)):
        tell(errors, style="dim")
    for line in describe_unmeasured(decision):
        tell(f"Not measured: {line}", style="yellow")


def _show_findings(console: Console, decision: Decision) -> None:
    findings = _findings(decision)
    for finding, told in findings:
        if finding.severity is not Severity.INFO:
            style = "red" if finding.severity is Severity.ERROR else "yellow"
            console.print(Text.assemble((f"{finding.severity} ", style), told), soft_wrap=True)
    if notes := sum(finding.severity is Severity.INFO for finding, _ in findings):
        console.print(f"{notes} {'note' if notes == 1 else 'notes'} in the report", style="dim")


def _table(comparisons: Sequence[Comparison], *, shown: Sequence[str], repeated: bool = False) -> Table:
    """Return the verdicts with the numbers that are to be shown.

    Args:
        repeated: every row names its workload and load, also where the one above it has the same.
    """
    sweeps = len({each.condition for each in comparisons}) > 1
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("workload", *(["load"] if sweeps else []), "candidate", "verdict"):
        table.add_column(name, no_wrap=True)
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    last, load = "", ""
    for each in comparisons:
        if last and each.workload != last and not repeated:
            table.add_row()
        if repeated or each.workload != last:
            last = load = ""
        verdict = Text(each.verdict, style=_COLOURS[each.verdict])
        workload = "" if each.workload == last else each.workload
        label = [("" if each.condition.label == load else each.condition.label)] if sweeps else []
        table.add_row(workload, *label, each.candidate, verdict, *(_NUMBERS[name](each) for name in shown))
        last, load = each.workload, each.condition.label
    return table


def _positions(each: Comparison) -> str:
    rates = [f"{100 * rate:.0f}" for rate in each.counters.spec.rate_per_pos]
    return " ".join(rates[:5]) + (" ..." if len(rates) > 5 else "")


_NUMBERS: dict[str, Callable[[Comparison], str]] = {
    "speed-up": lambda each: f"{each.deciding.value:.2f}x",
    "95 %": lambda each: each.deciding.span,
    "tokens\n/step": lambda each: format_number(each.counters.tokens_per_step),
    "accept\nlength": lambda each: format_number(each.counters.spec.acceptance_length),
    "by position, %": _positions,
    "conver-\nsion": lambda each: "-" if each.conversion is None else f"{each.conversion:.0%}",
    "TTFT": lambda each: format_change(each.ttft),
    "TPOT": lambda each: format_change(each.tpot),
    "equal": lambda each: "-" if each.equal_outputs is None else "{}/{}".format(*each.equal_outputs),
}
_ALWAYS = ("speed-up", "95 %", "TPOT", "equal")
"""Columns that a terminal of 80 characters has room for."""


def _findings(decision: Decision) -> list[tuple[Finding, str]]:
    """Return the findings on the run one by one, those on cells once each; each with its text."""
    of_cells = group_findings(replace(decision, findings=()))
    return [(each, str(each)) for each in decision.findings] + [(each.finding, _told(each)) for each in of_cells]


def _told(repeated: Repeated) -> str:
    """Return a finding with its first place in full, and where else it applies."""
    (where, _), *others = repeated.places
    more = f" The same at {', '.join(where for where, _ in others[:_MOST_PLACES])}" if others else ""
    if len(others) > _MOST_PLACES:
        more += f" and {len(others) - _MOST_PLACES} more places"
    return f"{where}: {repeated.finding}{more and f'{more}.'}"
