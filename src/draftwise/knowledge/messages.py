"""Texts of findings and refusals, rows of `data/messages` by their code: a message, where it applies, and the fix."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from draftwise.core import Finding, InvalidSetup, UnreadableSource
from draftwise.knowledge.stored import read_folder


def refusal(code: str, *, case: str = "", **values: object) -> InvalidSetup:
    """Return the error of one fault, to be raised: `case` tells the rows of a code apart, `values` fill it."""
    return InvalidSetup.because(code, **_fill(code, case, values))


def unreadable(code: str, *, case: str = "", **values: object) -> UnreadableSource:
    """Return the error of a source that cannot be read; the arguments are those of `refusal`."""
    return UnreadableSource(Finding.error(code, **_fill(code, case, values)))


def fault(code: str, *, case: str = "", **values: object) -> Finding:
    """Return a finding that stops the work; the arguments are those of `refusal`."""
    return Finding.error(code, **_fill(code, case, values))


def warning(code: str, *, case: str = "", **values: object) -> Finding:
    """Return a finding that may cost; the arguments are those of `refusal`."""
    return Finding.warning(code, **_fill(code, case, values))


def note(code: str, *, case: str = "", **values: object) -> Finding:
    """Return a finding that explains; the arguments are those of `refusal`."""
    return Finding.info(code, **_fill(code, case, values))


def _fill(code: str, case: str, values: Mapping[str, object]) -> dict[str, str]:
    row = _read()[f"{code}/{case}" if case else code]
    return {name: text.format(**values) for name, text in row.items()}


@cache
def _read() -> Mapping[str, Mapping[str, str]]:
    return {key: row for room in read_folder("messages").values() for key, row in room.items()}
