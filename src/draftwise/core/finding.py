"""Defines a finding, which validation, diagnosis, validity checks and decisions return, and errors with findings.

DraftwiseError
├── InvalidSetup    a mistake of the user; carries all Findings at once
│   ├── UnreadableSource    the command names a file that does not exist or cannot be read
│   └── InvalidRequest      the request lacks something, or contradicts itself
├── BackendError    a server or process failed
└── StorageError    measurements cannot be written
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, ClassVar

SITE = "https://draftwise.dev/"
"""Address of the documentation site, which has a page for each code."""
_LONG_WORD = re.compile(r"\S{2000,}")
"""A value that nobody typed."""


class Severity(StrEnum):
    """How much a finding matters: an error stops the work, a warning may cost, info explains."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong, risky or worth knowing, and what to do about it."""

    JSON_DERIVED: ClassVar[tuple[str, ...]] = ("url",)
    code: str
    """Stable, kebab-case name of the rule, e.g. `unknown-key`."""
    severity: Severity
    message: str
    """A full sentence that is clear without `where`."""
    where: str = ""
    """Key, file or flag that the finding is about."""
    fix: str = ""
    source: str = ""
    """Paper, file of a wheel, or measurement behind the rule."""

    @property
    def url(self) -> str:
        """Address of the code's page."""
        return f"{SITE}findings/{self.code}/"

    @staticmethod
    def error(code: str, message: str, *, where: str = "", fix: str = "", source: str = "") -> Finding:
        """Return a finding that stops the work."""
        return Finding(code=code, severity=Severity.ERROR, message=message, where=where, fix=fix, source=source)

    @staticmethod
    def warning(code: str, message: str, *, where: str = "", fix: str = "", source: str = "") -> Finding:
        """Return a finding that may cost speed, memory or correctness."""
        return Finding(code=code, severity=Severity.WARNING, message=message, where=where, fix=fix, source=source)

    @staticmethod
    def info(code: str, message: str, *, where: str = "", fix: str = "", source: str = "") -> Finding:
        """Return a finding that only explains."""
        return Finding(code=code, severity=Severity.INFO, message=message, where=where, fix=fix, source=source)

    def __str__(self) -> str:
        """Return the place (unless the message names it), the message and the fix; of a huge value only its start."""
        where = "" if _names(self.message, self.where) else f"{self.where}: "
        fix = f" {self.fix}" if self.fix else ""
        shown = _LONG_WORD.sub(lambda word: f"{word[0][:200]}... ({len(word[0]):,} characters)", where + self.message)
        return f"{shown}{fix}"

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON, empty fields left out."""
        return {key: value for key, value in asdict(self).items() if value not in ("", ())} | {"url": self.url}


def _names(text: str, where: str) -> bool:
    """Whether a text names a place in full, a setting as a flag (`--max-num-seqs`) or as a key (`max_num_seqs`)."""
    words = where.removeprefix("--").replace("_", "-").split("-")
    spellings = {where, *([f"--{'-'.join(words)}", "_".join(words)] if len(words) > 1 else [])}
    return not where or any(re.search(rf"(?<![\w/-]){re.escape(each)}(?![\w/-])", text) for each in spellings)


def join_names(names: Iterable[str], *, most: int | None = None) -> str:
    """Return names joined for a message, e.g. `a, b and c`; beyond `most`, the first ones and a count."""
    shown = list(names) or ["none"]
    if most is not None and len(shown) > most:
        shown = [*shown[: most - 1], f"{len(shown) - most + 1} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def cause_of(error: BaseException) -> str:
    """Return why a file, program or address cannot be used, without its name, which the message already has."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    if isinstance(error, AttributeError | TypeError):
        return "a value has another type"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if str(error).startswith("Exceeds the limit"):  # json's words for an integer of thousands of digits
        return "it has a number of too many digits"
    if isinstance(error, KeyError):
        return f"it lacks {error}"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


class DraftwiseError(Exception):
    """Base of every error that draftwise raises on purpose."""


class InvalidSetup(DraftwiseError, ValueError):  # noqa: N818  (a noun the architecture fixes)
    """The request, file or configuration cannot work; `findings` has all reasons at once."""

    def __init__(self, findings: Finding | Iterable[Finding]) -> None:
        self.findings: tuple[Finding, ...] = (findings,) if isinstance(findings, Finding) else tuple(findings)
        super().__init__("\n".join(str(finding) for finding in self.findings))

    @classmethod
    def because(cls, code: str, message: str, *, where: str = "", fix: str = "") -> InvalidSetup:
        """Return the error for a single fault."""
        return cls(Finding.error(code, message, where=where, fix=fix))


class UnreadableSource(InvalidSetup):
    """A source in the command does not exist or cannot be read, so nothing was judged."""


class InvalidRequest(InvalidSetup):
    """A request lacks something, or its fields contradict each other."""


class BackendError(DraftwiseError, RuntimeError):
    """A server, child process or connection failed; the message ends with what to do."""


class StorageError(DraftwiseError):
    """Measurements cannot be written, such as on a full disk; everything written before is kept."""
