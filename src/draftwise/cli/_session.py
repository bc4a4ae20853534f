"""Runs a measurement in a terminal: the types of its options, its progress, Ctrl-C, and the command that resumes it."""

from __future__ import annotations

import sys
import time
from collections.abc import Container, Mapping
from functools import partial
from threading import Event, Thread
from typing import Any, NoReturn

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from draftwise.cli._console import open_console
from draftwise.cli._options import Duration, Finite, ParsedOption
from draftwise.core import Arrivals, BackendError, Finding, Severity, StorageError
from draftwise.core.exit_codes import exit_code_of
from draftwise.core.progress import Silent, Stopped
from draftwise.verbs.loads import read_numbers, read_phases
from draftwise.verbs.verb import Verb

WHOLE_NUMBERS = ParsedOption(partial(read_numbers, least=1, whole=True), "numbers")
_RATES = ParsedOption(partial(read_numbers, least=0, open_end=True), "numbers")
_TEMPERATURES = ParsedOption(partial(read_numbers, least=0), "numbers")
_PHASES = ParsedOption(read_phases, "phases")


LOAD_TYPES: Mapping[str, Any] = {
    "concurrency": WHOLE_NUMBERS, "rate": _RATES, "arrivals": click.Choice([each.value for each in Arrivals]),
    "phases": _PHASES, "replay": Finite(0, min_open=True), "turn_seconds": Duration(0, min_open=True),
    "temperatures": _TEMPERATURES, "lengths": WHOLE_NUMBERS,
}  # fmt: skip


_QUIET_S = 30
"""Seconds without a measured answer before a run says that it waits."""
_LONGEST_STATUS = 100
_QUIET_STEPS = 10
"""Lines that a run writes where there is no terminal to draw a bar in."""

RENAMED = {"--vllm": "--vllm-command"}
"""Earlier spelling -> today's: elsewhere, `--vllm` is a release."""


def run_measurement(verb: Verb[Any, Any, Any], request: Any) -> tuple[Any, Exception | None]:
    """Run a verb that measures, with progress on stderr; return its result, and the failure that ended it early."""
    with ConsoleProgress(open_console(stderr=True)) as progress:
        try:
            return verb.run(request, progress), None
        except (BackendError, StorageError) as error:
            if progress.result is None:
                raise
            return progress.result, error
        except Stopped:
            raise click.Abort from None


def end_measurement(result: Any, failure: Exception | None) -> NoReturn:
    """Exit with the code of a result, or of the failure that ended it early, which goes to stderr."""
    if failure is not None:
        click.echo(f"error: {failure}", err=True)
    sys.exit(result.exit_code if failure is None else exit_code_of(failure))


class ConsoleProgress(Silent):
    """A bar with the time left, or a few plain lines if stderr is not a terminal. Ctrl-C stops the run."""

    def __init__(self, console: Console) -> None:
        self.result: Any = None
        """Result so far, of a verb that failed."""
        self._over = Event()
        self._console = console
        self._bar = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(compact=True),
            console=console,
            refresh_per_second=2,  # drawing takes CPU from the servers
        )
        self._task = self._bar.add_task("", total=None)
        self._total = self._done = 0
        self._heard = time.monotonic()
        self._doing = "preparing the measurement"
        self._status = console.status(self._doing)

    def __enter__(self) -> ConsoleProgress:
        self._status.start()
        Thread(target=self.remind, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._status.stop()
        if self._bar.live.is_started:  # it ends with an empty line where it was never drawn
            self._bar.stop()

    def status(self, text: str) -> None:
        """Show the current activity."""
        self._doing = text
        self._status.update(text[:_LONGEST_STATUS])
        self._bar.update(self._task, description=text)

    def plan(self, steps: int, seconds: float | None) -> None:  # noqa: ARG002  (the bar estimates it by itself)
        """Draw the bar."""
        self._status.stop()
        self._total = steps
        self._heard = time.monotonic()
        self._bar.update(self._task, total=steps)
        if self._console.is_terminal:
            self._bar.start()

    def step(self, done: int, seconds_left: float | None = None, text: str = "") -> None:  # noqa: ARG002
        """Move the bar."""
        before, self._done = self._done, done
        self._heard = time.monotonic()
        self._bar.update(self._task, completed=done)
        if text:
            self._doing = f"the last answer was {text}"
            self._bar.update(self._task, description=text)
        step = max(1, self._total // _QUIET_STEPS)
        if text and not self._console.is_terminal and before // step != done // step:
            self._console.print(f"{done} of {self._total} requests: {text}")

    def notice(self, finding: Finding) -> None:
        """Print a finding."""
        severity = "" if finding.severity is Severity.INFO else f"{finding.severity}: "
        self._console.print(f"{severity}{finding}", soft_wrap=True, markup=False, highlight=False)

    def update(self, result: object) -> None:
        """Keep the result so far."""
        self.result = result

    def remind(self) -> None:
        """Print what the run waits for whenever nothing was measured for a while, until the run ends."""
        while not self._over.wait(_QUIET_S / 6):
            quiet = time.monotonic() - self._heard
            if quiet >= _QUIET_S:
                self._heard += quiet
                self._console.print(
                    f"no answer has been measured for {quiet:.0f} s: {self._doing}. Ctrl-C keeps all measurements",
                    soft_wrap=True,
                )


def refuse_others(ctx: click.Context, stay: Container[str]) -> None:
    """Refuse options that would change an unfinished run.

    Raises:
        UsageError: such an option is given.
    """
    given = [each for each in ctx.command.params if _is_given(ctx, each)]
    if others := sorted(
        each.opts[0] if each.opts[0].startswith("-") else "TARGET" for each in given if each.name not in stay
    ):
        raise click.UsageError(f"--resume continues the run as planned. Leave out {', '.join(others)}.")


def _is_given(ctx: click.Context, param: click.Parameter) -> bool:
    return param.name is not None and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
