"""`draftwise replay`: estimates the worth of each drafting method on logged traffic, without serving it again."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as DrawnBars
from rich.table import Table

from draftwise.cli._console import narrow, open_console, show_table
from draftwise.cli._findings import render_findings
from draftwise.cli._options import ParsedOption, options
from draftwise.core import Acceptance
from draftwise.core.progress import Silent
from draftwise.verbs.replay import DEVICES, DTYPES, PAGE, PROFILE, Grouping, ReplayRequest, ReplayResult, read_ks
from draftwise.verbs.replay import replay as run_replay

_SHOWN_KS = (1, 3, 5, 7)


@click.command()
@click.argument("log")
@options(
    "replay",
    of=ReplayRequest,
    ks=ParsedOption(read_ks, "numbers"),
    group_by=click.Choice([each.value for each in Grouping]),
    default_temperature=click.FloatRange(0),
    dtype=click.Choice(DTYPES),
    device=click.Choice(DEVICES),
)
def replay(as_json: bool, **given: Any) -> None:
    """Replay LOG, prompts with their answers, and compute which of each candidate's draft tokens would be accepted."""
    with _Bar() as bar:
        result = run_replay.run(ReplayRequest(**given), bar)
    render(open_console(stderr=as_json), result)
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=1))
    click.echo(f"\nProfile: {result.directory / PROFILE}\nReport: {result.directory / PAGE}", err=True)
    sys.exit(result.exit_code)


class _Bar(Silent):
    """A bar of requests on stderr, which only a terminal draws."""

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
        )
        console = open_console(stderr=True)
        self._bars = DrawnBars(*columns, console=console, disable=not console.is_terminal, transient=True)
        self._task: TaskID | None = None

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def status(self, text: str) -> None:
        """Print what is under way."""
        click.echo(text, err=True)

    def plan(self, steps: int, seconds: float | None) -> None:  # noqa: ARG002  (the bar estimates it by itself)
        """Draw the bar."""
        self._task = self._bars.add_task("", total=steps)
        self._bars.start()

    def step(self, done: int, seconds_left: float | None = None, text: str = "") -> None:  # noqa: ARG002
        """Move the bar."""
        if self._task is not None:
            self._bars.update(self._task, completed=done, description=text)


def render(console: Console, result: ReplayResult) -> None:
    """Print what was replayed, the tokens per step by candidate and k, and the findings."""
    log = result.profile.log
    console.print(
        f"{log.used:,} of {log.rows:,} requests, {log.tokens_out:,} tokens, "
        f"{'in time order' if log.order == 'time' else 'in the order of the file'}",
        highlight=False,
    )
    table = _table(result.profile.entries)
    ks = (str(each.header) for each in reversed(table.columns) if str(each.header).startswith("k="))
    show_table(console, *narrow(table, "request P10/50/90", "drafted/step", *list(ks)[1:-1]))
    console.print(render_findings(result.profile.findings))


def _table(entries: Sequence[Acceptance]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    shown = sorted({k for entry in entries for k in (*_SHOWN_KS, entry.kmax) if k in entry.by_k})
    table.add_column("setting", no_wrap=True)
    for name in ("tokens/step", "95 %", "request P10/50/90", *(f"k={k}" for k in shown), "drafted/step"):
        table.add_column(name, justify="right", no_wrap=True)
    for entry in entries:
        best = entry.by_k[max(entry.by_k)]
        found = best.tokens_per_step
        table.add_row(
            _name(entry),
            f"{found.value:.2f}",
            f"{found.low:.2f}-{found.high:.2f}",
            " ".join(f"{each:.2f}" for each in best.per_request),
            *(f"{entry.by_k[k].tokens_per_step.value:.2f}" if k in entry.by_k else "" for k in shown),
            f"{best.drafted / best.steps:.1f}",
        )
    return table


def _name(entry: Acceptance) -> str:
    label = replace(entry.candidate, num_speculative_tokens=None).label
    parts = (label, f"T={entry.temperature:g}", entry.group or "")
    return ("  " if entry.group else "") + " ".join(filter(None, parts))
