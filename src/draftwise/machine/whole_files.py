"""Atomic file replacement, and file locks between processes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path, *, keeps_mode: bool = False) -> Iterator[Path]:
    """Yield the name of a file to write, which replaces `path` atomically if the block succeeds.

    However this process ends, either the old file or the complete new one exists.

    Args:
        path: file to replace.
        keeps_mode: keep the old file's permissions.

    Raises:
        OSError: the file cannot be written, for example on a full disk. The old file stays.
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
    """Write a file atomically, see `replacing`.

    Raises:
        OSError: it cannot be written.
    """
    with replacing(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


def open_lock(path: Path) -> int:
    """Wait for a file's lock; return the descriptor that holds it until closed.

    Raises:
        ImportError: the system has no such locks (Windows).
        OSError: the file cannot be created or locked.
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
