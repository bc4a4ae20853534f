"""The protocol by which a long verb reports progress and receives a request to stop."""

from __future__ import annotations

from typing import Protocol

from draftwise.core.finding import Finding


class Progress(Protocol):
    """Receives the progress of a long verb, in order, on one thread; a terminal, web page or agent implements it.

    A verb calls `status` at the beginning of each unit of work, `plan` whenever the amount of work becomes known or
    changes, `step` as work is done, and `notice` for findings that the user should see before the result. Between units
    of work it asks `stop_requested`; once that is true the verb ends early and keeps its data.
    """

    def status(self, text: str) -> None:
        """Receive the current activity in one line, e.g. `warming up plain at c=16`."""

    def plan(self, steps: int, seconds: float | None) -> None:
        """Receive the amount of work; called again whenever it changes.

        Args:
            steps: steps in total, finished ones included; the verb defines what a step is.
            seconds: expected seconds for the rest; None if unknown.
        """

    def step(self, done: int, seconds_left: float | None = None, text: str = "") -> None:
        """Receive how many of the planned steps are done.

        Args:
            done: steps done since the beginning, earlier sessions included.
            seconds_left: expected seconds for the rest; None if unknown or unchanged.
            text: description of the last step.
        """

    def notice(self, finding: Finding) -> None:
        """Receive a finding that the user should see now: a warning, an omission, a result so far."""

    def update(self, result: object) -> None:
        """Receive the result so far of a verb that repeats, such as one reading of `watch`."""

    @property
    def stop_requested(self) -> bool:
        """Whether the verb should end at the next opportunity."""


class Silent:
    """A Progress that shows nothing and never asks to stop."""

    stop_requested = False

    def status(self, text: str) -> None:
        """Do nothing."""

    def plan(self, steps: int, seconds: float | None) -> None:
        """Do nothing."""

    def step(self, done: int, seconds_left: float | None = None, text: str = "") -> None:
        """Do nothing."""

    def notice(self, finding: Finding) -> None:
        """Do nothing."""

    def update(self, result: object) -> None:
        """Do nothing."""


class Stopped(Exception):  # noqa: N818  (an outcome that was asked for, not an error)
    """Raised inside a long verb when its Progress requests a stop; the verb catches it and keeps its data."""


def check_stop(progress: Progress) -> None:
    """Raise Stopped if a stop was requested; called between units of work."""
    if progress.stop_requested:
        raise Stopped
