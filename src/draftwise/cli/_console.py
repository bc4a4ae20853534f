"""The console that every verb prints to."""

from __future__ import annotations

from typing import Any

from rich.console import Console

__all__ = ["UNBROKEN", "open_console"]

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
