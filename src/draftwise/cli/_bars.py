"""A verb's progress as a bar of bytes on stderr, drawn only in a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from draftwise.core.progress import Silent


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
