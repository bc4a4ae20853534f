"""Copies files into a folder that appears when it is complete; what was copied before an interruption is kept."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from draftwise.core import InvalidSetup, StorageError

__all__ = ["copy_all"]

_CHUNK = 8 << 20
_DONE = ".done"
"""One line of JSON for each file that was copied: what it was copied from, and its sum."""


def copy_all(
    files: Mapping[str, Path],
    out: Path,
    finish: Callable[[Path, Mapping[str, str]], None],
    *,
    told: Callable[[int], None],
) -> None:
    """Copy files, let the rest be written, and put the folder in its place.

    Args:
        files: what to copy, by its name in the folder.
        out: the folder, which must not be there yet; until it is complete it has another name beside it.
        finish: writes the rest into the folder; takes it, and the SHA-256 of each file that was copied.
        told: is given the bytes that came in since it was called last.

    Raises:
        InvalidSetup: something is at `out`.
        StorageError: there is no room, or the disk fails; the next call goes on from there.
    """
    if out.exists():
        raise InvalidSetup.because(
            "folder-exists", f"{out} is there already.", where="--out", fix="Choose another folder, or move it away."
        )
    part = out.parent / f".{out.name}.part"
    try:
        part.mkdir(parents=True, exist_ok=True)
        done = _read_done(part / _DONE)
        _check_room(part, [path for name, path in files.items() if _identify(name, path) not in done])
        sums = {name: _copy(name, path, part, done, told) for name, path in files.items()}
        _remove_strays(part, files)
        finish(part, sums)
        (part / _DONE).unlink(missing_ok=True)
        part.rename(out)
    except OSError as error:
        raise StorageError(
            f"{out} cannot be written ({error.strerror or error}). What was copied is kept in {part}: make room, and "
            "give the same command again."
        ) from None


def _identify(name: str, source: Path) -> str:
    state = source.stat()
    return json.dumps([name, str(source), state.st_size, state.st_mtime_ns])


def _read_done(journal: Path) -> Mapping[str, str]:
    """Return the sums of what was copied, by what it was copied from; a line that was cut off counts for nothing."""
    lines = journal.read_text(encoding="utf-8").splitlines() if journal.is_file() else []
    pairs = (line.split(" ", 1) for line in lines)
    return {pair[1]: pair[0] for pair in pairs if len(pair) == 2 and len(pair[0]) == 64 and pair[1].endswith("]")}


def _check_room(part: Path, missing: list[Path]) -> None:
    needed, free = sum(path.stat().st_size for path in missing), shutil.disk_usage(part).free
    if needed > free:
        raise OSError(f"{needed >> 20} MiB are to be copied, and {free >> 20} MiB are free")


def _copy(name: str, source: Path, part: Path, done: Mapping[str, str], told: Callable[[int], None]) -> str:
    """Copy a file unless that was done before, and return its sum."""
    target, identity = part / name, _identify(name, source)
    if identity in done and target.is_file() and target.stat().st_size == source.stat().st_size:
        told(source.stat().st_size)
        return done[identity]
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with source.open("rb") as come, target.open("wb") as go:
        while chunk := come.read(_CHUNK):
            digest.update(chunk)
            go.write(chunk)
            told(len(chunk))
        go.flush()
        os.fsync(go.fileno())
    with (part / _DONE).open("a", encoding="utf-8") as journal:
        journal.write(f"{digest.hexdigest()} {identity}\n")
    return digest.hexdigest()


def _remove_strays(part: Path, files: Mapping[str, Path]) -> None:
    """Remove what an earlier command, of another setup, left in the folder."""
    for path in part.rglob("*"):
        if path.is_file() and path.relative_to(part).as_posix() not in files and path.name != _DONE:
            path.unlink()
