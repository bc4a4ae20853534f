"""Shows the output of `draftwise watch`: a row per pool with its consequences, as text, JSON, or a live view."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from math import expm1
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from draftwise.cli._console import open_console, show_prose
from draftwise.cli._findings import MARKS, render_findings
from draftwise.core import Diagnosis, Finding, Window
from draftwise.verbs.watch import PLAIN, UNREAD, ServiceRow, Snapshot, WatchResult, Yardstick


def render_diagnoses(diagnoses: Iterable[Diagnosis]) -> RenderableType:
    """Return diagnoses, costliest first: message, evidence, what to do, and possible causes."""
    found = list(diagnoses)
    follow = {each.code: [other.code for other in found if other.follows_from == each.code] for each in found}
    return Group(*(line for each in found if not each.follows_from for line in _list_lines(each, follow[each.code])))


def _list_lines(diagnosis: Diagnosis, follow: Sequence[str]) -> Iterator[RenderableType]:
    mark, style = MARKS[diagnosis.severity]
    head = Text.assemble((f"{mark} {diagnosis.code}", style), (f"  {diagnosis.where}", "dim"))
    if diagnosis.loss:
        head.append(f"  costs {expm1(diagnosis.loss):.0%} more time per token", "bold")
    yield head
    details = [(diagnosis.message, ""), ("; ".join(diagnosis.evidence), "dim"), (f"fix: {diagnosis.fix}", "")]
    if follow:
        details.append((f"consequences: {', '.join(follow)}", "dim"))
    if diagnosis.candidates:
        tells = f". To narrow it down, run: {diagnosis.settles}" if diagnosis.settles else ""
        details.append((f"possible causes: {', '.join(diagnosis.candidates)}{tells}", "dim"))
    yield from (Padding(Text(text, style), (0, 0, 0, 4), expand=False) for text, style in details if text)


__all__ = ["LiveShow", "Show", "TextShow", "open_console"]

_BARS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 60
_POSITIONS = 16
_INDENT = 7
"""Width of a pool's name."""
_MOST_FINDINGS = 3
"""Rows in the live view."""


class Show(Protocol):
    """An output for readings."""

    def show(self, result: WatchResult) -> None:
        """Show a reading."""

    def close(self) -> None:
        """End the output."""


class TextShow:
    """A block of rows per reading; unanswered questions are printed once."""

    def __init__(self, console: Console) -> None:
        self._console, self._is_first = console, True

    def show(self, result: WatchResult) -> None:
        """Print its rows and findings."""
        snapshot = result.snapshot
        if not result.is_only:
            self._console.print(Text(_clock(snapshot), "dim"))
        for line in _list_services(result.services):
            self._console.print(line, soft_wrap=True)
        for line in _list_rows(snapshot, result.yardstick):
            self._console.print(_fill(line, self._console.width), soft_wrap=True)
        for block in _render(snapshot.findings):
            self._console.print(block)
        for sentence in result.unanswered if self._is_first else ():
            show_prose(self._console, sentence, "dim")
        self._is_first = False

    def close(self) -> None:
        """Do nothing."""


