"""`draftwise upgrade`: lists breakage, changes and new possibilities between two vLLM releases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftwise.cli._findings import render_findings
from draftwise.cli._options import options
from draftwise.cli._results import show
from draftwise.cli._setups import report_skipped, setup_command
from draftwise.core import Finding
from draftwise.verbs.upgrade import (
    AcceptedChoice,
    UpgradedSetup,
    UpgradeRequest,
    UpgradeResult,
    ValueChange,
    group_choices,
)
from draftwise.verbs.upgrade import upgrade as run_upgrade


@setup_command
@options("upgrade", of=UpgradeRequest)
def upgrade(as_json: bool, verbose: bool, **given: Any) -> None:
    """Judge the same setup on two vLLM releases and say what differs."""
    result = run_upgrade.run(UpgradeRequest(**given))
    report_skipped(result.skipped, verbose=verbose)
    show(result, render, as_json=as_json)


def render(console: Console, result: UpgradeResult) -> None:
    """Print what differs, setup by setup."""
    for each in result.setups:
        _show(console, each)


def _show(console: Console, upgrade: UpgradedSetup) -> None:
    before, after = (each.report.release for each in (upgrade.before, upgrade.after))
    head = Text(f"{before} -> {after.removeprefix('vLLM ')}", "bold")
    console.print(
        head.append("".join(f"  {part}" for part in (upgrade.after.target, upgrade.where) if part), "not bold")
    )
    if upgrade.starts_on_neither:
        console.print(Text("The setup starts on neither of the two.", "bold red"))
    _section(console, "Not judged", "bold yellow", upgrade.unknown)
    breaks = "nothing that draftwise could check" if upgrade.unknown else "nothing more" if upgrade.still else "nothing"
    _section(console, "Breaks", "bold red", upgrade.breaks, empty=breaks)
    _section(console, "Fails on both", "bold red", upgrade.still)
    _section(console, "Known defects that appear", "bold yellow", upgrade.appearing)
    _section(console, "Known defects that disappear", "bold green", upgrade.disappearing)
    _changes(console, upgrade.changes)
    _section(console, "New to know", "bold yellow", upgrade.other)
    _section(console, "No longer a problem", "bold green", upgrade.gone)
    _choices(console, "Becomes possible", upgrade.possible, by_end=upgrade.is_downgrade)
    _choices(console, "Is no longer there", upgrade.removed, by_end=not upgrade.is_downgrade)


def _section(console: Console, title: str, style: str, findings: Sequence[Finding], empty: str = "") -> None:
    if findings or empty:
        console.print(Text.assemble((title, style), "" if findings else f": {empty}"))
        console.print(render_findings(findings))


def _changes(console: Console, changes: Sequence[ValueChange]) -> None:
    if changes:
        table = _table("Changes without being asked", "what", "before", "after")
        for change in changes:
            table.add_row(change.what, _text(change.before), _text(change.after))
        console.print(table, "")


def _choices(console: Console, title: str, choices: Sequence[AcceptedChoice], *, by_end: bool) -> None:
    if choices:
        table = _table(title, "until" if by_end else "since", "", "")
        for row in group_choices(choices, by_end=by_end):
            table.add_row(row.release, row.kind, ", ".join(row.names))
        console.print(table, "")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, header_style="dim", overflow="fold")
    return table


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "-" if value is None else str(value)
