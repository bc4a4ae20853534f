"""What each method and each key of `--speculative-config` means, in draftwise's words."""

from __future__ import annotations

from functools import cache
from typing import Any

from draftwise.facts.stored import read_data

__all__ = ["meaning_of_key", "meaning_of_method", "source_of_method"]


def meaning_of_key(name: str) -> str | None:
    """Return what a key means, or None for one that is not described."""
    row = _glossary()["keys"].get(name)
    return None if row is None else str(row["meaning"])


def meaning_of_method(name: str) -> str | None:
    """Return what a method does, or None for one that is not described."""
    row = _glossary()["methods"].get(name)
    return None if row is None else str(row["meaning"])


def source_of_method(name: str) -> str:
    """Return the paper or change that a method comes from."""
    return str(_glossary()["methods"][name]["source"])


@cache
def _glossary() -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = read_data("glossary")
    return loaded
