"""The console that every verb prints to."""

from __future__ import annotations

from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

__all__ = ["UNBROKEN", "open_console", "show_table"]

UNBROKEN = 250
"""Characters of a line where no terminal breaks it."""


class _PlainConsole(Console):
    """Writes lines without the blanks that fill tables and cells up to their width."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as `Console.print` does."""
        with self.capture() as captured:
            super().print(*objects, **options)
        self.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def open_console(*, stderr: bool, width: int = UNBROKEN) -> Console:
    """Return the console; where it is no terminal its width would be a guess, and rows must not break.

    Args:
        stderr: whether it prints there instead of stdout.
        width: characters of a line where it is no terminal.
    """
    console = Console(stderr=stderr)
    return console if console.is_terminal else _PlainConsole(stderr=stderr, width=width)


def show_table(console: Console, *forms: Table) -> None:
    """Print the first form of a table that has room; in a terminal too narrow for any, the last one row by row."""
    unbroken = console.options.update(max_width=UNBROKEN)
    fitting = (form for form in forms if console.measure(form, options=unbroken).maximum <= console.width)
    if (table := next(fitting, None)) is not None:
        console.print(table)
        return
    columns = forms[-1].columns
    for cells in zip(*(column.cells for column in columns), strict=True):
        if any(map(_read, cells)):
            for column, cell in zip(columns, cells, strict=True):
                _show_cell(console, " ".join(_read(column.header).replace("-\n", "-").split()), cell)
            console.print()


def _show_cell(console: Console, name: str, cell: RenderableType) -> None:
    if text := _read(cell):
        style = cell.style if isinstance(cell, Text) else ""
        console.print(Text.assemble((f"{name}: " if name else "", "dim"), (text, style)), soft_wrap=True)


def _read(cell: RenderableType) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)
