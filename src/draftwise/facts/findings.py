"""What findings mean that are neither rules of vLLM nor advice: those of measuring, reading, running and training.

The rows lie in `data/findings/*.json`, one file a room. A finding's message speaks of the case at hand; its row says
what the code means in every case. A test holds the rows against the codes and severities that the source can emit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from draftwise.core import Severity
from draftwise.facts.stored import read_folder

__all__ = ["FindingFact", "all_findings", "finding_rooms", "get_finding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingFact:
    """What one code means."""

    code: str
    title: str
    """A short sentence without a full stop."""
    severities: tuple[Severity, ...]
    """Which it can have, the gravest first: the case decides."""
    explains: str
    """What it means for an operator and why it matters, in a sentence or two."""
    fix: str
    """What to do in general; the message of a finding may know better."""
    room: str
    """Where it is raised."""
    threshold: str = ""
    """Field of the run's thresholds beyond which it is raised, if a line is drawn."""


def get_finding(code: str) -> FindingFact:
    """Return a row by its code; KeyError for an unknown one."""
    return all_findings()[code]


@cache
def finding_rooms() -> Mapping[str, str]:
    """Return what is checked where, by the name of the room."""
    return {room["room"]: room["about"] for _, room in read_folder("findings")}


@cache
def all_findings() -> Mapping[str, FindingFact]:
    """Return every row by its code.

    Raises:
        ValueError: a code is written twice.
    """
    facts: dict[str, FindingFact] = {}
    for name, room in read_folder("findings"):
        for row in room["findings"]:
            if row["code"] in facts:
                raise ValueError(f"finding {row['code']} is written twice, the second time in {name}")
            severities = tuple(map(Severity, row["severities"]))
            facts[row["code"]] = FindingFact(**{**row, "severities": severities}, room=room["room"])
    return facts
