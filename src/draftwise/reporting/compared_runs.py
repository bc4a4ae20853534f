"""Describes two compared measurements in words: one sentence, tables, Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from draftwise.core import Interval
from draftwise.deciding.compare.changes import TOKENS_PER_S, CellChange, ReadingChange
from draftwise.deciding.compare.run_pair import (
    ContextDifference,
    PairSide,
    RunPair,
    VerdictChange,
    VerdictOutcome,
    find_shared,
)
from draftwise.reporting.markdown import escape, fold, format_table
from draftwise.reporting.units import format_ratio

CELL_HEADER = (
    "workload · load · arm",
    "reading",
    "P50 before",
    "P50 after",
    "P99 before",
    "P99 after",
    "after / before",
)
VERDICT_HEADER = ("workload · load · candidate", "speed-up before", "after", "after / before", "verdict", "")
_MOST_ROWS = 120
"""Rows of a Markdown table; more would not fit into a pull request comment."""


def describe_comparison(compared: RunPair) -> str:
    """Return the sentence that says whether the first answer still holds."""
    if not compared.is_like_for_like:
        kinds = list(dict.fromkeys(each.kind for each in compared.unasked))
        every = dict.fromkeys([each.kind for each in compared.differences if each.asked] + kinds)
        return (
            f"NOT LIKE FOR LIKE: the two also differ in {', '.join(kinds)}, so the ratios do not show the effect of "
            "your change. If you changed this on purpose too, pass "
            f"{' '.join(f'--changed {kind}' for kind in every)}."
        )
    if compared.gap and not compared.verdicts:
        return f"Cannot tell whether the answer is still true: {compared.gap}."
    if not compared.verdicts:
        return (
            "No verdicts to compare: both sides need a baseline and a speculating arm. The ratios stand by themselves."
        )
    counts = {kept: sum(each.kept is kept for each in compared.verdicts) for kept in VerdictOutcome}
    told = ", ".join(f"{count} {kept}" for kept, count in counts.items() if count)
    if compared.is_still_true is False:
        return f"The answer is no longer true: {told} of {len(compared.verdicts)} verdicts."
    if compared.gap:
        return f"Cannot tell whether the answer is still true: {compared.gap}. So far: {told}."
    if compared.is_still_true is None:
        return f"Cannot tell whether the answer is still true: {told} of {len(compared.verdicts)} verdicts."
    return f"The answer is still true: {told} of {len(compared.verdicts)} verdicts{_moved(compared.verdicts)}."


def _moved(verdicts: Sequence[VerdictChange]) -> str:
    """Return how far gains moved though their verdicts are the same. Empty where none is shown to have."""
    moved = [each for each in verdicts if not each.change.low <= 1 <= each.change.high]
    if not moved:
        return ""
    most = max(moved, key=lambda each: abs(math.log(each.change.value)))
    place = f"{most.candidate} on {most.workload} at {most.condition}"
    return f"; the gain itself moved in {len(moved)} of them, most with {place}: {_ratio(most.change)} of what it was"


def list_difference_rows(differences: Sequence[ContextDifference]) -> Iterator[tuple[str, str, str, str]]:
    """Yield differences: (kind and name, before, after, whether it was expected)."""
    for each in differences:
        name = each.name if each.name.startswith(each.kind) else f"{each.kind}: {each.name}"
        yield name, _known(each.before), _known(each.after), "asked about" if each.asked else "NOT asked about"


def _known(value: Any) -> str:
    return "not known" if value is None else str(value)


def list_verdict_rows(changes: Sequence[VerdictChange]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of VERDICT_HEADER."""
    for each in changes:
        same = each.before.verdict == each.after.verdict
        yield (
            f"{each.workload} · {each.condition} · {each.candidate}",
            _ratio(each.before.deciding),
            _ratio(each.after.deciding),
            _ratio(each.change),
            str(each.after.verdict) if same else f"{each.before.verdict} -> {each.after.verdict}",
            each.kept,
        )


