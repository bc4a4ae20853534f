"""Explains findings that do not come from a rule of vLLM or from advice.

The rows are in `data/findings/*.json`, one file per group. A finding's message describes its case; its row gives the
general meaning of the code. A test compares the rows with the codes and severities that the source can emit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from draftwise.core import Severity
from draftwise.knowledge.stored import read_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisFact:
    """How to distinguish a finding about a service in production from similar ones, and how it relates to them."""

    told_by: str
    """The observation that distinguishes it from similar findings."""
    needs: tuple[str, ...]
    """Readings that it requires (`draftwise.watching.diagnose`), with alternatives as in `config or log`; without them,
    its parent is reported instead."""
    source: str
    parent: str = ""
    """Code of the finding to report while a reading is missing; empty if the counters alone are enough."""
    confirmed_by: tuple[str, ...] = ()
    """Codes that `draftwise check` or `inspect` reports for such a setup."""
    logged: str = ""
    """Text in vLLM's start-up log in this case."""
    consequences: tuple[str, ...] = ()
    """Codes of findings that follow from this one and add nothing."""
    methods: tuple[str, ...] = ()
    """Drafting methods that can have it; empty for all."""
    asks: Mapping[str, str] = field(default_factory=dict)
    """What to do first if a reading is missing, by reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingFact:
    """The meaning of one code."""

    code: str
    title: str
    """A short sentence without a full stop."""
    severities: tuple[Severity, ...]
    """Severities that it can have, depending on the case, most severe first."""
    explains: str
    """What it means for an operator and why it matters, in one or two sentences."""
    fix: str
    """What to do in general; a finding's own fix may be more specific."""
    room: str
    """Group of the finding."""
    threshold: str = ""
    """Field of the run's thresholds that decides it, if it depends on one."""
    diagnosis: DiagnosisFact | None = None
    """Facts for `draftwise watch`; None for findings that `watch` never reports."""


def get_finding(code: str) -> FindingFact:
    """Return a row by its code; KeyError for an unknown one."""
    return all_findings()[code]


def find_fix(code: str) -> str:
    """Return the general fix of a code; empty for a code of another registry."""
    fact = all_findings().get(code)
    return "" if fact is None else fact.fix


@cache
def read_finding_rooms() -> Mapping[str, str]:
    """Return the groups of findings with their descriptions, by name."""
    return {room["room"]: room["about"] for room in read_folder("findings").values()}


@cache
def all_findings() -> Mapping[str, FindingFact]:
    """Return every row by its code.

    Raises:
        ValueError: two rows have the same code.
    """
    facts: dict[str, FindingFact] = {}
    for name, room in read_folder("findings").items():
        for row in room["findings"]:
            if row["code"] in facts:
                raise ValueError(f"finding {row['code']} is written twice, the second time in {name}")
            severities = tuple(map(Severity, row["severities"]))
            diagnosis = DiagnosisFact(**row["diagnosis"]) if "diagnosis" in row else None
            parts = {"severities": severities, "diagnosis": diagnosis}
            facts[row["code"]] = FindingFact(**{**row, **parts}, room=room["room"])
    return facts
