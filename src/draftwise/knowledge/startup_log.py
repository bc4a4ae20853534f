"""How to read the log of a starting vLLM: its phases, sizes, and which errors only follow from others."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from draftwise.knowledge.stored import read_data

__all__ = ["LogFacts", "Mark", "read_log_facts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A kind of line with a meaning."""

    name: str
    pattern: re.Pattern[str]
    kind: str = "phase"
    """`phase`: it begins. Else what the pattern's group holds: `text`, `number` or `config`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """How to read the log; valid for every release that is covered."""

    phases: tuple[Mark, ...]
    """In order; the last one is `ready`."""
    values: tuple[Mark, ...]
    progress: re.Pattern[str]
    """A progress bar's percentage."""
    prefix: re.Pattern[str]
    """The part of a line before its text: process, level, time, file."""
    stamp: re.Pattern[str]
    """Month, day and time of a line."""
    consequences: re.Pattern[str]
    """Errors that only report the failure of another process."""
    port_taken: re.Pattern[str]


@cache
def read_log_facts() -> LogFacts:
    """Return the table."""
    data = read_data("startup_log")
    return LogFacts(
        phases=tuple(Mark(name=row["name"], pattern=re.compile(row["pattern"])) for row in data["phases"]),
        values=tuple(
            Mark(name=row["name"], pattern=re.compile(row["pattern"]), kind=row["kind"]) for row in data["values"]
        ),
        progress=re.compile(data["progress"]),
        prefix=re.compile(data["prefix"]),
        stamp=re.compile(data["stamp"]),
        consequences=re.compile(data["consequences"]),
        port_taken=re.compile(data["port_taken"], re.IGNORECASE),
    )
