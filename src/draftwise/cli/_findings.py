"""How findings look in a terminal and to machines: shared by the verbs that judge a configuration."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from draftwise.cli._console import open_console
from draftwise.cli._options import add_options
from draftwise.core import Effect, Finding, Ruling, Severity

if TYPE_CHECKING:
    from draftwise.plan.check import Report, Resolved

__all__ = [
    "MARKS",
    "Judged",
    "fail_option",
    "has_failed",
    "quiet_line",
    "render_findings",
    "report_to_dict",
    "resolved_text",
    "shape_options",
    "show_as",
    "show_report",
    "show_reports",
]

_F = TypeVar("_F", bound=Callable[..., Any])
_LEVELS = {"error": (Severity.ERROR,), "warning": (Severity.ERROR, Severity.WARNING), "never": ()}
MARKS: Mapping[Severity, tuple[str, str]] = {
    Severity.ERROR: ("✗", "bold red"),
    Severity.WARNING: ("!", "bold yellow"),
    Severity.INFO: ("·", "cyan"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A report, and where its setup was read."""

    where: str
    report: Report
    verdict: str = ""
    """What was found, where that is more than what the release makes of the setup."""


shape_options = add_options(
    click.option(
        "--format", "shape", type=click.Choice(["table", "json", "sarif", "github", "gitlab"]), default="table",
        show_default=True, help="SARIF 2.1.0, GitHub's annotations, GitLab's code quality report.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Same as --format json."),
)  # fmt: skip
fail_option = click.option(
    "--fail-on", type=click.Choice(list(_LEVELS)), default="error", show_default=True,
    help="Least severity that makes the exit code 1.",
)  # fmt: skip


def has_failed(judged: Iterable[Judged], fail_on: str) -> bool:
    """Return whether something was found of the severity that --fail-on names, or above."""
    return any(finding.severity in _LEVELS[fail_on] for each in judged for finding in each.report.findings)


def show_as(shape: str, judged: Sequence[Judged]) -> None:
    """Print judgements to stdout in the form that --format names."""
    reports, places = [each.report for each in judged], [each.where for each in judged]
    if shape == "json":
        click.echo(json.dumps([report_to_dict(each.report, where=each.where) for each in judged], indent=1))
    elif shape == "sarif":
        from draftwise.plan.sarif import to_sarif

        click.echo(json.dumps(to_sarif(reports, places=places), indent=1))
    elif shape == "github":
        from draftwise.plan.annotations import to_github

        click.echo("".join(f"{line}\n" for line in to_github(reports, places=places)), nl=False)
    elif shape == "gitlab":
        from draftwise.plan.annotations import to_gitlab

        click.echo(json.dumps(to_gitlab(reports, places=places), indent=1))
    else:
        show_reports(open_console(stderr=False), judged)


def show_reports(console: Console, judged: Sequence[Judged]) -> None:
    """Print judgements, and behind them once what is to be noted of several setups alike."""
    counts = Counter(finding for each in judged for finding in set(_notes(each.report.findings)))
    shared = {note for note, count in counts.items() if count > 1}
    for each in judged:
        show_report(console, each.report, where=each.where, verdict=each.verdict, leave_out=shared)
    for note in sorted(shared, key=lambda note: note.code):
        console.print(Text(f"Of {counts[note]} of {len(judged)} setups", "bold"))
        console.print(render_findings([note]))


