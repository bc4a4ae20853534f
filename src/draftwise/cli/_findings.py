"""How findings look in a terminal and in JSON: shared by the verbs that judge a configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from draftwise.core import Effect, Finding, Ruling, Severity
from draftwise.plan.check import Report, Resolved

__all__ = ["finding_to_dict", "render_findings", "report_to_dict", "resolved_text", "show_report"]

_MARKS: Mapping[Severity, tuple[str, str]] = {
    Severity.ERROR: ("✗", "bold red"),
    Severity.WARNING: ("!", "bold yellow"),
    Severity.INFO: ("·", "cyan"),
}


def show_report(console: Console, report: Report, *, where: str = "") -> None:
    """Print one setup's judgement for one release."""
    head = Text(f"vLLM {report.version}  ", "bold")
    head.append(*_verdict(report))
    if where:
        head.append(f"  {where}", "dim")
    console.print(head)
    if report.resolved is not None and report.accepted:
        console.print(Padding(Text(resolved_text(report.resolved), "dim"), (0, 0, 0, 2), expand=False))
    console.print(render_findings(report.findings))


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
    order = list(_MARKS)
    return Group(*(_block(finding) for finding in sorted(findings, key=lambda each: order.index(each.severity))))


def _block(finding: Finding) -> RenderableType:
    mark, style = _MARKS[finding.severity]
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
        "where": where,
        "target": report.setup.target,
        "speculative_config": None if report.setup.spec is None else report.setup.spec.to_dict(),
        "args": dict(report.setup.args),
        "accepted": report.accepted,
        "resolved": resolved,
        "findings": [finding_to_dict(finding) for finding in report.findings],
    }


def finding_to_dict(finding: Finding) -> dict[str, Any]:
    """Return a finding as JSON, empty fields left out."""
    return {key: value for key, value in asdict(finding).items() if value != ""}
