"""Standard output and error that take every character, and a reader that goes away."""

from __future__ import annotations

import io
import sys

__all__ = ["settle_streams"]


class _Pipe(io.FileIO):
    """A file of which nobody need read the end: `draftwise check ... | head -1` goes on to its exit code."""

    def write(self, data: object) -> int:
        """Write; what a closed pipe does not take is dropped."""
        try:
            return super().write(data) or 0  # type: ignore[arg-type]  # FileIO.write takes any buffer
        except BrokenPipeError:
            return len(data)  # type: ignore[arg-type]


def settle_streams() -> None:
    """Let characters that the encoding lacks become `?` (PYTHONIOENCODING=ascii), and closed pipes end no command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        descriptor, is_terminal = sys.stdout.fileno(), sys.stdout.isatty()
    except (OSError, ValueError, AttributeError):  # not a file, closed, or none at all
        return
    if not is_terminal:
        pipe = io.BufferedWriter(_Pipe(descriptor, "w", closefd=False))
        sys.stdout = io.TextIOWrapper(pipe, encoding=sys.stdout.encoding, errors="replace")
