"""What a training run shows on stderr: progress bars in a terminal, a few lines of text elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as TimeLeft

__all__ = ["Bar", "Reporter"]

_QUIET_LINES = 10
"""Number of lines that replace a bar outside a terminal."""


class Reporter:
    """Lines and bars on stderr.

    Args:
        quiet: whether to show nothing.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet)

    def print_line(self, line: str) -> None:
        """Write one line."""
        self._console.print(line, soft_wrap=True, highlight=False, markup=False)

    @contextmanager
    def show_bar(self, what: str, *, total: int, done: int = 0) -> Iterator[Bar]:
        """Show a bar while the block runs."""
        columns = (
            TextColumn(what),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeLeft(compact=True),
        )
        drawn = self._console.is_terminal
        with Progress(*columns, console=self._console, refresh_per_second=2, disable=not drawn) as progress:
            task = progress.add_task("", total=total, completed=done)
            yield Bar(self, progress, task, what, total, done, drawn=drawn)


class Bar:
    """The progress of one task."""

    def __init__(
        self, reporter: Reporter, progress: Progress, task: TaskID, what: str, total: int, done: int, *, drawn: bool
    ) -> None:
        self._reporter, self._progress, self._task, self._what = reporter, progress, task, what
        self._total, self._done, self._drawn, self._note = total, done, drawn, ""

    def advance(self, steps: int = 1) -> None:
        """Count steps as done."""
        before, self._done = self._done, self._done + steps
        self._progress.update(self._task, advance=steps)
        stride = max(1, self._total // _QUIET_LINES)
        if not self._drawn and (before // stride != self._done // stride or self._done == self._total):
            self._reporter.print_line(f"{self._what} {self._done}/{self._total}  {self._note}".rstrip())

    def set_note(self, text: str) -> None:
        """Change the text next to the bar."""
        self._note = text
        self._progress.update(self._task, description=text)
