"""The console that every verb prints to, and a bar of bytes, drawn only in a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from draftwise.core.progress import Silent

if TYPE_CHECKING:
    from rich.table import Table


class ByteBar(Silent):
    """A bar whose length and position are the bytes that a verb reports."""

    def __init__(self, bar: Any, *, says: bool, err: bool) -> None:
        self._bar, self._says, self._err = bar, says, err

    def status(self, text: str) -> None:
        """Print what is transferred."""
        if self._says:
            click.echo(text, err=self._err)

    def plan(self, steps: int, seconds: float | None) -> None:  # noqa: ARG002
        """Set the length of the bar."""
        self._bar.length = steps

    def step(self, done: int, seconds_left: float | None = None, text: str = "") -> None:  # noqa: ARG002
        """Move the bar."""
        self._bar.update(done - self._bar.pos)


@contextmanager
def open_bar(label: str, *, says: bool = True, err: bool = True) -> Iterator[ByteBar]:
    """Yield a bar."""
    with click.progressbar(length=1, label=label, file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:
        yield ByteBar(bar, says=says, err=err)


UNBROKEN = 250
"""Line length in characters without a terminal."""
_READABLE = 20
"""Width to which a column may be folded."""


class _PlainConsole(Console):
    """Writes lines without the blanks that fill tables and cells up to their width."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as `Console.print` does."""
        with self.capture() as captured:
            super().print(*objects, **options)
        self.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def open_console(*, stderr: bool, width: int = UNBROKEN) -> Console:
    """Return the console; outside a terminal, `width` replaces a guess, so that rows do not break."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else _PlainConsole(stderr=stderr, width=width)


def show_prose(console: Console, text: str | Text, style: str = "") -> None:
    """Print sentences: a terminal wraps them between words and keeps the indent; elsewhere lines stay whole."""
    prose = Text(text, style) if isinstance(text, str) else text
    if not console.is_terminal:
        console.print(prose, soft_wrap=True)
        return
    indent = len(prose.plain) - len(prose.plain.lstrip(" "))
    console.print(Padding(prose[indent:], (0, 0, 0, indent)))


def narrow(table: Table, *least: str) -> Iterator[Table]:
    """Yield a table, then narrower ones."""
    from rich.table import Table  # a plain check shows none

    yield table
    for number, header in enumerate(least, 1):
        if any(column.header == header for column in table.columns):
            smaller = Table(box=None, pad_edge=False, header_style=table.header_style)
            kept = (column for column in table.columns if column.header not in least[:number])
            smaller.columns = [replace(column, _index=place) for place, column in enumerate(kept)]
            smaller.rows = table.rows
            yield smaller


def show_table(console: Console, *forms: Table) -> None:
    """Print the first form of a table that fits.

    If none fits, the last one wraps the cells of columns that may wrap. If those become too narrow to read, each row
    becomes a paragraph.
    """
    unbroken = console.options.update(max_width=UNBROKEN)
    fitting = (form for form in forms if console.measure(form, options=unbroken).maximum <= console.width)
    if (table := next(fitting, None)) is not None:
        console.print(table)
        return
    columns = forms[-1].columns
    fixed = [max(map(len, map(_read, (column.header, *column.cells)))) for column in columns if column.no_wrap]
    room = console.width - sum(fixed) - 2 * len(columns)
    if len(fixed) < len(columns) and room >= _READABLE * (len(columns) - len(fixed)):
        console.print(forms[-1])
        return
    headers = [" ".join(_read(column.header).replace("-\n", "-").split()) for column in columns]
    for cells in zip(*(column.cells for column in columns), strict=True):
        if texts := [_name_cell(header, cell) for header, cell in zip(headers, cells, strict=True) if _read(cell)]:
            console.print(texts[0])
            console.print(Padding(Text("  ").join(texts[1:]), (0, 0, 0, 2)))


def _name_cell(name: str, cell: RenderableType) -> Text:
    style = cell.style if isinstance(cell, Text) else ""
    return Text.assemble((f"{name} " if name else "", "dim"), (_read(cell), style))


def _read(cell: RenderableType) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)
