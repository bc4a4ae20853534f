"""Flags of vLLM before `--speculative-config` that guides still show; no release from 0.9.2 on has any of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

from draftwise.knowledge.stored import read_data

__all__ = ["OldFlag", "read_old_flags"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OldFlag:
    """One flag, and the key of the speculative config that replaced it."""

    flag: str
    key: str
    kind: Literal["text", "int", "float", "switch"]
    note: str = ""
    """Why the key has no effect or no longer exists."""


@cache
def read_old_flags() -> Mapping[str, OldFlag]:
    """Return the old flags by their spelling with dashes."""
    rows = read_data("old_flags")
    return {row["flag"]: OldFlag(**row) for row in rows}
