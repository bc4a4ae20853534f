"""Reports of `check` as SARIF 2.1.0, the format that code hosts show beside the changed lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import zip_longest
from typing import Any

from draftwise.core import Finding, Ruling, Severity
from draftwise.knowledge.rules import all_rules
from draftwise.plan.check.check_report import Report

__all__ = ["SCHEMA", "locate", "to_sarif"]

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"

_LEVELS: Mapping[Severity, str] = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_IN_FILE = re.compile(
    r"(?P<file>.+?(?:\.\w+(?=:\d)|\.(?:ya?ml|jsonl?|service|sh|bash|env|txt|conf|container|py|toml)|(?:Docker|Container)file))"
    r"(?::(?P<line>\d+))?(?: (?P<rest>.*))?",
    re.DOTALL,
)
"""A place in a file: any name with a line, or a name with the suffix of a file that is read."""


def to_sarif(reports: Sequence[Report], *, places: Sequence[str] = ()) -> dict[str, Any]:
    """Return one SARIF log with one run for all reports.

    A fix is part of the message and of `properties.fix`: SARIF's own `fixes` are edits of a file's text.

    Args:
        reports: what `check` gave back.
        places: where the setup of each report was read, as `Reading.where` says it: the place of findings without one.
    """
    pairs = [
        (report, place or "", finding)
        for report, place in zip_longest(reports, places[: len(reports)], fillvalue="")
        if isinstance(report, Report)
        for finding in report.findings
    ]
    codes = sorted({finding.code for _, _, finding in pairs})
    rules = [_rule(code, next(finding for _, _, finding in pairs if finding.code == code)) for code in codes]
    driver = {"name": "draftwise", "semanticVersion": version("draftwise"), "rules": rules}
    results = [_result(finding, report, place, codes.index(finding.code)) for report, place, finding in pairs]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(code: str, example: Finding) -> dict[str, Any]:
    """Return a rule's descriptor: from the table where it stands there, else what the code and a finding tell."""
    rule = all_rules().get(code)
    if rule is None:
        title, text, source = code.replace("-", " ").capitalize(), example.message, example.source
        level = _LEVELS[example.severity]
    else:
        title, text, source, level = rule.title, rule.explains, rule.source, _LEVELS[rule.severity]
    described = {
        "id": code,
        "name": "".join(part.capitalize() for part in re.split(r"\W+", code)),
        "shortDescription": {"text": _sentence(title)},
        "fullDescription": {"text": _sentence(text)},
        "help": {"text": _sentence(text) + (f" Source: {source}." if source else "")},
        "defaultConfiguration": {"level": level},
    }
    return described | ({"properties": {"source": source}} if source else {})


def _sentence(text: str) -> str:
    text = text.strip() or "A finding."
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _result(finding: Finding, report: Report, place: str, index: int) -> dict[str, Any]:
    return {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "message": {"text": (f"{report.release}: " if report.asked else "") + _sentence(str(finding))},
        "locations": [_location(finding.where or place, place)],
        "properties": dict(_properties(finding, report)),
    }


def locate(where: str, place: str) -> tuple[str, int, str]:
    """Return file, line and the place inside of what a finding is about; an empty file or 0 where that is not known.

    Args:
        where: the finding's own place.
        place: where its setup was read.
    """
    found = _IN_FILE.fullmatch(where) or _IN_FILE.fullmatch(place)
    if found is None:
        return "", 0, where
    inside = found["rest"] or "" if found.string == where else where
    return found["file"], max(1, int(found["line"])) if found["line"] else 0, inside


def _location(where: str, place: str) -> dict[str, Any]:
    """Return a location: the file where a line of one is known, and the place inside the configuration."""
    file, line, inside = locate(where, place)
    location: dict[str, Any] = {}
    if file:
        region = {"region": {"startLine": line}} if line else {}
        location["physicalLocation"] = {"artifactLocation": {"uri": _uri(file)}, **region}
    if inside:
        location["logicalLocations"] = [{"fullyQualifiedName": inside}]
    return location


def _uri(path: str) -> str:
    from urllib.parse import quote

    return quote(path.removeprefix("./").replace("\\", "/"))


def _properties(finding: Finding, report: Report) -> Iterator[tuple[str, str]]:
    yield "engineVersion", report.version
    if report.asked:
        yield "askedVersion", report.asked
    if finding.fix:
        yield "fix", finding.fix
    if finding.source:
        yield "source", finding.source
    if isinstance(finding, Ruling):
        yield "effect", finding.effect.value
        yield "stage", finding.stage.value
        if finding.exception:
            yield "exception", finding.exception
        if finding.becomes:
            yield "becomes", finding.becomes
