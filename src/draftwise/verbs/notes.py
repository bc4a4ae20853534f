"""Holds the operator's notes on a run: facts that draftwise cannot see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from draftwise.verbs.verb import refuse


def read_notes(given: Mapping[str, str] | Iterable[str]) -> dict[str, str]:
    """Return notes by key.

    Args:
        given: notes by key, or texts `KEY=VALUE`.

    Raises:
        InvalidRequest: a text has no value.
    """
    if isinstance(given, Mapping):
        return dict(given)
    notes = {}
    for text in given:
        key, separator, value = text.partition("=")
        if not separator:
            refuse(f"--context takes KEY=VALUE, got {text!r}.")
        notes[key.strip()] = value.strip()
    return notes
