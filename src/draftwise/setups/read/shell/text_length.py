"""The longest text that is read, with its variables put in or without."""

from __future__ import annotations

from collections.abc import Iterable

from draftwise.core import InvalidSetup

__all__ = ["MAX_CHARS", "check_length", "too_long"]

MAX_CHARS = 1_000_000
"""Longest text that is read, before and after variables are put in."""


def check_length(texts: Iterable[str]) -> None:
    """Refuse texts that variables have blown up.

    Raises:
        InvalidSetup: together they are longer than `MAX_CHARS`.
    """
    if sum(map(len, texts)) > MAX_CHARS:
        raise too_long()


def too_long(where: str = "") -> InvalidSetup:
    """Return the error of a text that is too long with its variables put in."""
    return InvalidSetup.because(
        "too-long",
        f"The text is longer than {MAX_CHARS:,} characters with its variables put in.",
        where=where,
        fix="Give the one command that starts the server.",
    )
