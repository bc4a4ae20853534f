"""Texts of findings and refusals, from rows of `data/messages` by code: message, place, and fix."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from draftwise.core import Finding, InvalidSetup, UnreadableSource
from draftwise.knowledge.stored import read_folder


def refusal(code: str, *, case: str = "", **values: object) -> InvalidSetup:
    """Return the error for one fault, to raise; `case` selects among rows of a code, `values` fill its text."""
    return InvalidSetup.because(code, **_fill(code, case, values))


def unreadable(code: str, *, case: str = "", **values: object) -> UnreadableSource:
    """Return the error for a source that cannot be read; arguments as in `refusal`."""
    return UnreadableSource(Finding.error(code, **_fill(code, case, values)))


def fault(code: str, *, case: str = "", **values: object) -> Finding:
    """Return a finding that stops the work; arguments as in `refusal`."""
    return Finding.error(code, **_fill(code, case, values))


def warning(code: str, *, case: str = "", **values: object) -> Finding:
    """Return a finding that may cost speed, memory or correctness; arguments as in `refusal`."""
    return Finding.warning(code, **_fill(code, case, values))


def note(code: str, *, case: str = "", **values: object) -> Finding:
    """Return a finding that only explains; arguments as in `refusal`."""
    return Finding.info(code, **_fill(code, case, values))


def text_of(key: str, /, **values: object) -> str:
    """Return only the text of a row, which need not be a finding's."""
    return _fill(key, "", values)["message"]


def _fill(code: str, case: str, values: Mapping[str, object]) -> dict[str, str]:
    row = _read()[f"{code}/{case}" if case else code]
    return {name: text.format(**values) for name, text in row.items()}


@cache
def _read() -> Mapping[str, Mapping[str, str]]:
    return {key: row for room in read_folder("messages").values() for key, row in room.items()}
