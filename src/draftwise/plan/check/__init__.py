"""Predicts what a vLLM release makes of a setup: every finding at once, and the speculative config as it resolves.

The folders are vLLM's own stages, in its order: `cli` (flags and JSON), `model` (ModelConfig), `spec`
(SpeculativeConfig), `engine` (VllmConfig), `serving` (start-up and requests).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from draftwise.core import Effect, Finding, InvalidSetup, Ruling, Setup
from draftwise.facts.vllm import find_remarks
from draftwise.plan.check.cli import get_context
from draftwise.plan.check.context import Context
from draftwise.plan.check.engine import configure
from draftwise.plan.check.report import Report, Resolved
from draftwise.plan.check.serving import find_serving
from draftwise.plan.check.steps import collect

if TYPE_CHECKING:
    from draftwise.setups.read import Reading

__all__ = ["Context", "Report", "Resolved", "check", "check_context", "get_context", "judge"]


def check(setup: Setup, *, installed: frozenset[str] | None = None, nearest: bool = False) -> Report:
    """Return what the setup's vLLM release makes of it.

    A target or drafter that is neither a directory here nor in the table of known models is judged by its name alone.

    Args:
        setup: what the operator wrote.
        installed: optional Python packages that the server has, by their names on the index; None: not known.
        nearest: judges by the nearest known release where the setup's own is not known; the report says so.

    Raises:
        InvalidSetup: the release is not known.
    """
    return check_context(get_context(setup, installed=installed, nearest=nearest))


def check_context(context: Context) -> Report:
    """Return what the release makes of a setup that was looked up before."""
    found, (context, resolved) = collect(configure(context))
    findings: list[Finding] = [*find_remarks(context.release), *context.rulings, *found]
    if any(isinstance(each, Ruling) and each.effect is Effect.REJECTED for each in findings):
        resolved = None
    elif resolved is not None:
        findings += find_serving(context, resolved)
    return Report(
        version=str(context.release),
        asked="" if context.release.is_same else context.release.asked,
        setup=context.setup,
        findings=tuple(findings),
        resolved=resolved,
    )


def judge(reading: Reading, *, installed: frozenset[str] | None = None, nearest: bool = False) -> Report:
    """Return the report on a setup as it was read: what the reading found, then what the release makes of it.

    A release that is not known is a finding here, so that it hides no other setup of the same text.
    """
    try:
        report = check(reading.setup, installed=installed, nearest=nearest)
    except InvalidSetup as error:
        version = reading.setup.engine_version
        report = Report(version=version, setup=reading.setup, findings=error.findings, resolved=None, is_judged=False)
    return replace(report, findings=(*reading.findings, *report.findings))
