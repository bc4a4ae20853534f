"""The console that every verb prints to."""

from __future__ import annotations

from rich.console import Console

__all__ = ["UNBROKEN", "open_console"]

UNBROKEN = 250
"""Characters of a line where no terminal breaks it."""


def open_console(*, stderr: bool) -> Console:
    """Return the console; where it is no terminal its width would be a guess, and rows must not break."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=UNBROKEN)
