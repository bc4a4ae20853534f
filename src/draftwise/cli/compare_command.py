"""`draftwise compare`: asks whether an answer is still true: compares two runs, or results of other load generators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftwise.cli._options import options
from draftwise.cli._results import show
from draftwise.reporting.compared_runs import (
    CELL_HEADER,
    VERDICT_HEADER,
    list_cell_rows,
    list_difference_rows,
    list_verdict_rows,
)
from draftwise.verbs.compare import KINDS, CompareRequest, CompareResult
from draftwise.verbs.compare import compare as run_compare

_MOST_ROWS = 60
"""Most rows of a table in a terminal."""


@click.command()
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@options("compare", of=CompareRequest, changed=click.Choice(KINDS))
def compare(as_json: bool, as_markdown: bool, **given: Any) -> None:
    """Check whether the verdicts of BEFORE still hold in AFTER."""
    if as_json and as_markdown:
        raise click.UsageError("Give --json or --markdown, not both.")
    result = run_compare.run(CompareRequest(**given))
    if as_markdown:
        click.echo(result.to_markdown(), nl=False)
        raise SystemExit(result.exit_code)
    show(result, render, as_json=as_json, indent=2)


def render(console: Console, result: CompareResult) -> None:
    """Print what differs, the verdicts, the readings, and the answer."""
    compared = result.compared
    if compared.differences:
        _print(
            console, ("what differs", "before", "after", ""), list_difference_rows(compared.differences), numbers=False
        )
    else:
        console.print("No known difference between the two.", style="dim")
    if compared.verdicts:
        _print(console, VERDICT_HEADER, list_verdict_rows(compared.verdicts))
    _print(console, CELL_HEADER, list_cell_rows(compared.cells))
    for note in result.notes:
        console.print(Text(note, style="dim"), soft_wrap=True)
    console.print()
    style = "bold" if compared.is_like_for_like else "bold red"
    console.print(Text(result.sentence, style=style), soft_wrap=True)


def _print(console: Console, header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = True) -> None:
    given = list(rows)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for i, name in enumerate(header):
        table.add_column(name, justify="right" if numbers and i else "left", overflow="fold")
    last = ""
    for row in given[:_MOST_ROWS]:
        first = "" if row[0] == last else row[0]
        last = row[0]
        table.add_row(Text(first), *map(Text, row[1:]))
    console.print(table)
    if len(given) > _MOST_ROWS:
        console.print(f"{len(given) - _MOST_ROWS} more rows with --json", style="dim")
    console.print()
