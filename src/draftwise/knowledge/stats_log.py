"""How to read the lines that vLLM logs every ten seconds while it works, in all releases since 0.9.2."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from draftwise.knowledge.stored import read_data

__all__ = ["StatsLogFacts", "read_stats_log"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsLogFacts:
    """Patterns of these lines; what is counted in them is a text for its first group."""

    begins: re.Pattern[str]
    """Of an engine's line: its number, or how many engines it sums up."""
    drafts: re.Pattern[str]
    """Of the line about drafts, which follows its engine's."""
    time: re.Pattern[str]
    """Year (vLLM's own lines have none), month, day, hour, minute and second."""
    process: re.Pattern[str]
    """Which process wrote a line, where it says so."""
    readings: Mapping[str, re.Pattern[str]]
    """By name."""


@cache
def read_stats_log() -> StatsLogFacts:
    """Return the patterns."""
    data = read_data("stats_log")
    return StatsLogFacts(
        begins=re.compile(data["begins"]),
        drafts=re.compile(data["drafts"]),
        time=re.compile(data["time"]),
        process=re.compile(data["process"]),
        readings={row["reading"]: re.compile(row["pattern"]) for row in data["rows"]},
    )
