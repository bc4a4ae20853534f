"""Manages the user's folders: a cache that all processes share, with turns to write, and the user's additions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from draftwise.machine.whole_files import open_lock


def cache_folder() -> Path:
    """Return the user's cache folder for draftwise, which need not exist.

    `$DRAFTWISE_CACHE_DIR`, else `draftwise` in `$XDG_CACHE_HOME` or `~/.cache`.
    """
    if given := os.environ.get("DRAFTWISE_CACHE_DIR"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "draftwise"


@contextmanager
def one_at_a_time(what: str) -> Iterator[None]:
    """Let one process after the other in; `what` names the work, as a file's name.

    The lock ends with its process, however that ends. Where no file can be locked, all go in at once: whoever writes
    into the cache must replace files as a whole anyway.
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
    """Return the user's data folder for draftwise, which need not exist.

    `$DRAFTWISE_DATA_DIR`, else `draftwise` in `$XDG_DATA_HOME` or `~/.local/share`.
    """
    if given := os.environ.get("DRAFTWISE_DATA_DIR"):
        return Path(given)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "draftwise"
