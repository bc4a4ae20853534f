"""Judges a setup as it was read: what the reading found, then what the release makes of it."""

from __future__ import annotations

from dataclasses import replace

from draftwise.plan.check import Report, check
from draftwise.setups.read import Reading

__all__ = ["judge"]


def judge(reading: Reading) -> Report:
    """Return the report of `check`, with the findings of the reading before its own."""
    report = check(reading.setup)
    return replace(report, findings=(*reading.findings, *report.findings))
