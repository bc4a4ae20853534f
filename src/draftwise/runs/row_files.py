"""Files of JSON lines that are read while they grow."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from draftwise.core import InvalidSetup, cause_of

T = TypeVar("T")


class RowFile(Generic[T]):
    """The rows of a file that grows; each is parsed once. An incomplete last line is ignored."""

    def __init__(self, path: Path, parse: Callable[[dict[str, Any]], T]) -> None:
        self._path, self._parse = path, parse
        self._rows: list[T] = []
        self._end = 0

    def read(self) -> Sequence[T]:
        """Return all complete rows; empty if there is no file.

        Raises:
            InvalidSetup: a complete line is not a row of a run.
        """
        if not self._path.exists():
            return []
        with blame(str(self._path)), _uncollected(), self._path.open("rb") as file:
            file.seek(self._end)
            for line in file:
                if line.endswith(b"\n"):
                    with blame(f"{self._path}:{len(self._rows) + 1}"):
                        self._rows.append(self._parse(json.loads(line)))
                    self._end += len(line)
        return self._rows


@contextmanager
def _uncollected() -> Iterator[None]:
    """Pause garbage collection: the rows that are kept hold no garbage, and searching them takes as long as parsing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def blame(where: str) -> Iterator[None]:
    """Name the file or line of a run whose content causes an error.

    Raises:
        InvalidSetup: in place of the error that the content causes.
    """
    try:
        yield
    except InvalidSetup:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(where, f"is not a row of a run ({cause_of(error)}).") from None


def damaged(where: str, message: str) -> InvalidSetup:
    """Return the error for a damaged file of a run.

    Args:
        where: the file, or a line of it: the subject of the message.
        message: what it does or is.
    """
    fix = "Restore the file from a copy; without it the run cannot be read."
    return InvalidSetup.because("damaged-run", f"{where} {message}", where=where, fix=fix)


def cut_unfinished(path: Path) -> None:
    """Remove an incomplete last line after a crash, so that the next row gets its own line."""
    if path.exists():
        data = path.read_bytes()
        os.truncate(path, data.rfind(b"\n") + 1)
