"""Reports of `check` as code hosts take them beside the changed lines: GitHub's annotations, GitLab's code quality."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

from draftwise.core import Finding, Severity
from draftwise.plan.check.check_report import Report
from draftwise.plan.sarif import locate

__all__ = ["to_github", "to_gitlab"]

_COMMANDS: Mapping[Severity, str] = {Severity.ERROR: "error", Severity.WARNING: "warning"}
"""GitHub shows ten annotations of a kind; what only informs would push the others out."""
_GITLAB: Mapping[Severity, str] = {
    Severity.ERROR: "critical",
    Severity.WARNING: "minor",
    Severity.INFO: "info",
}
_NO_FILE = "command line"


def to_github(reports: Sequence[Report], *, places: Sequence[str]) -> Iterator[str]:
    """Yield a workflow command of GitHub Actions for every error and warning.

    The form and its escapes are those of `actions/toolkit`, packages/core/src/command.ts.

    Args:
        reports: what `check` gave back.
        places: where the setup of each report was read, as `Reading.where` says it.
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
    """Return GitLab's code quality report (docs.gitlab.com/ci/testing/code_quality, "Code Quality report format").

    Args:
        reports: what `check` gave back.
        places: where the setup of each report was read, as `Reading.where` says it.
    """
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
