"""Predicts what a vLLM release makes of a setup: every finding at once, and the speculative config as it resolves.

The folders are vLLM's own stages, in its order: `cli` (flags and JSON), `model` (ModelConfig), `spec`
(SpeculativeConfig), `engine` (VllmConfig), `serving` (start-up and requests).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from draftwise.core import Effect, Finding, Ruling, Setup
from draftwise.facts.rules import find_doubts, of_release
from draftwise.facts.vllm import get_release
from draftwise.plan.check.cli import get_context
from draftwise.plan.check.context import Context
from draftwise.plan.check.engine import configure
from draftwise.plan.check.report import Report, Resolved
from draftwise.plan.check.serving import find_serving
from draftwise.plan.check.steps import collect

if TYPE_CHECKING:
    from draftwise.setups.read import Reading

__all__ = ["Context", "Report", "Resolved", "check", "check_context", "check_many", "get_context", "judge"]


def check(setup: Setup, *, installed: frozenset[str] | None = None) -> Report:
    """Return what the setup's vLLM release makes of it.

    A target or drafter that is neither a directory here nor in the table of known models is judged by its name alone.

    Args:
        setup: what the operator wrote.
        installed: optional Python packages that the server has, by their names on the index; None: not known.

    Raises:
        InvalidSetup: the version is unknown, or names nothing that is covered.
    """
    return check_context(get_context(setup, installed=installed))


def check_context(context: Context) -> Report:
    """Return what the release makes of a setup that was looked up before."""
    found, (context, resolved) = collect(configure(context))
    findings = _told(context, [*find_doubts(context.release), *context.rulings, *found])
    if any(isinstance(each, Ruling) and each.effect is Effect.REJECTED for each in findings):
        resolved = None
    elif resolved is not None:
        findings += _told(context, find_serving(context, resolved))
    return Report(
        version=str(context.release),
        setup=context.setup,
        findings=tuple(findings),
        resolved=resolved,
    )


def _told(context: Context, findings: Iterable[Finding]) -> list[Finding]:
    return [of_release(each, context.release) for each in findings]


def judge(reading: Reading, *, installed: frozenset[str] | None = None) -> Report:
    """Return the report on a setup as it was read: what the reading found, then what the release makes of it."""
    report = check(reading.setup, installed=installed)
    release = get_release(report.version)
    return replace(report, findings=(*(of_release(each, release) for each in reading.findings), *report.findings))


def check_many(setups: Iterable[Setup]) -> Sequence[Report]:
    """Return a report for each setup, in order."""
    return [check(setup) for setup in setups]
