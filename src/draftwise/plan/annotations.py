"""Reports of `check` in the formats of code hosts: SARIF, GitHub's and GitLab's annotations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from importlib.metadata import version
from itertools import zip_longest
from typing import Any

from draftwise.core import Finding, Ruling, Severity
from draftwise.core.finding import SITE
from draftwise.knowledge.rules import all_rules
from draftwise.plan.check.check_report import Report

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
        reports: reports of `check`.
        places: where the setup of each report was read (`Reading.where`), for findings without a place.
    """
    pairs = [
        (report, place or "", finding)
        for report, place in zip_longest(reports, places[: len(reports)], fillvalue="")
        if isinstance(report, Report)
        for finding in report.findings
    ]
    codes = sorted({finding.code for _, _, finding in pairs})
    rules = [_rule(code, next(finding for _, _, finding in pairs if finding.code == code)) for code in codes]
    number = version("draftwise")
    driver = {"name": "draftwise", "version": number, "semanticVersion": number, "informationUri": SITE, "rules": rules}
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
        "helpUri": example.url,
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
    """Return file, line and place inside of a finding; an empty file or line 0 if unknown."""
    found = _IN_FILE.fullmatch(where) or _IN_FILE.fullmatch(place)
    if found is None:
        return "", 0, where
    inside = found["rest"] or "" if found.string == where else where
    return found["file"], max(1, int(found["line"])) if found["line"] else 0, inside


def _location(where: str, place: str) -> dict[str, Any]:
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
    yield "outcome", report.outcome.value
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


_COMMANDS: Mapping[Severity, str] = {Severity.ERROR: "error", Severity.WARNING: "warning"}
"""GitHub shows ten annotations of a kind; what only informs would push the others out."""
_GITLAB: Mapping[Severity, str] = {Severity.ERROR: "critical", Severity.WARNING: "minor", Severity.INFO: "info"}
_NO_FILE = "command line"


def to_github(reports: Sequence[Report], *, places: Sequence[str]) -> Iterator[str]:
    """Yield a workflow command of GitHub Actions for every error and warning.

    Format and escapes follow `actions/toolkit`, packages/core/src/command.ts.
    """
    for report, place in zip(reports, places, strict=True):
        for finding in report.findings:
            if finding.severity not in _COMMANDS:
                continue
            file, line, _ = locate(finding.where or place, place)
            told = {"file": file, "line": line, "title": f"draftwise: {finding.code}"}
            given = ",".join(f"{name}={_escape_property(str(value))}" for name, value in told.items() if value)
            yield f"::{_COMMANDS[finding.severity]} {given}::{_escape(_describe(report, finding))}"


def to_gitlab(reports: Sequence[Report], *, places: Sequence[str]) -> list[dict[str, Any]]:
    """Return GitLab's code quality report (docs.gitlab.com/ci/testing/code_quality, "Code Quality report format")."""
    issues = []
    seen = Counter[str]()
    for report, place in zip(reports, places, strict=True):
        for finding in report.findings:
            file, line, inside = locate(finding.where or place, place)
            # Without the line, so that an issue stays the same one when lines above it are added.
            identity = "\0".join((file, inside, report.version, finding.code, finding.message))
            fingerprint = sha256(f"{identity}\0{seen[identity]}".encode()).hexdigest()
            seen[identity] += 1
            issues.append(
                {
                    "description": _describe(report, finding),
                    "check_name": finding.code,
                    "fingerprint": fingerprint,
                    "severity": _GITLAB[finding.severity],
                    "location": {"path": file.removeprefix("./") or _NO_FILE, "lines": {"begin": line or 1}},
                }
            )
    return issues


def _describe(report: Report, finding: Finding) -> str:
    return f"{report.release}: {finding}" if report.release else str(finding)


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape(text).replace(":", "%3A").replace(",", "%2C")
