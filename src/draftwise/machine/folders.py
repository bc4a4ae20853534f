"""Manages the user's folders: a cache shared by all processes, and the user's data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from draftwise.machine.whole_files import open_lock


def cache_folder() -> Path:
    """Return the user's cache folder for draftwise, which may not exist yet.

    `$DRAFTWISE_CACHE_DIR`, else `draftwise` in `$XDG_CACHE_HOME` or `~/.cache`.
    """
    if given := os.environ.get("DRAFTWISE_CACHE_DIR"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "draftwise"


@contextmanager
def one_at_a_time(what: str) -> Iterator[None]:
    """Let one process at a time into the block. `what` names the work and must be a valid file name.

    The lock ends with its process, even on a crash. If files cannot be locked, all processes enter at once. Replace
    cache files atomically in any case.
    """
    descriptor = _open_lock(cache_folder() / f"{what}.lock")
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _open_lock(file: Path) -> int | None:
    """Return a descriptor of the file, locked; None where that cannot be had."""
    with suppress(ImportError, OSError):
        return open_lock(file)
    return None


def data_folder() -> Path:
    """Return the user's data folder for draftwise, which may not exist yet.

    `$DRAFTWISE_DATA_DIR`, else `draftwise` in `$XDG_DATA_HOME` or `~/.local/share`.
    """
    if given := os.environ.get("DRAFTWISE_DATA_DIR"):
        return Path(given)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "draftwise"