class LiveShow:
    """The rows of the last reading with the history of tokens per step, updated in place."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False)
        self._courses: dict[str, deque[float]] = {}
        self._live.start()

    def close(self) -> None:
        """End the display."""
        self._live.stop()

    def show(self, result: WatchResult) -> None:
        """Replace what is shown."""
        snapshot = result.snapshot
        for pool in snapshot.pools:
            whole = Window.pooled(window for window in snapshot.windows if window.pool == pool)
            if whole is not None and whole.tokens_per_step is not None:
                self._courses.setdefault(pool, deque(maxlen=_MOST_BARS)).append(whole.tokens_per_step)
        self._live.update(Group(*self._render_live(result)), refresh=True)

    def _render_live(self, result: WatchResult) -> Iterator[RenderableType]:
        snapshot = result.snapshot
        yield Text(_clock(snapshot), "dim")
        yield from _list_services(result.services)
        for pool in snapshot.pools:
            yield from (_fill(row, self._live.console.width) for row in _rows_of(pool, snapshot, result.yardstick))
            if pool != PLAIN and pool in self._courses:
                yield Padding(Text(draw_course(self._courses[pool]), "cyan"), (0, 0, 0, _INDENT), expand=False)
        yield from _render(snapshot.findings[:_MOST_FINDINGS])
        yield from (Text(sentence, "dim") for sentence in result.unanswered)


def _render(findings: Sequence[Finding]) -> Iterator[RenderableType]:
    """Yield which servers cannot be read, what is wrong with the others, and what else is to be said."""
    told = [each for each in findings if not isinstance(each, Diagnosis)]
    if gone := [each for each in told if each.code == UNREAD]:
        yield render_findings(gone)
    if diagnoses := [each for each in findings if isinstance(each, Diagnosis)]:
        yield render_diagnoses(diagnoses)
    if others := [each for each in told if each not in gone]:
        yield render_findings(others)


def draw_course(values: Iterable[float]) -> str:
    """Return tokens per step over time as bars; the lowest means 1, where speculation gives nothing."""
    known = list(values)
    top = max([2.0, *known])
    heights = (round((value - 1) / (top - 1) * (len(_BARS) - 1)) for value in known)
    return "".join(_BARS[min(max(height, 0), len(_BARS) - 1)] for height in heights)


def _clock(snapshot: Snapshot) -> str:
    return datetime.fromtimestamp(snapshot.at_s).strftime("%H:%M:%S")


def _list_rows(snapshot: Snapshot, yardstick: Yardstick) -> Iterator[Text]:
    for pool in snapshot.pools:
        yield from _rows_of(pool, snapshot, yardstick)


def _list_services(services: Sequence[ServiceRow]) -> Iterator[Text]:
    """Yield a table of services, what costs most first. Those without a finding, or with notes only, are counted."""
    ill = [each for each in services if each.cost or any(found.severity != "info" for found in each.findings)]
    names = {id(each): "/".join(filter(None, (each.namespace, each.service))) for each in services}
    wide = max((len(names[id(each)]) for each in ill), default=0)
    if ill:
        yield Text(f"{'servers lost':>12}  {'service':<{wide}}  servers  tokens/step  first finding", "bold")
    for each in ill:
        first, *more = [found for found in each.findings if not found.follows_from]
        seen, even = _number(each.tokens_per_step, "{:.2f}") or "-", _number(each.break_even, " of {:.2f}")
        row = Text(f"{_number(each.cost, '{:.2f}') or 'unknown':>12}  {names[id(each)]:<{wide}}  {each.servers:>7}  ")
        mark, style = MARKS[first.severity]
        row.append(f"{seen + even:<11}  ").append(f"{mark} {first.code}", style)
        row.append(f"  {first.message}" + (f" (and {len(more)} more)" if more else ""), "dim")
        yield row
    if services:
        notes = sum(bool(each.findings) and each not in ill for each in services)
        text = f"{len(services)} services, {len(services) - len(ill)} without a finding"
        yield Text(text + (f", {notes} of them with notes (--json shows them)." if notes else "."), "dim")


def _rows_of(pool: str, snapshot: Snapshot, yardstick: Yardstick) -> Iterator[Text]:
    windows = snapshot.serving(pool)
    whole, plain = Window.pooled(windows), Window.pooled(snapshot.serving(PLAIN))
    if whole is None:
        return
    parts = [_count_replicas(windows), _number(whole.load.running, "{:.1f} running")]
    row = Text.assemble((f"{pool:<{_INDENT}}", "bold"), "  ".join(filter(None, parts)))
    if pool != PLAIN:
        row.append("  ").append_text(_describe_gain(whole, yardstick))
    row.append(_describe_pace(whole, None if pool == PLAIN else plain))
    if pool != PLAIN:
        row.append(_describe_drafts(whole))
    yield row
    if cost := _describe_cost(whole):
        yield Text(f"{'':<{_INDENT}}{cost}", "dim")


def _fill(row: Text, width: int) -> Text:
    """Return a row broken between its readings into lines of a width, the further ones indented like the first."""
    lines = [row[:_INDENT]]
    for reading in row[_INDENT:].split("  ", allow_blank=False):
        if len(lines[-1]) > _INDENT and len(lines[-1]) + 2 + len(reading) > width:
            lines.append(Text(" " * _INDENT))
        lines[-1].append("  " if len(lines[-1]) > _INDENT else "").append_text(reading)
    return Text("\n").join(lines)


def _count_replicas(windows: Sequence[Window]) -> str:
    replicas = len({window.instance for window in windows})
    engines = f" ({len(windows)} engines)" if len(windows) > replicas else ""
    return f"{replicas} replica{'s' if replicas > 1 else ''}{engines}"


def _describe_gain(window: Window, yardstick: Yardstick) -> Text:
    if window.counts_drafts is False:
        return Text("does not speculate", "bold red")
    seen, break_even = window.tokens_per_step, yardstick.break_even
    style = "" if seen is None or break_even is None else "bold red" if seen < break_even else "bold green"
    beside = [_number(break_even, "break-even {:.2f}"), _number(yardstick.tokens_per_step, "expected {:.2f}")]
    known = ", ".join(filter(None, beside))
    return Text.assemble("tokens/step ", (_number(seen, "{:.2f}") or "unknown", style), f" ({known})" if known else "")


def _describe_drafts(window: Window) -> str:
    if window.counts_drafts is False:
        return ""
    parts = [
        _number(window.acceptance_length, "acceptance length {:.2f}") if window.tokens_per_step is None else "",
        ""
        if window.acceptance_length
        else _number(window.counters.spec.acceptance_rate, "{:.0%} of draft tokens accepted"),
        _number(window.load.reported_length, "acceptance length {:.2f} by the server's gauge of its last steps"),
        _number(window.coverage, "coverage {:.2f}"),
        _number(window.mean_k, "k {:.1f}"),
        _describe_positions(window.rate_per_pos),
    ]
    return "".join(f"  {part}" for part in parts if part)


def _describe_positions(rates: Sequence[float]) -> str:
    shown = " ".join(f"{100 * rate:.0f}" for rate in rates[:_POSITIONS])
    more = f" (the first {_POSITIONS} of {len(rates)} read)" if len(rates) > _POSITIONS else ""
    return f"by position {shown}{more}" if rates else ""


def _describe_pace(window: Window, plain: Window | None) -> str:
    if window.seconds_per_token is None:
        return ""
    beside = None if plain is None else plain.seconds_per_token
    return f"  {1000 * window.seconds_per_token:.1f} ms/token" + (
        "" if beside is None else f" (plain {1000 * beside:.1f})"
    )


def _describe_cost(window: Window) -> str:
    parts = [
        _number(window.output_tokens_per_s, "{:.0f} tokens/s"),
        _number(window.load.waiting, "{:.1f} waiting"),
        _number(window.load.kv_usage, "KV {:.0%}"),
        _number(window.prefix_hit_rate, "prefix hits {:.0%}"),
        _number(window.mean_first_token_s, "first token {:.2f} s"),
        _number(window.wasted_per_token, "{:.1f} wasted draft tokens per token") if window.counts_drafts else "",
        _number(window.preemptions_per_s or None, "{:.2f} preemptions/s"),
        "restarted" if window.restarted else "",
        "asleep" if window.sleeping else "",
        f"over {window.duration_s:.0f} s",
    ]
    return "  ".join(filter(None, parts))


def _number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)
