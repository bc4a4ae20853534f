"""Explains findings of measuring, reading, running and training: those without a rule of vLLM or advice.

The rows are in `data/findings/*.json`, one file per group. A finding's message describes the case at hand; its row
gives the general meaning of the code. A test compares the rows with the codes and severities that the source can emit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from draftwise.core import Severity
from draftwise.knowledge.stored import read_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisFact:
    """How to distinguish a finding about a service in production from similar ones, and which it goes with."""

    told_by: str
    """The observation that tells it from others that look alike."""
    needs: tuple[str, ...]
    """Readings without which it is not told (`draftwise.watching.diagnose`), each perhaps with alternatives, as in
    `config or log`; without them its parent is named instead."""
    source: str
    parent: str = ""
    """Code of the finding that is named as long as a reading is missing; empty where the counters alone tell it."""
    confirmed_by: tuple[str, ...] = ()
    """Codes of what `draftwise check` or `inspect` says of a setup in which this is so."""
    logged: str = ""
    """What vLLM writes into its start-up log where this is so."""
    consequences: tuple[str, ...] = ()
    """Codes of findings that follow from this one, and add nothing to it."""
    methods: tuple[str, ...] = ()
    """Drafting methods that can be ill of it; empty for all."""
    asks: Mapping[str, str] = field(default_factory=dict)
    """What to do first where a reading is not at hand, by reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingFact:
    """What one code means."""

    code: str
    title: str
    """A short sentence without a full stop."""
    severities: tuple[Severity, ...]
    """Those that it can have, depending on the case; the gravest first."""
    explains: str
    """What it means for an operator and why it matters, in one or two sentences."""
    fix: str
    """What to do in general; a finding's own fix may be more specific."""
    room: str
    """Where it is raised."""
    threshold: str = ""
    """Field of the run's thresholds beyond which it is raised, if it depends on one."""
    diagnosis: DiagnosisFact | None = None
    """Facts for `draftwise watch`; None for findings that it never reports."""


def get_finding(code: str) -> FindingFact:
    """Return a row by its code; KeyError for an unknown one."""
    return all_findings()[code]


def find_fix(code: str) -> str:
    """Return what to do in general about the findings of a code; empty for a code of another registry."""
    fact = all_findings().get(code)
    return "" if fact is None else fact.fix


@cache
def read_finding_rooms() -> Mapping[str, str]:
    """Return the groups of findings and what each is about, by name."""
    return {room["room"]: room["about"] for room in read_folder("findings").values()}


@cache
def all_findings() -> Mapping[str, FindingFact]:
    """Return every row by its code.

    Raises:
        ValueError: a code is written twice.
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
