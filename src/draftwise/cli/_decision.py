"""Shows a decision of `decide` and `report` in a terminal: verdicts as a table, findings, commands to type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftwise.cli._console import show_prose, show_table
from draftwise.core import Comparison, Decision, Finding, Run, Severity, Verdict
from draftwise.reporting.conditions import (
    describe_missing,
    describe_rollback,
    describe_signs,
    describe_single_settings,
    describe_unmeasured,
    describe_way_back,
    list_actions,
)
from draftwise.reporting.predictions import describe_forecasts, hold_forecasts
from draftwise.reporting.promql import ALERTS
from draftwise.reporting.sentences import describe_decision
from draftwise.reporting.tables import FindingGroup, group_findings, sort_comparisons
from draftwise.reporting.units import format_change, format_number

_COLORS = {
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
    """Print whether the run has all context, the verdicts, the findings, the decision and the commands."""
    if missing := describe_missing(decision):
        show_prose(console, missing, "red")
    _show_verdicts(console, decision.comparisons)
    findings = _findings(decision)
    for pair in findings:
        _show_finding(console, *pair)
    if notes := sum(finding.severity is Severity.INFO for finding, _ in findings):
        console.print(f"{notes} {'note' if notes == 1 else 'notes'} in the report", style="dim")
    console.print()
    show_prose(console, describe_decision(decision), "bold")
    for line in describe_single_settings(decision):
        show_prose(console, line)
    for action in list_actions(decision, run):
        console.print()
        show_prose(console, f"To paste: {action.heading}" if action.text else action.heading, "dim")
        if action.text:
            _show_text(console, action.text)
        for remark in action.remarks:
            show_prose(console, f"  {remark}", "dim")
    if rules := describe_rollback(decision):
        console.print()
        show_prose(console, "Roll back:", "dim")
        for rule in rules:
            show_prose(console, f"  {rule}")
        show_prose(console, f"  To go back: {describe_way_back(decision, run).removeprefix('# ')}")
        show_prose(console, f"  Prometheus alerts: {ALERTS}, next to the report", "dim")
    if errors := describe_forecasts(hold_forecasts(run.expected, decision.comparisons)):
        show_prose(console, errors, "dim")
    for line in describe_unmeasured(decision):
        show_prose(console, f"Not measured: {line}", "yellow")


def show_outcome(console: Console, decision: Decision, run: Run) -> None:
    """Print on one screen what to run, how sure that is, what to paste and when to roll back."""
    if missing := describe_missing(decision):
        show_prose(console, missing, "red")
    leading = sorted(decision.comparisons, key=_importance)[:_MOST_VERDICTS]
    _show_verdicts(console, leading, spaced=False)
    findings = [pair for pair in _findings(decision) if pair[0].severity is not Severity.INFO]
    findings.sort(key=lambda pair: pair[0].severity is not Severity.ERROR)
    for finding, told in findings[:_MOST_FINDINGS]:
        _show_finding(console, finding, f"{told[:_MOST_LETTERS]}..." if len(told) > _MOST_LETTERS + 3 else told)
    left_out, actions = len(describe_unmeasured(decision)), list_actions(decision, run)
    others_open = any(each.verdict is Verdict.INCONCLUSIVE for each in decision.comparisons)
    counts = (
        ("verdict", len(decision.comparisons) - len(leading), " (with what would settle the open ones)" * others_open),
        ("finding", len(_findings(decision)) - len(findings[:_MOST_FINDINGS]), ""),
        ("config", len(actions[_MOST_ACTIONS:]), ""),
        ("part", left_out, " of the plan not measured as planned"),
    )
    if others := [f"{number} {noun}{'s' * (number > 1)}{more}" for noun, number, more in counts if number > 0]:
        show_prose(console, f"Also in the report: {', '.join(others)}.", "dim")
    console.print()
    show_prose(console, describe_decision(decision), "bold")
    for action in actions[:_MOST_ACTIONS]:
        for remark in () if action.text else action.remarks:
            show_prose(console, remark, "dim")
        if action.text:
            show_prose(console, f"To paste for {action.setting}:", "dim")
            _show_text(console, action.text)
    if signs := describe_signs(decision):
        way_back = describe_way_back(decision, run).removeprefix("# ")
        for sign in signs[:_MOST_ACTIONS]:
            show_prose(console, sign)
        show_prose(console, f"To go back: {way_back}. Alerts: {ALERTS}, next to the report.")


_MOST_VERDICTS, _MOST_FINDINGS, _MOST_ACTIONS, _MOST_LETTERS = 5, 2, 2, 155
"""Shown at the end of a run, which has to fit a terminal of 30 lines."""
_FIRST = (Verdict.ADOPT, Verdict.MIXED, Verdict.BLOCKED)
"""The verdicts that matter first to somebody who has to choose; the others go by speed-up."""


def _importance(each: Comparison) -> tuple[int, float]:
    return _FIRST.index(each.verdict) if each.verdict in _FIRST else len(_FIRST), -each.deciding.value


def _show_verdicts(console: Console, comparisons: Sequence[Comparison], *, spaced: bool = True) -> None:
    if comparisons:
        rows = sort_comparisons(comparisons)
        tables = (_table(rows, shown=shown, spaced=spaced) for shown in (tuple(_NUMBERS), _ALWAYS))
        show_table(console, *tables, _table(rows, shown=_ALWAYS, repeated=True))


def _show_finding(console: Console, finding: Finding, told: str) -> None:
    if finding.severity is not Severity.INFO:
        style = "red" if finding.severity is Severity.ERROR else "yellow"
        show_prose(console, Text.assemble((f"{finding.severity} ", style), told))


def _show_text(console: Console, text: str) -> None:
    """Print what is to be copied: never broken."""
    console.print(f"  {text}", markup=False, highlight=False, soft_wrap=True)


def _table(
    comparisons: Sequence[Comparison], *, shown: Sequence[str], repeated: bool = False, spaced: bool = True
) -> Table:
    """Return the verdicts with the numbers that are to be shown."""
    sweeps = len({each.condition for each in comparisons}) > 1
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("workload", *(["load"] if sweeps else []), "candidate", "verdict"):
        table.add_column(name, no_wrap=True)
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    last, load = "", ""
    for each in comparisons:
        if last and each.workload != last and spaced and not repeated:
            table.add_row()
        if repeated or each.workload != last:
            last = load = ""
        verdict = Text(each.verdict, style=_COLORS[each.verdict])
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
    """Return the findings on the run one by one, those on cells once each. Each with its text."""
    of_cells = group_findings(replace(decision, findings=()))
    return [(each, str(each)) for each in decision.findings] + [(each.finding, _told(each)) for each in of_cells]


def _told(repeated: FindingGroup) -> str:
    """Return a finding with its first place in full, and where else it applies."""
    (where, _), *others = repeated.places
    more = f" The same at {', '.join(where for where, _ in others[:_MOST_PLACES])}" if others else ""
    if len(others) > _MOST_PLACES:
        more += f" and {len(others) - _MOST_PLACES} more places"
    return f"{where}: {repeated.finding}{more and f'{more}.'}"
