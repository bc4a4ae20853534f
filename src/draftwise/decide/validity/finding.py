"""Short ways to write a guard's finding."""

from __future__ import annotations

from draftwise.core import Finding, Severity

__all__ = ["error", "info", "listed", "warning"]


def error(code: str, message: str, fix: str = "", where: str = "") -> Finding:
    """Return a finding that takes an adoption away."""
    return Finding(code=code, severity=Severity.ERROR, message=message, fix=fix, where=where)


def warning(code: str, message: str, fix: str = "", where: str = "") -> Finding:
    """Return a finding that may cost the measurement some of its worth."""
    return Finding(code=code, severity=Severity.WARNING, message=message, fix=fix, where=where)


def info(code: str, message: str, fix: str = "", where: str = "") -> Finding:
    """Return a finding that explains."""
    return Finding(code=code, severity=Severity.INFO, message=message, fix=fix, where=where)


def listed(names: list[str]) -> str:
    """Return names as a sentence has them, the first few of a long list."""
    shown = names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
