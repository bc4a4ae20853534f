"""A run's conclusions as Markdown for a pull request, short enough for one comment with a sweep of any size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from draftwise.core import Comparison, Finding
from draftwise.deciding.comparison.latencies import QUANTILES
from draftwise.deciding.conclusions import Conclusions
from draftwise.reporting.conditions import (
    describe_missing,
    describe_rollback,
    describe_scope,
    describe_single_settings,
    describe_unmeasured,
    list_actions,
)
from draftwise.reporting.sentences import describe_decision
from draftwise.reporting.tables import (
    FindingGroup,
    Grid,
    group_findings,
    list_band_rows,
    list_context_rows,
    list_crossover_rows,
    make_grids,
    name_workload,
    sort_comparisons,
)
from draftwise.reporting.units import format_change, format_number, format_ratio

LIMIT = 60_000
"""Maximum characters; GitHub allows 65,536 in a comment."""
_ROOMS = (10_000, 250, 100, 40, 15, 5)
"""Rows per table and lines per list, tried in this order until the text is short enough."""
_LONGEST = 400
"""Characters of one cell or line."""
_LONGEST_SENTENCE = 4_000
_WIDE = 16
"""Comparisons up to which every one has a row of its own; verdict grids show more."""


def render_markdown(found: Conclusions) -> str:
    """Return verdict, tables, findings and context in at most LIMIT characters."""
    for room in _ROOMS:
        text = "\n\n".join(part for part in _parts(found, room) if part) + "\n"
        if len(text) <= LIMIT:
            return text
    return text[:LIMIT].rpartition("\n")[0] + "\n"


def escape(text: str, longest: int = _LONGEST) -> str:
    """Return a text escaped for Markdown, on one line and cut to `longest` characters."""
    line = " ".join(text.split())
    if len(line) > longest:
        line = f"{line[: longest - 1]}…"
    for mark in "\\`*_[]<>|":
        line = line.replace(mark, f"\\{mark}")
    return line


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; the first column is left-aligned, others right."""
    marks = ["---", *["--:"] * (len(header) - 1)]
    lines = [header, marks, *([escape(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def fold(title: str, content: str) -> str:
    """Return content that shows when its title is clicked."""
    return f"<details><summary>{title}</summary>\n\n{content}\n\n</details>"


def _parts(found: Conclusions, room: int) -> Iterator[str]:
    decision = found.decision
    if decision.missing_context:
        yield f"**{escape(describe_missing(decision))}**"
    yield f"**{escape(describe_decision(decision), _LONGEST_SENTENCE)}**"
    for each in list_actions(decision, found.run)[:room]:
        text = f"```\n{each.text}\n```" if each.text else escape(" ".join(each.remarks))
        yield f"{escape(each.heading)}:\n\n{text}"
    if decision.single_settings:
        yield _list(describe_single_settings(decision), room)
    if decision.rollback:
        yield _list(describe_rollback(decision), room)
    if unmeasured := describe_unmeasured(decision):
        yield f"Not measured as planned:\n\n{_list(unmeasured, room)}"
    if len(decision.comparisons) > _WIDE:
        yield from (_grid(grid, room) for grid in make_grids(decision.comparisons)[:room])
    elif decision.comparisons:
        yield _numbers(decision.comparisons, room)
    if decision.bands:
        yield _list([f"{name}: {text}" for name, text in list_band_rows(decision.bands)], room)
    if rows := list_crossover_rows(decision.crossovers):
        header = ("workload · candidate", "stops paying at", "95 % interval", "adopted up to", "unit")
        yield fold("Where each candidate stops paying", _cut(header, rows, room))
    if findings := group_findings(decision):
        yield f"### Findings\n\n{_list([_finding(each) for each in findings], room)}"
    if len(decision.comparisons) > _WIDE:
        yield fold("All numbers", _numbers(decision.comparisons, room))
    if found.latencies:
        yield fold("Latencies", _latencies(found, room))
    yield fold("What was measured, and on what", _context(found, room))


def _grid(grid: Grid, room: int) -> str:
    name = name_workload(grid.workload) + (f" · T={grid.temperature:g}" if grid.temperature else "")
    rows = [
        (candidate, *("-" if each is None else f"{each.deciding.value:.2f}x {each.verdict}" for each in row))
        for candidate, row in grid.rows
    ]
    return _cut((escape(name), *map(escape, grid.loads)), rows, room)


def _numbers(comparisons: Sequence[Comparison], room: int) -> str:
    several = len({each.condition for each in comparisons}) > 1
    rows = []
    for each in sort_comparisons(comparisons):
        spec = each.counters.spec
        place = (name_workload(each.workload), *((each.condition.label,) if several else ()), each.candidate)
        numbers = (
            str(each.verdict),
            format_ratio(each.deciding),
            format_number(spec.acceptance_length),
            format_number(each.counters.tokens_per_step),
            "-" if each.conversion is None else f"{each.conversion:.0%}",
            format_change(each.ttft),
            format_change(each.tpot),
            format_change(each.percentiles.get("tpot", {}).get(99)),
            "-" if each.equal_outputs is None else "{}/{}".format(*each.equal_outputs),
        )
        rows.append((" · ".join(place), *numbers))
    header = (
        "workload · candidate" if not several else "workload · load · candidate",
        "verdict",
        "speed-up (95 %)",
        "acceptance length",
        "tokens per step",
        "conversion",
        "TTFT",
        "TPOT",
        "TPOT P99",
        "outputs equal",
    )
    return _cut(header, rows, room)


def _latencies(found: Conclusions, room: int) -> str:
    names = ("ttft", "tpot", "itl", "e2e")
    picked = (QUANTILES.index(50), QUANTILES.index(99))
    header = [f"{'e2e' if n == 'e2e' else n.upper()} P{QUANTILES[q]}" for n in names for q in picked]
    rows = []
    for row in found.latencies:
        values = [row.percentiles_ms[name] for name in names]
        numbers = [f"{value[q]:.3g}" if value else "-" for value in values for q in picked]
        throughput = "-" if row.throughput is None else f"{row.throughput:.0f}"
        rows.append((f"{row.workload} · {row.condition} · {row.arm}", str(row.num_requests), throughput, *numbers))
    return "Milliseconds.\n\n" + _cut(("workload · load · arm", "requests", "server tokens/s", *header), rows, room)


def _context(found: Conclusions, room: int) -> str:
    run = found.run
    rows = [*list_context_rows(run), *(("Holds for", line) for line in describe_scope(found.decision.scope))]
    for arm in run.plan.arms:
        server = run.context.server(arm.name)
        text = f"version {server.release or 'not known'}: {server.command or 'command not known'}"
        rows.append((f"Server {arm.name}", text))
    return _cut(("", ""), rows, room)


def _finding(each: FindingGroup) -> str:
    finding: Finding = each.finding
    more = f" (and at {len(each.places) - 1} more)" if len(each.places) > 1 else ""
    return f"{finding.severity} {finding.code}: {each.places[0][0]}{more}: {finding.message} {finding.fix}"


def _list(lines: Sequence[str], room: int) -> str:
    shown = [f"- {escape(line)}" for line in lines[:room]]
    return "\n".join([*shown, *([f"- and {len(lines) - room} more"] if len(lines) > room else [])])


def _cut(header: Sequence[str], rows: Sequence[Sequence[str]], room: int) -> str:
    more = f"\n\n{len(rows) - room} more rows are in summary.json." if len(rows) > room else ""
    return format_table(header, rows[:room]) + more
