"""Files that are there whole or not at all, and one process at a time at them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path, *, keeps_mode: bool = False) -> Iterator[Path]:
    """Give the name of a file to write, which takes the place of `path` at once when the block ends well.

    Whatever ends this process, what was there before or all of the new file is there.

    Args:
        path: of the file.
        keeps_mode: gives the new file the permissions of the one that is there.

    Raises:
        OSError: it cannot be written, e.g. as the disk is full; what was there is there.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        if keeps_mode:
            shutil.copymode(path, part)
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all, see `replacing`.

    Raises:
        OSError: it cannot be written.
    """
    with replacing(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


def open_lock(path: Path) -> int:
    """Wait until this process holds the lock of a file, and return the descriptor that holds it until it is closed.

    Raises:
        ImportError: the system has no such locks (Windows).
        OSError: the file cannot be made or locked.
    """
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
