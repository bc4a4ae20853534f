"""Puts what a file says into a message: bounded in length, and without characters that a terminal would obey."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice

__all__ = ["quote", "quote_some"]

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
