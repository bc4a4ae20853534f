"""Reads the text files of a checkpoint; what is wrong with one becomes a finding that names it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from draftwise.core import InvalidSetup

__all__ = ["POINTER_BYTES", "read_bytes", "read_json", "read_lines", "refuse_pointer"]

POINTER_BYTES = 64
"""From a file's start, enough to tell a pointer from what it stands for."""

_POINTERS = (b"version https://git-lfs.github.com/spec/", b"# xet version")
_MAX_BYTES = 256 * 1024 * 1024
"""The largest tokenizer.json and index files in use are a tenth of it."""


def read_json(file: Path) -> dict[str, Any]:
    """Return the object that a JSON file holds.

    Raises:
        InvalidSetup: it is absent, unreadable, too large, a Git LFS pointer, not JSON or no object.
    """
    data = read_bytes(file)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _bad(file, "not-json", f"is not valid JSON ({str(error)[:120]}).") from None
    if not isinstance(value, dict):
        raise _bad(file, "not-an-object", f"must hold a JSON object, not {type(value).__name__}.")
    return value


def read_lines(file: Path) -> list[str]:
    """Return the lines of a text file; bytes that are no UTF-8 are replaced.

    Raises:
        InvalidSetup: it is absent, unreadable, too large or a Git LFS pointer.
    """
    return read_bytes(file).decode("utf-8", "replace").split("\n")


def read_bytes(file: Path) -> bytes:
    """Return what a file holds.

    Raises:
        InvalidSetup: it is absent, unreadable, too large or a Git LFS pointer.
    """
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise _bad(file, "too-large", f"has more than {_MAX_BYTES >> 20} MiB.")
        data = file.read_bytes()
    except FileNotFoundError:
        raise _bad(file, "file-missing", "is not there.") from None
    except OSError as error:
        raise _bad(file, "unreadable-file", f"cannot be read ({error.strerror or error}).") from None
    refuse_pointer(file, data[:POINTER_BYTES])
    return data


def refuse_pointer(file: Path, start: bytes) -> None:
    """Raise InvalidSetup where a file starts as the pointer that Git leaves in the place of a large file."""
    if start.startswith(_POINTERS):
        raise InvalidSetup.because(
            "lfs-pointer", "is a Git LFS pointer, not the file that it stands for.", where=str(file),
            fix="Run `git lfs install && git lfs pull` in the checkpoint, or download it with `hf download`.",
        )  # fmt: skip


def _bad(file: Path, code: str, message: str) -> InvalidSetup:
    return InvalidSetup.because(code, message, where=str(file), fix="Download the file again.")
