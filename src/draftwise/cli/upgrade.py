"""`draftwise upgrade`: what breaks, changes and becomes possible between two vLLM releases."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click
from packaging.version import Version
from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftwise.cli._console import open_console
from draftwise.cli._findings import finding_to_dict, render_findings, report_to_dict
from draftwise.cli._setups import read_sources, setup_arguments
from draftwise.core import Finding
from draftwise.facts.methods import find_method
from draftwise.plan.upgrade import Change, Choice, Upgrade, compare_releases

__all__ = ["upgrade"]


@click.command(short_help="Say what breaks, changes and becomes possible between two vLLM releases.")
@setup_arguments
@click.option("--from", "before", required=True, metavar="VERSION", help="The release that runs now.")
@click.option("--to", "after", required=True, metavar="VERSION", help="The release to move to, e.g. `newest`.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def upgrade(
    source: str | None,
    target: str | None,
    spec: str | None,
    engine_flags: Sequence[str],
    before: str,
    after: str,
    as_json: bool,
) -> None:
    """Judge the same setup on two vLLM releases and say what differs.

    SOURCE and everything else are given as to `draftwise check`. The exit code is 1 if something breaks.
    """
    old, new = (read_sources(source, spec, engine_flags, version=version, target=target) for version in (before, after))
    compared = [(left.where, compare_releases(left, right)) for left, right in zip(old, new, strict=True)]
    if as_json:
        click.echo(json.dumps([_to_dict(where, upgrade) for where, upgrade in compared], indent=1))
    else:
        console = open_console(stderr=False)
        for where, each in compared:
            _show(console, where, each)
    if any(each.breaks for _, each in compared):
        sys.exit(1)


def _show(console: Console, where: str, upgrade: Upgrade) -> None:
    console.print(Text.assemble((f"vLLM {upgrade.before.version} -> {upgrade.after.version}", "bold"), f"  {where}"))
    _section(console, "Breaks", "bold red", upgrade.breaks, empty="nothing")
    _changes(console, upgrade.changes)
    _section(console, "New to know", "bold yellow", upgrade.other)
    _section(console, "No longer a problem", "bold green", upgrade.gone)
    _choices(console, "Becomes possible", upgrade.possible, gone=False)
    _choices(console, "Is no longer there", upgrade.removed, gone=True)


def _section(console: Console, title: str, style: str, findings: Sequence[Finding], empty: str = "") -> None:
    if findings or empty:
        console.print(Text.assemble((title, style), "" if findings else f": {empty}"))
        console.print(render_findings(findings))


def _changes(console: Console, changes: Sequence[Change]) -> None:
    if changes:
        table = _table("Changes without being asked", "what", "before", "after")
        for change in changes:
            table.add_row(change.what, _text(change.before), _text(change.after))
        console.print(table, "")


def _choices(console: Console, title: str, choices: Sequence[Choice], *, gone: bool) -> None:
    """Print choices by kind and release; names of single families' MTP modules stand together."""
    if not choices:
        return
    table = _table(title, "until" if gone else "since", "", "")
    rows: dict[tuple[str, str], list[str]] = {}
    for choice in choices:
        method = find_method(choice.name) if choice.kind == "method" else None
        is_alias = method is not None and choice.name in method.aliases
        kind, name = ("method mtp of", choice.name.removesuffix("_mtp")) if is_alias else (choice.kind, choice.name)
        rows.setdefault(((choice.until or "") if gone else choice.since, kind), []).append(name)
    for (release, kind), names in sorted(rows.items(), key=lambda row: (Version(row[0][0]), row[0][1])):
        table.add_row(release, kind, ", ".join(names))
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


def _to_dict(where: str, upgrade: Upgrade) -> dict[str, Any]:
    return {
        "where": where,
        "before": report_to_dict(upgrade.before),
        "after": report_to_dict(upgrade.after),
        **{name: [finding_to_dict(f) for f in getattr(upgrade, name)] for name in ("breaks", "other", "gone")},
        **{name: [asdict(c) for c in getattr(upgrade, name)] for name in ("changes", "possible", "removed")},
    }
