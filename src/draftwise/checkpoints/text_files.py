"""Reads text files of a checkpoint, and quotes them in messages: bounded, and without terminal escapes."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from draftwise.core import InvalidSetup, cause_of
from draftwise.knowledge.messages import refusal

_MAX_CHARACTERS = 80
_MAX_NAMES = 4


def quote(value: object) -> str:
    """Return a value as one printable line of at most 80 characters."""
    text = str(value)
    text = text if text.isprintable() else ascii(text)[1:-1]
    return text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 3] + "..."


def quote_some(values: Collection[object]) -> str:
    """Return the first few of several values, and the number of the others."""
    return _join(islice(values, _MAX_NAMES), len(values) - _MAX_NAMES)


def _join(shown: Iterable[object], num_more: int) -> str:
    return ", ".join(quote(value) for value in shown) + (f" and {num_more} more" if num_more > 0 else "")


POINTER_BYTES = 64
"""Number of bytes at a file's start that show whether it is a pointer."""

_POINTERS = (b"version https://git-lfs.github.com/spec/", b"# xet version")
_MAX_BYTES = 256 * 1024 * 1024
"""The largest tokenizer.json and index files in use are a tenth of it."""
_FIX = "Download the file again."


def check_directory(directory: Path) -> None:
    """Raise InvalidSetup unless the directory exists."""
    if not directory.is_dir():
        raise refusal("no-checkpoint", directory=directory)


def read_json(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        InvalidSetup: it is absent, unreadable, too large, a Git LFS pointer, not JSON or not an object.
    """
    return parse_json(read_bytes(file), where=str(file), fix=_FIX)


def parse_json(text: str | bytes, *, where: str, fix: str = "") -> dict[str, Any]:
    """Return the object in a JSON text.

    Args:
        text: the text, or its bytes in UTF-8.
        where: the file or option that it comes from, for messages.
        fix: what to do if it is damaged.

    Raises:
        InvalidSetup: it is not JSON, or not an object.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise refusal("not-json", case="bare", error=cause_of(error)[:120], where=where, fix=fix) from None
    if not isinstance(value, dict):
        raise refusal(
            "not-an-object", case="text", name="null" if value is None else type(value).__name__, where=where, fix=fix
        )
    return value


def read_lines(file: Path) -> list[str]:
    """Return the lines of a text file, with invalid UTF-8 replaced.

    Raises:
        InvalidSetup: it is absent, unreadable, too large or a Git LFS pointer.
    """
    return read_bytes(file).decode("utf-8", "replace").split("\n")


def read_bytes(file: Path) -> bytes:
    """Return the bytes of a file.

    Raises:
        InvalidSetup: it is absent, unreadable, too large or a Git LFS pointer.
    """
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise _bad(file, "too-large", f"The file has more than {_MAX_BYTES >> 20} MiB.")
        data = file.read_bytes()
    except FileNotFoundError:
        raise _bad(file, "file-missing", "The file is not there.") from None
    except OSError as error:
        fix = "Check the path and who may read it."
        raise _bad(file, "unreadable-file", f"The file cannot be read ({cause_of(error)}).", fix) from None
    refuse_pointer(file, data[:POINTER_BYTES])
    return data


def refuse_pointer(file: Path, start: bytes) -> None:
    """Raise InvalidSetup if a file's start shows a Git LFS pointer."""
    if start.startswith(_POINTERS):
        raise refusal("lfs-pointer", file=file)


def _bad(file: Path, code: str, message: str, fix: str = _FIX) -> InvalidSetup:
    return InvalidSetup.because(code, message, where=str(file), fix=fix)
