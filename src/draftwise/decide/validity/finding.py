"""Short ways to write a validity check's finding."""

from __future__ import annotations

from collections.abc import Iterable

from draftwise.core import Finding, Severity

__all__ = ["error", "info", "join_names", "warning"]


def error(code: str, message: str, fix: str = "", where: str = "") -> Finding:
    """Return a finding that blocks an adoption."""
    return Finding(code=code, severity=Severity.ERROR, message=message, fix=fix, where=where)


def warning(code: str, message: str, fix: str = "", where: str = "") -> Finding:
    """Return a finding that makes the measurement less certain."""
    return Finding(code=code, severity=Severity.WARNING, message=message, fix=fix, where=where)


def info(code: str, message: str, fix: str = "", where: str = "") -> Finding:
    """Return a finding that explains."""
    return Finding(code=code, severity=Severity.INFO, message=message, fix=fix, where=where)


def join_names(names: Iterable[str], *, most: int | None = None) -> str:
    """Return names as a sentence has them, e.g. `a, b and c`; of more than `most` the first ones and a count."""
    shown = list(names)
    if most is not None and len(shown) > most:
        shown = [*shown[: most - 1], f"{len(shown) - most + 1} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
