"""Patterns of the lines that vLLM logs: at start-up, and every ten seconds while it serves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from draftwise.knowledge.stored import read_data


@dataclass(frozen=True, slots=True)
class Mark:
    """A recognized kind of log line."""

    name: str
    pattern: re.Pattern[str]
    kind: str = "phase"
    """`phase` if a phase begins; else the content of the pattern's group: `text`, `number` or `config`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """How to read the log, for every covered release."""

    phases: tuple[Mark, ...]
    """Phases in order; the last one is `ready`."""
    values: tuple[Mark, ...]
    progress: re.Pattern[str]
    """A progress bar's percentage."""
    prefix: re.Pattern[str]
    """The part of a line before its text: process, level, time, file."""
    stamp: re.Pattern[str]
    """Month, day and time of a line."""
    native: re.Pattern[str]
    """Errors of libraries below Python, which raise no exception there."""
    consequences: re.Pattern[str]
    """Errors that only report the failure of another process."""
    port_taken: re.Pattern[str]


@cache
def read_log_facts() -> LogFacts:
    """Return the table."""
    data = read_data("startup_log")
    phases, values = (
        tuple(Mark(row["name"], re.compile(row["pattern"]), row.get("kind", "phase")) for row in data[name])
        for name in ("phases", "values")
    )
    return LogFacts(phases=phases, values=values, **_compile(data, LogFacts))


def _compile(data: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Return the patterns of a table that fields of a class are named after."""
    texts = {each.name: data.get(each.name) for each in fields(kind)}
    return {name: re.compile(text) for name, text in texts.items() if isinstance(text, str)}


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsLogFacts:
    """Patterns of statistics lines; the value is in the first group."""

    begins: re.Pattern[str]
    """Matches an engine's line, with its number, or the number of engines that it sums."""
    drafts: re.Pattern[str]
    """Matches the line about drafts, which follows the engine's line."""
    dies: re.Pattern[str]
    """Matches lines of an engine that dies, not errors of one request."""
    start: re.Pattern[str]
    """Matches a line of a server that starts."""
    end: re.Pattern[str]
    """Matches lines of a server that ends as it was asked to."""
    off: re.Pattern[str]
    """Matches the line of a server that writes no statistics, because it has several API servers."""
    hangs: re.Pattern[str]
    """Matches lines of an engine whose workers do not answer, with the seconds."""
    time: re.Pattern[str]
    """Matches year (absent in vLLM's own lines), month, day, hour, minute and second."""
    process: re.Pattern[str]
    """Matches the process that wrote a line, if it is named."""
    readings: Mapping[str, re.Pattern[str]]
    """Patterns by the name of the reading."""


@cache
def read_stats_log() -> StatsLogFacts:
    """Return the patterns."""
    data = read_data("stats_log")
    readings = {row["reading"]: re.compile(row["pattern"]) for row in data["rows"]}
    return StatsLogFacts(readings=readings, **_compile(data, StatsLogFacts))
