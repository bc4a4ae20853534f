"""Reads the pieces of a sentencepiece model: the repeated first field of its protobuf, and nothing else of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from draftwise.checkpoints.text_files import read_bytes

__all__ = ["read_pieces"]

_PIECES = 1
"""Number of the field `pieces` in ModelProto, and of the field `piece` in each (sentencepiece_model.proto)."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read_pieces(file: Path) -> list[str]:
    """Return the pieces in the order of their ids; none for a file that is no sentencepiece model.

    Files of that name can be tiktoken's too, which is no fault.

    Raises:
        InvalidSetup: the file cannot be read, or is a Git LFS pointer.
    """
    data = memoryview(read_bytes(file))
    try:
        return [
            next(str(value, "utf-8") for inner, value in _fields(field) if inner == _PIECES)
            for number, field in _fields(data)
            if number == _PIECES
        ]
    except (ValueError, IndexError, StopIteration):
        return []


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the number and bytes of each field; numbers yield no bytes.

    Raises:
        ValueError, IndexError: this is no protobuf message.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind, length = key & 7, 0
        if kind == _VARINT:
            _, at = _varint(data, at)
        elif kind == _BYTES:
            length, at = _varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if at + length > len(data):
            raise ValueError("field beyond the end")
        yield key >> 3, data[at : at + length]
        at += length


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("number of more than ten bytes")
