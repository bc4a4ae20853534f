"""Predicts what a vLLM release makes of a setup: every finding at once, and the speculative config as it resolves.

The folders are vLLM's own stages, in its order: `cli` (flags and JSON), `model` (ModelConfig), `spec`
(SpeculativeConfig), `engine` (VllmConfig), `serving` (start-up and requests).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from draftwise.core import Effect, Finding, InvalidSetup, Ruling, Setup, Severity, Stage
from draftwise.knowledge.added import MissingFacts
from draftwise.knowledge.rules import find_doubts, get_rule, of_release
from draftwise.knowledge.vllm import Release, find_remarks, get_release
from draftwise.plan.check.check_report import Report, Resolved
from draftwise.plan.check.cli import get_context
from draftwise.plan.check.engine import configure
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
    is_judged = True
    try:
        context, resolved = run(configure(context), tell)
        rejected = {each.stage for each in findings if isinstance(each, Ruling) and each.effect is Effect.REJECTED}
        if rejected:
            resolved = None
            findings = [each for each in findings if not _never_comes(each, rejected)]
        elif resolved is not None:
            tell(*find_serving(context, resolved))
    except MissingFacts as gap:
        tell(*gap.findings)
        is_judged = False
    return _report(release, context.setup, findings, resolved, is_judged=is_judged)


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
    here, so that it hides no other setup of the same text. Where the text starts the server in several ways, the report
    is that of one that works, and names the others: only a server that fails on every way is rejected.
    """
    ways = [(each, _judge_way(each, installed, nearest=nearest)) for each in (reading, *reading.others)]
    shown, report = max(ways, key=lambda way: _rank(way[1]))
    if len(ways) == 1:
        return report
    told = (finding for way, judged in ways if way is not shown for finding in _tell_way(way, judged, report))
    return replace(report, findings=(*report.findings, *islice(told, _MOST_WAYS)))


_MOST_WAYS = 8


def _rank(report: Report) -> int:
    """Return how much of a setup works: nothing, nobody can say, its configuration, or all that is known."""
    if not report.accepted:
        return 0 if report.accepted is False else 1
    return 2 if _find_failures(report) else 3


def _find_failures(report: Report) -> list[Finding]:
    later = [each for each in report.findings if isinstance(each, Ruling) and each.effect is Effect.FAILS_LATER]
    return [each for each in report.findings if each.severity is Severity.ERROR] or [*later]


def _tell_way(way: SetupReading, judged: Report, shown: Report) -> Iterator[Finding]:
    """Yield what a reader must know of another way than the one that is shown."""
    path = way.path or "no other variable is set"
    failures = _find_failures(judged)
    if judged.accepted is None:
        if shown.accepted is not None and failures:
            yield get_rule("unknown-on-a-way").ruling(path=path, why=failures[0].message, where=failures[0].where)
    elif failures and _rank(judged) < _rank(shown):
        yield get_rule("fails-on-a-way").ruling(path=path, why=failures[0].message, where=failures[0].where)
    elif not failures:
        yield get_rule("other-on-a-way").ruling(path=path, changes=_compare(judged.setup, shown.setup), where=way.where)


def _compare(setup: Setup, shown: Setup) -> list[str]:
    """Return what a setup has otherwise than the one that is shown."""
    fields: list[tuple[str, object, object]] = [
        ("the target", setup.target, shown.target),
        ("vLLM", setup.engine_version, shown.engine_version),
        *_pair("", setup.args, shown.args),
        *_pair("", setup.spec.to_dict() if setup.spec else {}, shown.spec.to_dict() if shown.spec else {}),
        *_pair("", setup.env, shown.env),
    ]
    changed = [f"{name} is {'not set' if one is None else one}" for name, one, other in fields if one != other]
    return changed or ["other words of the command"]


def _pair(head: str, one: Mapping[str, object], other: Mapping[str, object]) -> list[tuple[str, object, object]]:
    return [(head + name, one.get(name), other.get(name)) for name in dict.fromkeys((*one, *other))]


def _judge_way(reading: SetupReading, installed: frozenset[str] | None, *, nearest: bool) -> Report:
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
