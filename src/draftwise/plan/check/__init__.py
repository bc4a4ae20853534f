"""Predicts what a vLLM release makes of a setup: every finding at once, and the speculative config as it resolves.

The folders are vLLM's own stages, in its order: `cli` (flags and JSON), `model` (ModelConfig), `spec`
(SpeculativeConfig), `engine` (VllmConfig), `serving` (start-up and requests).
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace
from typing import TYPE_CHECKING

from draftwise.core import Effect, Finding, InvalidSetup, Ruling, Setup, Stage
from draftwise.knowledge.added import MissingFacts
from draftwise.knowledge.defects import Defect
from draftwise.knowledge.rules import find_doubts, of_release
from draftwise.knowledge.vllm import Release, find_remarks, get_release
from draftwise.plan.check.check_report import Report, Resolved
from draftwise.plan.check.cli import get_context
from draftwise.plan.check.engine import configure
from draftwise.plan.check.known_defects import contradicts, find_defects, find_met
from draftwise.plan.check.serving import find_serving
from draftwise.plan.check.stages import Context, run

if TYPE_CHECKING:
    from draftwise.setups.read import SetupReading

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
    release = get_release(setup.engine_version or "newest", nearest=nearest)
    return check_context(get_context(setup, release, installed=installed))


def check_context(context: Context) -> Report:
    """Return what the release makes of a setup that was looked up before.

    Where a table of the release is missing, what was found until then stays, and the rest is not judged.
    """
    release = context.release
    findings: list[Finding] = []

    def tell(*found: Finding) -> None:
        findings.extend(of_release(each, release) for each in found)

    tell(*find_remarks(release), *find_doubts(release), *context.rulings)
    resolved: Resolved | None = None
    met: tuple[Defect, ...] = ()
    is_judged = True
    try:
        context, resolved = run(configure(context), tell)
        rejected = {each.stage for each in findings if isinstance(each, Ruling) and each.effect is Effect.REJECTED}
        if rejected:
            resolved = None
            findings = [each for each in findings if not _never_comes(each, rejected)]
        elif resolved is not None:
            met = tuple(find_met(context, resolved))
            tell(*(each for each in find_serving(context, resolved) if not contradicts(each, met)))
            tell(*find_defects(context, met, findings))
    except MissingFacts as gap:
        tell(*gap.findings)
        is_judged = False
    return replace(_report(release, context.setup, findings, resolved, is_judged=is_judged), defects=met)


def _report(
    release: Release, setup: Setup, findings: Iterable[Finding], resolved: Resolved | None, *, is_judged: bool
) -> Report:
    return Report(
        version=str(release),
        asked="" if release.is_same else release.asked,
        setup=setup,
        findings=tuple(findings),
        resolved=resolved,
        is_judged=is_judged,
    )


def _never_comes(finding: Finding, rejected: Set[Stage]) -> bool:
    """Say whether a finding is about what an engine config changes that is not made: a config before it is refused."""
    changes = isinstance(finding, Ruling) and finding.stage is Stage.ENGINE and finding.effect is Effect.CHANGED
    return changes and not rejected.isdisjoint({Stage.CLI, Stage.CONFIG})


def judge(reading: SetupReading, *, installed: frozenset[str] | None = None, nearest: bool = False) -> Report:
    """Return the report on a setup as it was read: what the reading found, then what the release makes of it.

    Of a setup that is not known in whole, only what the reading found is said. A release that is not known is a finding
    here, so that it hides no other setup of the same text.
    """
    setup = reading.setup
    try:
        release = get_release(setup.engine_version or "newest", nearest=nearest)
        if reading.unknown:
            report = _report(release, setup, find_remarks(release), None, is_judged=False)
        else:
            report = check_context(get_context(setup, release, installed=installed, origins=reading.origins))
    except InvalidSetup as error:
        findings = (*reading.findings, *error.findings)
        return Report(version=setup.engine_version, setup=setup, findings=findings, resolved=None, is_judged=False)
    told = (of_release(each, release) for each in reading.findings)
    return replace(report, findings=(*told, *report.findings))
