"""What a training run shows: units of work with their steps, and lines of text; on stderr or to any Progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as DrawnBars
from rich.progress import TimeRemainingColumn as TimeLeft

from draftwise.core import Finding, Progress
from draftwise.core.progress import Silent

__all__ = ["Bar", "Reporter", "TrainingBars"]

_QUIET_LINES = 10
"""Number of lines that replace a bar outside a terminal."""


class Reporter:
    """Reports units of work, one after another, and lines of text to a Progress.

    Args:
        progress: receives them; None for nobody.
    """

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress = Silent() if progress is None else progress

    @property
    def stop_requested(self) -> bool:
        """Whether the run should end at its next step."""
        return self._progress.stop_requested

    def print_line(self, line: str) -> None:
        """Report one line."""
        self._progress.notice(Finding.info("training", line))

    @contextmanager
    def show_bar(self, what: str, *, total: int, done: int = 0) -> Iterator[Bar]:
        """Report a unit of work while the block runs."""
        self._progress.status(what)
        self._progress.plan(total, None)
        self._progress.step(done)
        yield Bar(self._progress, done)


class Bar:
    """The steps of one unit of work."""

    def __init__(self, progress: Progress, done: int) -> None:
        self._progress, self._done, self._note = progress, done, ""

    def advance(self, steps: int = 1) -> None:
        """Count steps as done."""
        self._done += steps
        self._progress.step(self._done, text=self._note)

    def set_note(self, text: str) -> None:
        """Change what is said of the steps from the next one on."""
        self._note = text


class TrainingBars(Silent):
    """A Progress on stderr: a bar for each unit of work in a terminal, a few lines of text elsewhere."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bars: DrawnBars | None = None
        self._task = TaskID(0)
        self._what, self._total = "", 0
        self._done: int | None = None
        """None until the unit of work says where it begins."""

    def __enter__(self) -> TrainingBars:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_bar()

    def status(self, text: str) -> None:
        """Begin the bar of a unit of work."""
        self._end_bar()
        self._what, self._total, self._done = text, 0, None
        if self._console.is_terminal:
            columns = (
                TextColumn(text),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.description}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeLeft(compact=True),
            )
            self._bars = DrawnBars(*columns, console=self._console, refresh_per_second=2)
            self._task = self._bars.add_task("", total=None)
            self._bars.start()

    def plan(self, steps: int, seconds: float | None) -> None:  # noqa: ARG002  (the bar estimates it by itself)
        """Set the length of the bar."""
        self._total = steps
        if self._bars is not None:
            self._bars.update(self._task, total=steps)

    def step(self, done: int, seconds_left: float | None = None, text: str = "") -> None:  # noqa: ARG002
        """Move the bar, or write a line for each tenth of the work."""
        before, self._done = self._done, done
        if self._bars is not None:
            self._bars.update(self._task, completed=done, description=text)
            if done == self._total:
                self._end_bar()
            return
        stride = max(1, self._total // _QUIET_LINES)
        if before is not None and (before // stride != done // stride or done == self._total):
            self._print(f"{self._what} {done}/{self._total}  {text}".rstrip())

    def notice(self, finding: Finding) -> None:
        """Print a line."""
        self._print(str(finding))

    def _print(self, line: str) -> None:
        self._console.print(line, soft_wrap=True, highlight=False, markup=False)

    def _end_bar(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
