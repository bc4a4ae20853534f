"""Derives windows from vLLM's log lines, for a server without an accessible metrics page."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import accumulate, pairwise
from math import log, sqrt

from draftwise.backends.vllm_log import find_root_cause
from draftwise.core import Counters, Finding, ServerLoad, SpecStats, Sums, Window
from draftwise.core.grouping import group_by
from draftwise.knowledge.log_lines import read_stats_log
from draftwise.knowledge.messages import fault, warning
from draftwise.watching.stalls import Stalls
from draftwise.watching.watcher import Recent, Snapshot
from draftwise.workloads.wrapped_lines import LogLine, parse_line, unwrap

_INTERVAL_S = 10.0
"""Default of VLLM_LOG_STATS_INTERVAL, in seconds."""
_LIKELY = 1.5
"""A draft line covers the time since the last one. Beyond this multiple of the interval, it includes idle time."""
_LEAST_DRAFTS = 400
"""Minimum number of drafts on each side of a fall."""
_FALLEN = 0.85
"""A fall leaves at most this share of the acceptance length."""
_TAIL = 2000
"""Number of lines after the last statistics to search for an error."""
_ZONES = timedelta(days=1)
"""Largest time-zone offset: lines use their machine's local time without naming the zone."""


@dataclass(slots=True)
class _Entry:
    """An engine's line, and the one about drafts that follows it."""

    engine: str
    at_s: float
    since_s: float | None
    """Seconds since the engine's previous line; None for the first one."""
    readings: dict[str, str] = field(default_factory=dict)
    is_about_drafts: bool = False


def see_log(lines: Iterable[str], *, name: str, now: datetime | None = None) -> Snapshot:
    """Return a snapshot of the last minutes of a log.

    Args:
        lines: lines of the log.
        name: name of the log.
        now: latest possible time of a line, because vLLM writes no year. None: the machine's current time.
    """
    recent, stalls, past, last = Recent(), Stalls(), list[Window](), None
    now = now or datetime.now(tz=UTC)
    wrapped = (LogLine(number=n, where=name, value=parse_line(text.rstrip())) for n, text in enumerate(lines, 1))
    head, kept, tail = _keep_statistics(str(line.value) for line in unwrap(wrapped))
    if _is_newest_first(kept, now):
        kept, tail = kept[::-1], head[::-1]
    told = next((line for line in tail if read_stats_log().dies.search(line)), None)
    died = () if told is None else (fault("engine-dies", case="log", name=name, cause=find_root_cause(tail) or told),)
    for window in read_log(kept, instance=name, now=now):
        recent.add([window])
        stalls.add([window])
        past.append(window)
        last = window
    if last is None:
        return Snapshot(at_s=0.0, windows=(), recent=(), findings=(*died, warning("no-statistics", name=name)))
    end_s = last.start_s + last.duration_s
    recent.forget(end_s)
    fall = _find_fall(past, name)
    return Snapshot(
        at_s=end_s,
        windows=(last,),
        recent=tuple(recent.read()),
        findings=(*died, *stalls.find(), *(() if fall is None else (fall,))),
    )


def _keep_statistics(lines: Iterable[str]) -> tuple[list[str], list[str], list[str]]:
    """Return the lines with statistics, those before all of them, and the last ones after all of them."""
    facts, kept, head, tail = read_stats_log(), list[str](), list[str](), deque[str](maxlen=_TAIL)
    for line in lines:
        if facts.begins.search(line) or facts.drafts.search(line):
            head = head if kept else list(tail)
            kept.append(line)
            tail.clear()
        else:
            tail.append(line)
    return head, kept, list(tail)


def _is_newest_first(lines: list[str], now: datetime) -> bool:
    """Return whether lines go back in time, as viewers of logs export them."""
    times = [_read_time(line, now, 0.0) for line in lines]
    known = [at_s for at_s in times if at_s]
    falls, rises = (sum(sign * (b - a) > 0 for a, b in pairwise(known)) for sign in (-1, 1))
    return falls > rises


def _find_fall(windows: Sequence[Window], name: str) -> Finding | None:
    """Return when the acceptance length fell the most in the whole log, as far as it is more than noise."""
    falls = (_split(each) for each in group_by(lambda window: window.engine, windows).values())
    surest = max(filter(None, falls), default=None)
    if surest is None or surest[2] >= _FALLEN * surest[1]:
        return None
    _, before, after, at_s, engine = surest
    of = f" of engine {engine}" if engine and len({each.engine for each in windows}) > 1 else ""
    at = datetime.fromtimestamp(at_s, tz=UTC)
    return warning("fell-in-log", of=of, before=before, after=after, at=at, name=name)


def _split(windows: Sequence[Window]) -> tuple[float, float, float, float, str] | None:
    """Return the split of one engine's windows with the surest fall: how sure, lengths, time and engine."""
    known = [each for each in windows if each.counters.spec.num_drafts]
    drafts = list(accumulate(each.counters.spec.num_drafts for each in known))
    accepted = list(accumulate(each.counters.spec.num_accepted_tokens for each in known))

    def compare(index: int) -> tuple[float, float]:
        later = (accepted[-1] - accepted[index]) / (drafts[-1] - drafts[index])
        return 1 + accepted[index] / drafts[index], 1 + later

    def weigh(index: int) -> float:
        """Return the certainty of a fall after a window: a split near an end compares few drafts with many."""
        before, after = compare(index)
        return log(before / after) * sqrt(min(drafts[index], drafts[-1] - drafts[index]))

    splits = [
        index for index in range(len(known) - 1) if min(drafts[index], drafts[-1] - drafts[index]) >= _LEAST_DRAFTS
    ]
    index = max(splits, key=weigh, default=None)
    if index is None:
        return None
    return weigh(index), *compare(index), known[index + 1].start_s, known[index].engine


