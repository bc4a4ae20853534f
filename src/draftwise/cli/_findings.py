"""Shows findings and judgements in a terminal, for the verbs that judge a configuration."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import click
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from draftwise.cli._console import open_console
from draftwise.core import Effect, Finding, Ruling, Severity

if TYPE_CHECKING:
    from draftwise.verbs.judgements import Judgement, Judgements, Resolved

_VERDICTS = {
    "not judged": "bold yellow",
    "cannot be judged": "bold yellow",
    "rejected": "bold red",
    "accepted, fails later": "bold red",
    "accepted, with changes": "bold yellow",
    "accepted": "bold green",
}
MARKS: Mapping[Severity, tuple[str, str]] = {
    Severity.ERROR: ("✗", "bold red"),
    Severity.WARNING: ("!", "bold yellow"),
    Severity.INFO: ("·", "cyan"),
}


def show_judgements(result: Judgements, shape: str) -> None:
    """Print judgements to stdout in the form that --format names."""
    if shape == "github":
        click.echo(result.to_github(), nl=False)
    elif shape == "table":
        render(open_console(stderr=False), result)
    else:
        documents = {"json": result.to_dict, "sarif": result.to_sarif, "gitlab": result.to_gitlab}
        click.echo(json.dumps(documents[shape](), indent=1))


def render(console: Console, result: Judgements) -> None:
    """Print judgements, and after them once the notes that several setups share."""
    judged = result.judgements
    counts = Counter(finding for each in judged for finding in dict.fromkeys(_notes(each.findings)))
    shared = [note for note, count in counts.items() if count > 1]
    for each in judged:
        _render_one(console, each, leave_out=shared)
    for note in sorted(shared, key=lambda note: note.code):
        console.print(Text(f"Of {counts[note]} of {len(judged)} setups", "bold"))
        console.print(render_findings([note]))


def _notes(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings that only inform, without their place."""
    return (replace(finding, where="") for finding in findings if finding.severity is Severity.INFO)


def _render_one(console: Console, judged: Judgement, *, leave_out: Container[Finding]) -> None:
    head = Text(f"{judged.report.release}  ".lstrip(), "bold")
    head.append(judged.verdict, _style(judged))
    for part in (judged.target, judged.where):
        head.append(f"  {part}" if part else "", "dim")
    console.print(head)
    told = "" if judged.speculative_config or not judged.accepted else "no speculation"
    if told := told if judged.resolved is None else _describe(judged.resolved):
        console.print(Padding(Text(told, "dim"), (0, 0, 0, 2), expand=False))
    console.print(render_findings(each for each in judged.findings if replace(each, where="") not in leave_out))


def quiet_line(judged: Judgement) -> str:
    """Return a judgement as one line: place, release, verdict, and the codes of the most severe findings."""
    for severity in (Severity.ERROR, Severity.WARNING):
        codes = dict.fromkeys(finding.code for finding in judged.findings if finding.severity is severity)
        if codes:
            break
    place = " ".join(part for part in (judged.where, judged.target) if part) or "setup"
    verdict = judged.verdict + (f" ({', '.join(codes)})" if codes else "")
    return ": ".join(part for part in (place, judged.report.release, verdict) if part)


def _style(judged: Judgement) -> str:
    """Return the style of a verdict. One of a verb's own has that of its gravest error or warning."""
    if judged.verdict in _VERDICTS:
        return _VERDICTS[judged.verdict]
    found = {finding.severity for finding in judged.findings} - {Severity.INFO}
    return next((style for severity, (_, style) in MARKS.items() if severity in found), "bold green")


def _describe(resolved: Resolved) -> str:
    parts = [f"method {resolved.method}", f"k {resolved.num_speculative_tokens}"]
    if resolved.prompt_lookup_max:
        parts.append(f"lookup {resolved.prompt_lookup_min} to {resolved.prompt_lookup_max}")
    elif resolved.prompt_lookup_max is None and "prompt_lookup_max" in resolved.facts.keys:
        parts.append("lookup unknown")
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
    """Return findings as blocks, most severe first: what, where, why and what to do."""
    order = list(MARKS)
    return Group(*(_block(finding) for finding in sorted(findings, key=lambda each: order.index(each.severity))))


def _is_minor_defect(finding: Finding) -> bool:
    """Say whether a finding is a known defect that is a note: a slight one, or one that nobody has seen lately."""
    is_note = finding.severity is Severity.INFO
    return is_note and isinstance(finding, Ruling) and finding.effect is Effect.DEFECT


def _block(finding: Finding) -> RenderableType:
    mark, style = MARKS[finding.severity]
    head = Text.assemble((f"{mark} ", style), (finding.code, style))
    if isinstance(finding, Ruling):
        raised = f" ({finding.exception})" if finding.exception else ""
        head.append(f"  {finding.effect}, {finding.stage}{raised}", "dim")
    if finding.where:
        head.append(f"  {finding.where}", "bold")
    lines: list[RenderableType] = [head, Padding(Text(finding.message), (0, 0, 0, 4), expand=False)]
    if _is_minor_defect(finding):  # `explain` has the rest
        return Padding(Group(*lines), (0, 0, 0, 2), expand=False)
    if isinstance(finding, Ruling) and finding.becomes:
        lines.append(Padding(Text(f"becomes: {finding.becomes}"), (0, 0, 0, 4), expand=False))
    if finding.fix:
        lines.append(Padding(Text(f"fix: {finding.fix}", "green"), (0, 0, 0, 4), expand=False))
    if finding.source:
        lines.append(Padding(Text(f"source: {finding.source}", "dim"), (0, 0, 0, 4), expand=False))
    return Padding(Group(*lines), (0, 0, 0, 2), expand=False)
