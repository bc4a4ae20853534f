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
    """Return the first few of several values, and how many more there are."""
    return _join(islice(values, _MAX_NAMES), len(values) - _MAX_NAMES)


def _join(shown: Iterable[object], num_more: int) -> str:
    return ", ".join(quote(value) for value in shown) + (f" and {num_more} more" if num_more > 0 else "")


POINTER_BYTES = 64
"""Bytes to read from a file's start to recognize a pointer."""

_POINTERS = (b"version https://git-lfs.github.com/spec/", b"# xet version")
_MAX_BYTES = 256 * 1024 * 1024
"""The largest tokenizer.json and index files in use are a tenth of it."""
_FIX = "Download the file again."


def check_directory(directory: Path) -> None:
    """Raise InvalidSetup unless there is such a directory."""
    if not directory.is_dir():
        raise refusal("no-checkpoint", directory=directory)


def read_json(file: Path) -> dict[str, Any]:
    """Return the object that a JSON file holds.

    Raises:
        InvalidSetup: it is absent, unreadable, too large, a Git LFS pointer, not JSON or no object.
    """
    return parse_json(read_bytes(file), where=str(file), fix=_FIX)


def parse_json(text: str | bytes, *, where: str, fix: str = "") -> dict[str, Any]:
    """Return the object that a JSON text stands for.

    Args:
        text: UTF-8 if it is given as bytes.
        where: the file or option that it comes from, for messages.
        fix: what to do if it is damaged.

    Raises:
        InvalidSetup: it is not JSON, or no object.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        message = f"The text is not valid JSON ({str(error)[:120]})."
        raise InvalidSetup.because("not-json", message, where=where, fix=fix) from None
    if not isinstance(value, dict):
        message = f"The text must be a JSON object, not {type(value).__name__}."
        raise InvalidSetup.because("not-an-object", message, where=where, fix=fix)
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
    """Raise InvalidSetup where a file starts as the pointer that Git leaves in the place of a large file."""
    if start.startswith(_POINTERS):
        raise refusal("lfs-pointer", file=file)


def _bad(file: Path, code: str, message: str, fix: str = _FIX) -> InvalidSetup:
    return InvalidSetup.because(code, message, where=str(file), fix=fix)