def read_log(lines: Iterable[str], *, instance: str, now: datetime) -> Iterator[Window]:
    """Yield a window for each statistics line of an engine.

    vLLM logs nothing while idle, and rates have three digits: counts derived from them have the same precision.

    Args:
        lines: lines of the log, from all engines of a server.
        instance: name of the server.
        now: latest possible time of a line.
    """
    drafting: set[str] = set()
    for entry in _read_entries(lines, now):
        if entry.is_about_drafts:
            drafting.add(entry.engine)
        yield _to_window(entry, instance, counts_drafts=True if entry.engine in drafting else None)


def _read_entries(lines: Iterable[str], now: datetime) -> Iterator[_Entry]:
    """Yield the lines of each engine, joined by the process that wrote them; one about drafts may stand alone."""
    facts = read_stats_log()
    unfinished: dict[str, _Entry] = {}
    ended: dict[str, float] = {}
    at_s = now.timestamp()
    for line in lines:
        begins, drafts = facts.begins.search(line), facts.drafts.search(line)
        if begins is None and drafts is None:
            continue
        writer = process[1] if (process := facts.process.search(line)) else ""
        at_s = _read_time(line, now, at_s)
        entry = unfinished.pop(writer, None)
        if begins is not None and entry is not None:
            yield entry
        if begins is not None or entry is None:
            engine = "" if begins is None else begins[1] or begins[2]
            entry = _Entry(engine, at_s, at_s - ended[engine] if engine in ended else None)
            ended[engine] = at_s
        entry.is_about_drafts |= drafts is not None
        matches = ((name, pattern.search(line)) for name, pattern in facts.readings.items())
        entry.readings |= {name: match[1] for name, match in matches if match is not None}
        if drafts is not None:
            yield entry
        else:
            unfinished[writer] = entry
    yield from unfinished.values()


def _read_time(line: str, now: datetime, otherwise_s: float) -> float:
    """Return when a line was written, in seconds since the epoch; one without a time was written as the one before."""
    found = read_stats_log().time.search(line)
    if found is None:
        return otherwise_s
    year, month, day, hour, minute, second = (int(part) if part else 0 for part in found.groups())
    try:
        at = datetime(year or now.year, month, day, hour, minute, second, tzinfo=now.tzinfo)
        return (at if year or at <= now + _ZONES else at.replace(year=now.year - 1)).timestamp()
    except ValueError:  # the 30th of February
        return otherwise_s


def _to_window(entry: _Entry, instance: str, *, counts_drafts: bool | None) -> Window:
    numbers = {name: float(text) for name, text in entry.readings.items() if name != "rates"}
    duration_s = _find_duration(entry, numbers)
    rate, percent = numbers.get("generation_tokens_per_s"), numbers.get("kv_percent")
    return Window(
        pool="spec",
        instance=instance,
        engine=entry.engine,
        start_s=entry.at_s - duration_s,
        duration_s=duration_s,
        counters=Counters(
            spec=_count_drafts(entry.readings, numbers),
            generation_tokens=None if rate is None else round(rate * duration_s),
        ),
        load=ServerLoad(
            running=numbers.get("running"),
            waiting=numbers.get("waiting"),
            kv_usage=None if percent is None else percent / 100,
        ),
        sums=Sums(preemptions=numbers.get("preemptions")),
        counts_drafts=counts_drafts,
    )


def _find_duration(entry: _Entry, numbers: Mapping[str, float]) -> float:
    """Return the seconds that a line is about: exactly where drafts were counted all the time, else to the second."""
    roughly = _INTERVAL_S if entry.since_s is None or entry.since_s <= 0 else entry.since_s
    pairs = (("drafted", "drafted_per_s"), ("accepted", "accepted_per_s"))
    exact = (numbers[count] / numbers[rate] for count, rate in pairs if numbers.get(rate) and count in numbers)
    alone = "generation_tokens_per_s" not in numbers
    return next((found for found in exact if alone or roughly / _LIKELY < found < roughly * _LIKELY), roughly)


def _count_drafts(readings: Mapping[str, str], numbers: Mapping[str, float]) -> SpecStats:
    """Return the counts behind rates: accepted tokens over the sum of all positions' rates are the drafts."""
    rates = [float(text) for text in readings.get("rates", "").split(",") if text.strip()]
    accepted, drafted = int(numbers.get("accepted", 0)), int(numbers.get("drafted", 0))
    if not drafted:
        return SpecStats()
    of_a_draft = sum(rates)
    drafts = round(accepted / of_a_draft) if accepted and of_a_draft > 0 else -(-drafted // max(1, len(rates)))
    return SpecStats(
        num_drafts=drafts,
        num_draft_tokens=drafted,
        num_accepted_tokens=accepted,
        accepted_per_pos=tuple(round(rate * drafts) for rate in rates),
    )
