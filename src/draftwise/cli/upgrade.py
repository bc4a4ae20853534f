"""`draftwise upgrade`: what breaks, changes and becomes possible between two vLLM releases."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from packaging.version import Version
from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftwise.cli._console import open_console
from draftwise.cli._findings import render_findings, report_to_dict
from draftwise.cli._setups import Found, find_sources, nearest_option, open_release, setup_command, tell_skipped
from draftwise.core import Finding, InvalidSetup, Severity
from draftwise.knowledge.methods import find_method
from draftwise.knowledge.vllm import releases
from draftwise.plan.upgrade import Change, Choice, Upgrade, compare_releases
from draftwise.setups.read import SetupReading

__all__ = ["upgrade"]


@setup_command(short_help="Say what breaks, changes and becomes possible between two vLLM releases.")
@click.option("--from", "before", required=True, metavar="VERSION", help="The release that runs now.")
@click.option("--to", "after", required=True, metavar="VERSION",
              help="The release to move to, e.g. `newest`; an older one is a roll-back.")  # fmt: skip
@nearest_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--verbose", "-v", is_flag=True, help="Name the files that start no server.")
def upgrade(
    sources: Sequence[str],
    target: str | None,
    spec: str | None,
    env_files: Sequence[Path],
    engine_flags: Sequence[str],
    skip: bool,
    before: str,
    after: str,
    nearest: bool,
    as_json: bool,
    verbose: bool,
) -> None:
    """Judge the same setup on two vLLM releases and say what differs.

    SOURCE and everything else are given as to `draftwise check`. The exit code is 1 if something breaks or
    cannot be judged, or if the setup starts on neither release.
    """
    for version in (before, after):
        open_release(version, nearest=nearest)
    named = find_sources(sources, spec, engine_flags, target=target, env_files=env_files, skip=skip)
    old, new = (named.read(version) for version in (before, after))
    tell_skipped(new, verbose=verbose)
    compared = [(left.where, compare_releases(left, right, nearest=nearest)) for left, right in _pair(old, new)]
    if as_json:
        click.echo(json.dumps([_to_dict(where, upgrade) for where, upgrade in compared], indent=1))
    else:
        console = open_console(stderr=False)
        for where, each in compared:
            _show(console, where, each)
    unread = [finding for _, report in new.unread for finding in report.findings]
    for finding in unread:
        click.echo(f"{finding.severity}: {finding}", err=True)
    is_unknown = any(finding.severity is Severity.ERROR for finding in unread)
    if is_unknown or any(each.breaks or each.unknown or each.starts_on_neither for _, each in compared):
        sys.exit(1)


def _pair(old: Found, new: Found) -> Iterable[tuple[SetupReading, SetupReading]]:
    """Return each setup as the two releases read it.

    Raises:
        InvalidSetup: one of them takes a text for a server that the other does not.
    """
    if len(old.readings) != len(new.readings):
        raise InvalidSetup.because(
            "servers-differ",
            f"The first release reads {len(old.readings)} servers out of the sources, the second {len(new.readings)}.",
            fix="Give them one by one.",
        )
    return zip(old.readings, new.readings, strict=True)


def _show(console: Console, where: str, upgrade: Upgrade) -> None:
    before, after = (report.release for report in (upgrade.before, upgrade.after))
    head = Text(f"{before} -> {after.removeprefix('vLLM ')}", "bold")
    console.print(head.append("".join(f"  {part}" for part in (upgrade.after.setup.target, where) if part), "not bold"))
    if upgrade.starts_on_neither:
        console.print(Text("The setup starts on neither of the two.", "bold red"))
    _section(console, "Cannot be judged", "bold red", upgrade.unknown)
    is_all = not upgrade.still and not upgrade.unknown
    _section(console, "Breaks", "bold red", upgrade.breaks, empty="nothing" if is_all else "nothing more")
    _section(console, "Fails on both", "bold red", upgrade.still)
    _changes(console, upgrade.changes)
    _section(console, "New to know", "bold yellow", upgrade.other)
    _section(console, "No longer a problem", "bold green", upgrade.gone)
    _choices(console, "Becomes possible", upgrade.possible, by_end=upgrade.is_downgrade)
    _choices(console, "Is no longer there", upgrade.removed, by_end=not upgrade.is_downgrade)


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


def _choices(console: Console, title: str, choices: Sequence[Choice], *, by_end: bool) -> None:
    """Print choices by kind and by the release that has them first, or last.

    Names of single families' MTP modules stand together.
    """
    if not choices:
        return
    table = _table(title, "until" if by_end else "since", "", "")
    rows: dict[tuple[str, str], list[str]] = {}
    for choice in choices:
        method = find_method(choice.name) if choice.kind == "method" else None
        is_alias = method is not None and choice.name in method.aliases
        kind, name = ("method mtp of", choice.name.removesuffix("_mtp")) if is_alias else (choice.kind, choice.name)
        release = choice.until or str(releases()[-1]) if by_end else choice.since
        rows.setdefault((release, kind), []).append(name)
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
        "starts_on_neither": upgrade.starts_on_neither,
        **{
            name: [f.to_dict() for f in getattr(upgrade, name)]
            for name in ("breaks", "still", "unknown", "other", "gone")
        },
        **{name: [asdict(c) for c in getattr(upgrade, name)] for name in ("changes", "possible", "removed")},
    }
