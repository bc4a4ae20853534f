"""Errors as JSON: the document that every verb prints with `--json` when it has no answer."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from draftwise.core import DraftwiseError, Finding, InvalidSetup, StorageError
from draftwise.core.documents import json_form, to_json
from draftwise.core.exit_codes import ExitCode, exit_code_of
from draftwise.core.progress import Stopped
from draftwise.knowledge.findings import find_fix

__all__ = ["ErrorDocument", "ErrorEntry", "ExitCode", "describe_error", "exit_code_of", "list_findings"]

_LAST_SENTENCE = re.compile(r"(?<=[.!?]) (?=[A-Z`])")


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorEntry:
    """Why there is no answer."""

    code: str
    """Name of the finding, stable across versions; `draftwise explain CODE` describes it."""
    message: str
    """What is wrong, in a sentence or two."""
    fix: str
    """What to do about it."""
    url: str
    """Page of the code."""
    others: tuple[ErrorEntry, ...] = field(default=(), metadata=json_form(omit_empty=True))
    """Further mistakes, if there are several."""

    @classmethod
    def of(cls, finding: Finding) -> ErrorEntry:
        """Return the entry of a finding; its fix, if it has none, is the general one of its code."""
        return cls(
            code=finding.code,
            message=str(Finding.error(finding.code, finding.message, where=finding.where)),
            fix=finding.fix or find_fix(finding.code) or f"Run `draftwise explain {finding.code}`.",
            url=finding.url,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorDocument:
    """What a verb prints with `--json` instead of its result, on one line."""

    error: ErrorEntry

    @classmethod
    def of(cls, error: BaseException) -> ErrorDocument:
        """Return the document of an error."""
        first, *others = map(ErrorEntry.of, list_findings(error))
        return cls(error=replace(first, others=tuple(others)))


def describe_error(error: BaseException) -> dict[str, object]:
    """Return the document of an error as JSON."""
    document: dict[str, object] = to_json(ErrorDocument.of(error))
    return document


def list_findings(error: BaseException) -> tuple[Finding, ...]:
    """Return an error as findings, at least one."""
    if isinstance(error, InvalidSetup) and error.findings:
        return error.findings
    if isinstance(error, KeyboardInterrupt | Stopped):
        return (Finding.error("interrupted", "The command was stopped before it had an answer."),)
    if not isinstance(error, DraftwiseError):
        return (Finding.error("internal-error", f"draftwise failed: {type(error).__name__}: {error}"),)
    message, *rest = _LAST_SENTENCE.split(str(error))
    fix = rest.pop() if rest else ""
    message = " ".join((message, *rest))
    if isinstance(error, StorageError):
        return (Finding.error("cannot-write", message, fix=fix),)
    return (Finding.error("outside-failed", message, fix=fix),)