def list_cell_rows(cells: Sequence[CellChange]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of CELL_HEADER; latencies in milliseconds."""
    for cell in cells:
        place = " · ".join((cell.workload, cell.condition, cell.arm))
        for change in cell.changes:
            values = [_percentile(change, side, q) for q in (50.0, 99.0) for side in (change.before, change.after)]
            yield (
                place,
                _name_reading(change.reading),
                *values,
                change.how if change.ratio is None else _ratio(change.ratio),
            )
        if None not in cell.throughput:
            before, after = (value or 0.0 for value in cell.throughput)
            ratio = f"{after / before:.2f}x" if before else "-"
            yield place, "tokens/s of the server", f"{before:.0f}", f"{after:.0f}", "", "", ratio
        if None not in cell.acceptance_length:
            before, after = (value or 0.0 for value in cell.acceptance_length)
            yield place, "acceptance length", f"{before:.2f}", f"{after:.2f}", "", "", f"{after / before:.2f}x"


def _name_reading(reading: str) -> str:
    return reading if reading == TOKENS_PER_S else f"{'e2e' if reading == 'e2e' else reading.upper()} (ms)"


def _percentile(change: ReadingChange, side: dict[float, float], q: float) -> str:
    value = side.get(q)
    if value is None:
        return "-"
    shown = value if change.reading == TOKENS_PER_S else 1e3 * value
    return f"{shown:.0f}" if change.reading == TOKENS_PER_S or shown >= 999.5 else f"{shown:.3g}"


def _ratio(ratio: Interval) -> str:
    if math.isinf(ratio.high):
        return f"{ratio.value:.2f}x (no interval)"
    return format_ratio(ratio)


def to_markdown(compared: RunPair) -> str:
    """Return a comment for a pull request."""
    before, after = (_title(side) for side in (compared.before, compared.after))
    parts = [f"**{escape(describe_comparison(compared))}**", f"Before: {escape(before)}  \nAfter: {escape(after)}"]
    if compared.differences:
        parts.append(_cut(("what differs", "before", "after", ""), list(list_difference_rows(compared.differences))))
    else:
        parts.append("The two do not differ in anything known.")
    if compared.verdicts:
        parts.append(_cut(VERDICT_HEADER, list(list_verdict_rows(compared.verdicts))))
    parts.append(fold("Readings", _cut(CELL_HEADER, list(list_cell_rows(compared.cells)))))
    parts += [f"- {escape(note)}" for note in list_notes(compared)]
    return "\n\n".join(parts) + "\n"


def list_notes(compared: RunPair) -> list[str]:
    """Return caveats about the numbers."""
    found = [
        f"{side.results.source}: {note}" for side in (compared.before, compared.after) for note in side.results.notes
    ]
    found += [
        f"{' · '.join((cell.workload, cell.condition, cell.arm))}: {bad} of {bad + good} requests failed {when}"
        for cell in compared.cells
        for bad, good, when in zip(cell.num_failed, cell.num_requests, ("before", "after"), strict=True)
        if bad
    ]
    how = {change.how for cell in compared.cells for change in cell.changes}
    found += [
        f"{name}: judged by the {both} prompts that both sides used, of {one} and {other}"
        for name, both, one, other in find_shared(compared.before.results, compared.after.results)
        if both < max(one, other)
    ]
    is_one = compared.before.results.source == compared.after.results.source
    found.append(
        "Both sides are the same run, so this shows no effect of a change."
        if is_one
        else "The two runs are from different times, so the ratios include changes of the machine."
    )
    if "unpaired" in how:
        found.append("The prompts differ, or are not known to be the same, so requests count as independent.")
    return [*found, *compared.left_out[:20]]


def _title(side: PairSide) -> str:
    model = side.results.context.get("model.name") or side.results.context.get("model")
    return f"{side.results.source} ({side.results.tool}, model {model or 'not known'})"


def _cut(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    text = format_table(header, rows[:_MOST_ROWS])
    return text if len(rows) <= _MOST_ROWS else f"{text}\n\n{len(rows) - _MOST_ROWS} more rows with --json."