def _notes(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings that only inform, without their place."""
    return (replace(finding, where="") for finding in findings if finding.severity is Severity.INFO)


def show_report(
    console: Console, report: Report, *, where: str = "", verdict: str = "", leave_out: Container[Finding] = ()
) -> None:
    """Print one setup's judgement for one release, without the notes to leave out.

    Args:
        console: to print to.
        report: what was found.
        where: its setup was read.
        verdict: said instead of what the release makes of the setup.
        leave_out: findings that are said elsewhere.
    """
    head = Text(f"{report.release}  ".lstrip(), "bold")
    head.append(*((verdict, _style(report)) if verdict else _verdict(report)))
    for part in (report.setup.target, where):
        head.append(f"  {part}" if part else "", "dim")
    console.print(head)
    if report.resolved is not None and report.accepted:
        console.print(Padding(Text(resolved_text(report.resolved), "dim"), (0, 0, 0, 2), expand=False))
    console.print(render_findings(each for each in report.findings if replace(each, where="") not in leave_out))


def quiet_line(judged: Judged) -> str:
    """Return a judgement as one line: place, release, verdict, and the codes of the gravest findings."""
    report = judged.report
    for severity in (Severity.ERROR, Severity.WARNING):
        codes = dict.fromkeys(finding.code for finding in report.findings if finding.severity is severity)
        if codes:
            break
    place = " ".join(part for part in (judged.where, report.setup.target) if part) or "setup"
    verdict = _verdict(report)[0] + (f" ({', '.join(codes)})" if codes else "")
    return ": ".join(part for part in (place, report.release, verdict) if part)


def _style(report: Report) -> str:
    """Return the style of the gravest error or warning."""
    found = {finding.severity for finding in report.findings} - {Severity.INFO}
    return next((style for severity, (_, style) in MARKS.items() if severity in found), "bold green")


def _verdict(report: Report) -> tuple[str, str]:
    if report.accepted is None:
        return "cannot be judged", "bold red"
    if not report.accepted:
        return "rejected", "bold red"
    effects = {finding.effect for finding in report.findings if isinstance(finding, Ruling)}
    if Effect.FAILS_LATER in effects:
        return "accepted, fails later", "bold red"
    if Effect.CHANGED in effects:
        return "accepted, with changes", "bold yellow"
    return "accepted", "bold green"


def resolved_text(resolved: Resolved) -> str:
    """Return one line: the config as the server would hold it."""
    parts = [f"method {resolved.method}", f"k {resolved.num_speculative_tokens}"]
    if resolved.prompt_lookup_max:
        parts.append(f"lookup {resolved.prompt_lookup_min} to {resolved.prompt_lookup_max}")
    if resolved.draft_architectures:
        parts.append(f"drafter {', '.join(resolved.draft_architectures)}")
    if resolved.draft_tensor_parallel_size is not None:
        parts.append(f"draft TP {resolved.draft_tensor_parallel_size}")
    if resolved.parallel_drafting:
        parts.append("parallel drafting")
    if resolved.runner:
        parts.append(f"runner {resolved.runner}")
    if resolved.async_scheduling is not None:
        parts.append(f"async scheduling {'on' if resolved.async_scheduling else 'off'}")
    return "  ".join(parts)


def render_findings(findings: Iterable[Finding]) -> RenderableType:
    """Return findings as blocks, the gravest first: what, where, why and what to do."""
    order = list(MARKS)
    return Group(*(_block(finding) for finding in sorted(findings, key=lambda each: order.index(each.severity))))


def _block(finding: Finding) -> RenderableType:
    mark, style = MARKS[finding.severity]
    head = Text.assemble((f"{mark} ", style), (finding.code, style))
    if isinstance(finding, Ruling):
        raised = f" ({finding.exception})" if finding.exception else ""
        head.append(f"  {finding.effect}, {finding.stage}{raised}", "dim")
    if finding.where:
        head.append(f"  {finding.where}", "bold")
    lines: list[RenderableType] = [head, Padding(Text(finding.message), (0, 0, 0, 4), expand=False)]
    if isinstance(finding, Ruling) and finding.becomes:
        lines.append(Padding(Text(f"becomes: {finding.becomes}"), (0, 0, 0, 4), expand=False))
    if finding.fix:
        lines.append(Padding(Text(f"fix: {finding.fix}", "green"), (0, 0, 0, 4), expand=False))
    if finding.source:
        lines.append(Padding(Text(f"source: {finding.source}", "dim"), (0, 0, 0, 4), expand=False))
    return Padding(Group(*lines), (0, 0, 0, 2), expand=False)


def report_to_dict(report: Report, *, where: str = "") -> dict[str, Any]:
    """Return one judgement as JSON."""
    resolved = None if report.resolved is None else asdict(report.resolved)
    return {
        "vllm": report.version,
        "asked": report.asked or report.version,
        "where": where,
        "target": report.setup.target,
        "speculative_config": None if report.setup.spec is None else report.setup.spec.to_dict(),
        "args": dict(report.setup.args),
        "accepted": report.accepted,
        "resolved": resolved,
        "findings": [finding.to_dict() for finding in report.findings],
    }
