"""What each key of `--speculative-config` means, in draftwise's words."""

from __future__ import annotations

from functools import cache
from typing import Any

from draftwise.facts.stored import read_data

__all__ = ["meaning_of_key"]


def meaning_of_key(name: str) -> str | None:
    """Return what a key means, or None for one that is not described."""
    row = _glossary()["keys"].get(name)
    return None if row is None else str(row["meaning"])


@cache
def _glossary() -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = read_data("glossary")
    return loaded
