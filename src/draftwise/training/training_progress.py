"""Reports a training run on stderr: bars in a terminal, a few lines of text elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.progress import TimeRemainingColumn as TimeLeft

from draftwise.core.progress import Progress, Silent

_QUIET_LINES = 10
"""Number of lines that replace a bar outside a terminal."""


class TrainingBars(Silent):
    """A Progress that draws one bar at a time on stderr."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bars: Bars | None = None
        self._total = self._done = 0

    def status(self, text: str) -> None:
        """Write one line."""
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)

    def plan(self, steps: int, seconds: float | None) -> None:  # noqa: ARG002
        """Start a bar and end the previous one. 0 steps start none."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
        self._total, self._done = steps, 0
        if steps and self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bars = Bars(
                *columns, TextColumn("left"), TimeLeft(compact=True), console=self._console, refresh_per_second=2
            )
            self._bars.add_task("", total=steps)
            self._bars.start()

    def step(self, done: int, seconds_left: float | None = None, text: str = "") -> None:  # noqa: ARG002
        """Advance the bar, or write a line per tenth of the steps."""
        before, self._done = self._done, done
        stride = max(1, self._total // _QUIET_LINES)
        if self._bars is not None:
            self._bars.update(self._bars.task_ids[0], completed=done, description=text)
        elif before // stride != done // stride or done == self._total:
            what, _, note = text.partition("  ")
            self.status(f"{what} {done}/{self._total}  {note}".rstrip())


@contextmanager
def show_bar(progress: Progress, what: str, *, total: int, done: int = 0) -> Iterator[Bar]:
    """Report the steps of a task while the block runs."""
    progress.plan(total, None)
    yield Bar(progress, what, done)
    progress.plan(0, None)


class Bar:
    """The steps of one task."""

    def __init__(self, progress: Progress, what: str, done: int) -> None:
        self._progress, self._what, self._done, self._note = progress, what, done, ""

    def advance(self, steps: int = 1) -> None:
        """Count steps as done."""
        self._done += steps
        self._progress.step(self._done, text=f"{self._what}  {self._note}".rstrip())

    def set_note(self, text: str) -> None:
        """Change the text next to the bar."""
        self._note = text
