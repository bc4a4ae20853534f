"""Derives windows from the log lines of vLLM, SGLang and llama.cpp, for a server without an accessible metrics page."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import accumulate, combinations, groupby, pairwise, product
from math import ceil, inf, log, sqrt
from operator import attrgetter

from draftwise.backends.vllm_log import StartupLog, find_root_cause
from draftwise.core import Counters, Finding, ServerLoad, SpecStats, Sums, Window
from draftwise.core.grouping import group_by
from draftwise.core.window import LONGEST
from draftwise.knowledge.log_lines import read_stats_log
from draftwise.knowledge.messages import fault, warning
from draftwise.watching.stalls import Stalls, describe_stall, stands_still
from draftwise.watching.watcher import Recent, Snapshot
from draftwise.workloads.workload_rows import to_seconds
from draftwise.workloads.wrapped_lines import LogLine, parse_line, unwrap

_INTERVAL_S = 10.0
"""Default of VLLM_LOG_STATS_INTERVAL, in seconds."""
_LIKELY = 1.5
"""A draft line covers the time since the last one. Beyond this multiple of the interval, it includes idle time."""
_LEAST_DRAFTS = 400
"""Minimum number of drafts on each side of a fall."""
_FALLEN = 0.85
"""A fall leaves at most this share of the acceptance length."""
_RATE_FALLEN = 0.7
"""The same of the share of draft tokens accepted."""
_SURE = 19.0
"""3.5 standard errors of requests with 180 drafts each and a spread of 40 %, times the root of the drafts."""
_PARTS = 60
"""Parts of a log between which a fall that ended is looked for."""
_ALIKE = log(1.1)
"""Span of the loads, and of the tokens per step, under which steps are compared."""
_REQUEST_S = 2000.0
"""Seconds of requests over which the number of those that run is averaged: 200 readings of vLLM of one request."""
_SLOWED = 0.75
"""Slower steps are at most this share of those before. Contexts and prompts of steady traffic change fewer."""
_SLOW_S = 300.0
"""Least seconds on each side of a slowdown."""
_FEWER_HITS, _MANY_HITS, _HITS_S = 0.5, 0.2, 1800.0
"""Largest share that a fall of the prefix hits leaves, the least hits before, and the least seconds on each side, more
than a warm-up takes."""
_RECENT = 1000
"""Requests of which vLLM logs the prefix hits."""
_SURE_PACE, _MOST_RUNNING = 22.0, 8.0
"""7 standard errors of a number read every 10 s with a spread of its root, times that root, up to a number."""
_FAR_S = 4e9
"""Seconds since the epoch that no clock shows."""
_STOOD_S = 60.0
"""Seconds without a token that are no long prompt."""
_DEATHS = 2
_STARTS = 5
"""Most starts with another k within a log; more changes are a schedule's."""
_TAIL = 2000
"""Number of lines after the last statistics to search for an error."""
_COUNTS = frozenset({"accepted", "drafted"})
_ROUNDED = 0.02
"""Difference between an acceptance length and its parts, of which there are up to twenty."""
_LEAST_SHARE = 0.1
"""Acceptance rate from which two digits after the point tell the length of a draft."""
_HALF = 0.00501
"""Largest rounding of two digits after the point, and of a float."""
_LONGEST_STEP = 1000
"""Acceptance length above which a line is damaged."""
_ZONES = timedelta(days=1)
"""Largest time-zone offset: lines use their machine's local time without naming the zone."""


@dataclass(slots=True)
class _Entry:
    """An engine's line, and the one about drafts that follows it."""

    engine: str
    at_s: float
    since_s: float | None
    """Seconds since the engine's previous line, at most the interval of lines; None for the first one."""
    readings: dict[str, str] = field(default_factory=dict)
    is_about_drafts: bool = False


@dataclass(frozen=True, slots=True)
class _Fall:
    sure: float
    """How sure it is."""
    values: tuple[float, float]
    """What fell: before, and in it."""
    parts: tuple[Sequence[Window], Sequence[Window], Sequence[Window]]
    """An engine's windows before it, in it, and after it."""


@dataclass(slots=True)
class _ServerLog:
    """What is kept of a server's log."""

    head: list[str] = field(default_factory=list)
    """The last lines before its statistics."""
    kept: list[str] = field(default_factory=list)
    """Its statistics."""
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL))
    """The last lines after them."""
    deaths: int = 0
    """Times that an engine died, or a server restarted without shutting down, between two statistics."""

    def take(self, line: str) -> None:
        """Sort in the next line."""
        facts = read_stats_log()
        if not (facts.begins.search(line) or facts.drafts.search(line)):
            self.tail.append(line)
            return
        self.head = self.head if self.kept else list(self.tail)
        died, began, ended = (any(map(each.search, self.tail)) for each in (facts.dies, facts.start, facts.end))
        self.deaths += bool(self.kept) and (died or (began and not ended))
        self.kept.append(line)
        self.tail.clear()


def see_log(lines: Iterable[str], *, name: str, now: datetime | None = None) -> Snapshot:
    """Return a snapshot of the last minutes of a log.

    Args:
        lines: lines of the log.
        name: name of the log.
        now: latest possible time of a line, because vLLM writes no year. None: the machine's current time.
    """
    now = now or datetime.now(tz=UTC)
    wrapped = (LogLine(number=n, where=name, value=parse_line(text.rstrip())) for n, text in enumerate(lines, 1))
    logs = dict[str, _ServerLog]()
    for line in unwrap(wrapped):
        logs.setdefault(line.source, _ServerLog()).take(_add_time(line))
    each = [_see_server(kept, source if source and len(logs) > 1 else name, now) for source, kept in logs.items()]
    seen = [one for one in each if one.windows] or each[:1] or [_see_server(_ServerLog(), name, now)]
    others = [finding for one in each if one not in seen for finding in one.findings if finding.code != "no-statistics"]
    return Snapshot(
        at_s=max(one.at_s for one in seen),
        windows=tuple(window for one in seen for window in one.windows),
        recent=tuple(window for one in seen for window in one.recent),
        findings=(*others, *(finding for one in seen for finding in one.findings)),
    )


def _add_time(line: LogLine) -> str:
    """Return the text of a line; statistics without a time get their wrapper's."""
    text, time_s, of = str(line.value), to_seconds(line.time), read_stats_log()
    if (
        time_s is None
        or not 0 < time_s < _FAR_S
        or of.time.search(text)
        or not (of.begins.search(text) or of.drafts.search(text))
    ):
        return text
    return f"{datetime.fromtimestamp(time_s, tz=UTC):%Y-%m-%d %H:%M:%S} {text}"


def _see_server(log: _ServerLog, name: str, now: datetime) -> Snapshot:
    """Return a snapshot of one server's log."""
    recent, stalls, past, last = Recent(), Stalls(), list[Window](), None
    head, kept, tail, deaths = log.head, log.kept, list(log.tail), log.deaths
    if _is_newest_first(kept, now):
        kept, tail = kept[::-1], head[::-1]
    told = next((line for line in tail if read_stats_log().dies.search(line)), None)
    died = [] if told is None else [fault("engine-dies", case="log", name=name, cause=find_root_cause(tail) or told)]
    if deaths >= _DEATHS:
        died.append(fault("engine-dies", case="again", name=name, count=deaths + len(died)))
    for window in read_log(kept, instance=name, now=now):
        recent.add([window])
        stalls.add([window])
        past.append(window)
        last = window
    if last is None:
        start = StartupLog(0.0)
        start.take(tail, 0.0)
        if not (died or start.is_ready) and (cause := find_root_cause(tail)):
            died = [fault("engine-dies", case="log", name=name, cause=cause)]
        off = any(map(read_stats_log().off.search, tail))
        none = warning("no-statistics", case="off", name=name) if off else warning("no-statistics", name=name)
        return Snapshot(at_s=0.0, windows=(), recent=(), findings=(*died, none))
    end_s = last.start_s + last.duration_s
    recent.forget(end_s)
    seen = tuple(recent.read())
    mute = warning("no-statistics", case="drafts", name=name) if any(map(_is_mute, seen)) else None
    found = filter(
        None,
        (
            *(find(past, name) for find in (_find_stall, _find_corrupted, _find_new_k)),
            *_find_falls(past, name),
            mute,
        ),
    )
    waits = [int(hit[1]) for line in tail if not told and (hit := read_stats_log().hangs.search(line))]
    hung = list(stalls.find())
    if waits and not hung:
        text = f"After the last statistics in {name}, workers did not answer their engine for {sum(waits)} s."
        hung = [fault("engine-hung", text=text, where=name)]
    return Snapshot(at_s=end_s, windows=(last,), recent=seen, findings=(*died, *hung, *found))


def _is_mute(window: Window) -> bool:
    """Return whether lines about drafts do not tell what these gave."""
    told = (window.acceptance_length, window.tokens_per_step, window.counters.spec.acceptance_rate)
    return told == (None, None, None) and (not window.tells_acceptance or window.counters.spec.num_accepted_tokens > 0)


def _is_newest_first(lines: list[str], now: datetime) -> bool:
    """Return whether lines go back in time, as viewers of logs export them."""
    times = [_read_time(line, now, 0.0) for line in lines]
    known = [at_s for at_s in times if at_s]
    falls, rises = (sum(sign * (b - a) > 0 for a, b in pairwise(known)) for sign in (-1, 1))
    return falls > rises


def _find_stall(windows: Sequence[Window], name: str) -> Finding | None:
    """Return the longest time in which an engine stood still and after which it went on."""
    runs = []
    for each in group_by(lambda window: window.engine, windows).values():
        for still, run in groupby(each, key=stands_still):
            stood = list(run)
            if still and stood[-1] is not each[-1]:
                runs.append((sum(window.duration_s for window in stood), stood[0].start_s, stood[-1]))
    seconds, start_s, last = max(runs, key=lambda run: run[0], default=(0.0, 0.0, None))
    if last is None or seconds < _STOOD_S:
        return None
    at = datetime.fromtimestamp(start_s, tz=UTC)
    text = f"{describe_stall(last, seconds)[:-1]} from {at:%Y-%m-%d %H:%M:%S} on. Then it went on."
    return fault("engine-hung", text=text, where=name)


def _find_corrupted(windows: Sequence[Window], name: str) -> Finding | None:
    """Return how many requests had no valid logits."""
    count = sum(each.sums.corrupted or 0.0 for each in windows)
    return fault("logits-corrupted", name=name, count=count) if count else None


def _find_new_k(windows: Sequence[Window], name: str) -> Finding | None:
    """Return when drafts got another length for good, as at a start with another k: a position for each token."""
    found = None
    for engine in group_by(lambda window: window.engine, windows).values():
        told = [(k, each) for each in engine if (k := len(each.counters.spec.accepted_per_pos))]
        runs = [(k, [each for _, each in run]) for k, run in groupby(told, key=lambda pair: pair[0])]
        if 1 < len(runs) <= _STARTS and all(sum(map(_count_steps, run)) >= _LEAST_DRAFTS for _, run in runs):
            (before, _), (after, since) = runs[-2:]
            at = datetime.fromtimestamp(since[0].start_s, tz=UTC)
            found = warning("k-changed", before=before, after=after, at=at, name=name)
    return found


def _find_falls(windows: Sequence[Window], name: str) -> Iterator[Finding]:
    """Yield when acceptance, the pace of steps and prefix hits fell the most in the log, if by more than noise."""
    engines = list(group_by(lambda window: window.engine, windows).values())
    for split in (_split_lengths, _split_rates, _split_paces, _split_hits):
        surest = max(filter(None, map(split, engines)), key=lambda fall: fall.sure, default=None)
        if surest is None:
            continue
        before, within, after = surest.parts
        of = f" of engine {within[0].engine}" if within[0].engine and len(engines) > 1 else ""
        at, until = (datetime.fromtimestamp(part[0].start_s if part else 0.0, tz=UTC) for part in (within, after))
        ended = f", until {until:%Y-%m-%d %H:%M:%S}" if after else ""
        then, now = surest.values
        if split is _split_lengths:
            yield warning("fell-in-log", of=of, before=then, after=now, at=at, until=ended, name=name)
        elif split is _split_rates:
            yield warning("fell-in-log", case="rate", of=of, before=then, after=now, at=at, until=ended, name=name)
        elif split is _split_hits:
            yield warning("fell-in-log", case="hits", of=of, before=then, after=now, at=at, name=name)
        else:
            held = [_read_cache_per_request(part) for part in (before, within)]
            cache = f" The KV cache per request is {held[1] / held[0]:.1f} times what it was." if all(held) else ""
            yield warning("slower-in-log", of=of, ratio=then / now, at=at, until=ended, cache=cache, name=name)


def _read_cache_per_request(windows: Sequence[Window]) -> float:
    """Return the share of the cache that a running request holds; 0 if it is not told."""
    running = sum(each.load.running or 0.0 for each in windows)
    return sum(each.load.kv_usage or 0.0 for each in windows) / running if running else 0.0


def _count_steps(window: Window) -> int:
    """Return the drafts; where a line has only their tokens, the steps, few of which have no draft."""
    stats = window.counters.spec
    return stats.num_drafts or (window.sequence_steps or 0 if stats.num_draft_tokens else 0)


def _split_lengths(windows: Sequence[Window]) -> _Fall | None:
    """Return the surest fall of an engine's acceptance length."""
    known = [each for each in windows if _count_steps(each)]
    drafts = list(map(_count_steps, known))
    given = [count + each.counters.spec.num_accepted_tokens for count, each in zip(drafts, known, strict=True)]
    return _split(known, given, drafts, least=_LEAST_DRAFTS, share=_FALLEN, sure=_SURE)


def _split_rates(windows: Sequence[Window]) -> _Fall | None:
    """Return the surest fall of the share of draft tokens accepted, where lines tell neither drafts nor steps."""
    if any(map(_count_steps, windows)):
        return None
    known = [each for each in windows if each.counters.spec.num_draft_tokens]
    tops = [each.counters.spec.num_accepted_tokens for each in known]
    bottoms = [each.counters.spec.num_draft_tokens for each in known]
    return _split(known, tops, bottoms, least=LONGEST * _LEAST_DRAFTS, share=_RATE_FALLEN, sure=_SURE * sqrt(LONGEST))


def _split_paces(windows: Sequence[Window]) -> _Fall | None:
    """Return the surest fall of an engine's steps per request and second, under the same load and acceptance.

    A closed loop keeps the running requests, and an open one the throughput.
    """
    told = [each for each in windows if each.load.running is not None and each.sequence_steps]
    known = _join(each for each in told if _count_steps(each)) or _join(told)
    if not known:
        return None
    steps = [each.sequence_steps or 0 for each in known]
    request_s = [(each.batch or 0.0) * each.duration_s for each in known]
    unit = sum(each.duration_s for each in known) / sum(steps)
    sure = _SURE_PACE / sqrt(min(_MOST_RUNNING, sum(request_s) / unit / sum(steps)))
    falls = []
    read = attrgetter("tokens_per_step", "mean_k")
    for load, shift in product((attrgetter("batch"), attrgetter("output_tokens_per_s")), (0.0, 0.5)):
        spans = [(load(each), *read(each)) for each in known]
        kinds = [tuple(round(log(value or 1.0) / _ALIKE + shift) for value in span) for span in spans]
        of_kind = group_by(lambda row: row[0], zip(kinds, steps, request_s, strict=True))
        pace = {kind: sum(row[1] for row in rows) / sum(row[2] for row in rows) for kind, rows in of_kind.items()}
        expected = [unit * pace[kind] * seconds for kind, seconds in zip(kinds, request_s, strict=True)]
        made = [unit * count for count in steps]
        falls.append(_split(known, made, expected, least=_SLOW_S, share=_SLOWED, sure=sure))
    return max(filter(None, falls), key=lambda fall: fall.sure, default=None)


def _split_hits(windows: Sequence[Window]) -> _Fall | None:
    """Return the surest fall of an engine's prefix hits that has not ended."""
    known = [each for each in windows if each.prefix_hit_rate is not None]
    seconds = [each.duration_s for each in known]
    hits = [seen.duration_s * max(seen.prefix_hit_rate or 0.0, 0.01) for seen in known]
    fall = _split(known, hits, seconds, least=_HITS_S, share=_FEWER_HITS, sure=0.0, may_end=False)
    return fall if fall is not None and fall.values[0] >= _MANY_HITS else None


def _join(windows: Iterable[Window]) -> list[Window]:
    """Return an engine's windows joined to such whose number of running requests is known well enough."""
    joined, last = list[Window](), None
    for window in windows:
        last = window if last is None else last.followed_by(window)
        if (last.batch or 0.0) * last.duration_s >= _REQUEST_S:
            joined.append(last)
            last = None
    return joined


def _split(
    known: Sequence[Window],
    tops: Sequence[float],
    bottoms: Sequence[float],
    *,
    least: float,
    share: float,
    sure: float,
    may_end: bool = True,
) -> _Fall | None:
    """Return the surest fall of a ratio of sums.

    Args:
        known: windows of an engine.
        tops: what is summed, of each window.
        bottoms: what it is divided by, which is also its weight.
        least: smallest sum of `bottoms` on each side.
        share: largest share that a fall leaves.
        sure: least certainty.
        may_end: whether a fall that ended counts.
    """
    above, below = [0, *accumulate(tops)], [0, *accumulate(bottoms)]
    end = len(known)

    def measure(first: int, last: int) -> float:
        return (above[last] - above[first]) / (below[last] - below[first])

    def weigh(fall: tuple[int, int]) -> float:
        """Return the certainty of a fall: a part that is near an end compares few drafts with many."""
        others = [(0, fall[0]), *([] if fall[1] == end else [(fall[1], end)])]
        fewest = min(below[last] - below[first] for first, last in (*others, fall))
        if fewest < least:
            return -inf
        change = log(min(measure(*each) for each in others) / measure(*fall))
        found = change * sqrt(fewest)
        return found if change > -log(share) and found > sure else -inf

    step = max(1, end // _PARTS)
    falls = [(first, end) for first in range(1, end)]
    falls += combinations(range(step, end, step), 2) if may_end else []
    best = max(falls, key=weigh, default=None)
    if best is None or weigh(best) == -inf:
        return None
    if best[1] < end:
        best = max(((first, best[1]) for first in range(best[0] - step + 1, best[0] + step)), key=weigh)
        best = max(((best[0], min(last, end - 1)) for last in range(best[1] - step + 1, best[1] + step)), key=weigh)
    parts = known[: best[0]], known[best[0] : best[1]], known[best[1] :]
    return _Fall(weigh(best), (measure(0, best[0]), measure(*best)), parts)


def read_log(lines: Iterable[str], *, instance: str, now: datetime) -> Iterator[Window]:
    """Yield a window for each statistics line of an engine.

    vLLM logs nothing while idle, and rates have three digits: counts derived from them have the same precision.

    Args:
        lines: lines of the log, from all engines of a server.
        instance: name of the server.
        now: latest possible time of a line.
    """
    tells_drafts: dict[str, bool] = {}
    entries = list(_read_entries(lines, now))
    k_of = {engine: _find_k(each) for engine, each in group_by(lambda entry: entry.engine, entries).items()}
    for entry in entries:
        window = _to_window(entry, instance, k_of[entry.engine])
        told = before = tells_drafts.get(entry.engine)
        tells_steps = "step_length" in entry.readings
        if entry.is_about_drafts or tells_steps:
            tells = tells_steps or "length" in entry.readings or window.counters.spec.num_drafts > 0
            told = tells_drafts[entry.engine] = tells
        # A release that tells more or less than the one before was started since.
        yield replace(window, counts_drafts=told or None, restarted=before is not None and told != before)


def _read_entries(lines: Iterable[str], now: datetime) -> Iterator[_Entry]:
    """Yield the lines of each engine, joined by the process that wrote them; one about drafts may stand alone."""
    facts = read_stats_log()
    unfinished: dict[str, _Entry] = {}
    ended: dict[str, float] = {}
    shortest: dict[str, float] = {}
    at_s = now.timestamp()
    for line in lines:
        begins, drafts = facts.begins.search(line), facts.drafts.search(line)
        if begins is None and drafts is None:
            continue
        writer = process[1] if (process := facts.process.search(line)) else ""
        is_new = begins is not None or writer not in unfinished
        untimed_s = at_s + _INTERVAL_S if is_new and ended else at_s
        at_s = _read_time(line, now, untimed_s)
        entry = unfinished.pop(writer, None)
        if begins is not None and entry is not None:
            yield entry
        if is_new or entry is None:
            engine = "" if begins is None else next(filter(None, begins.groups()), "")
            since_s = at_s - ended[engine] if engine in ended else 0.0
            shortest[engine] = min(shortest.get(engine, inf), since_s or inf)
            is_idle = since_s > _LIKELY * shortest[engine]  # a line covers an interval, however long none came
            entry = _Entry(engine, at_s, shortest[engine] if is_idle else since_s or None)
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


def _find_k(entries: Iterable[_Entry]) -> int:
    """Return the only k that fits an engine's lines of SGLang; 0 without one.

    Its accept rate is of the drafts' tokens in newer releases. In older ones, steps count their last token on both
    sides: the acceptance length over k + 1.
    """
    fits: set[tuple[int, int]] | None = None
    for each in entries:
        length, share = (float(each.readings.get(name, 0)) for name in ("step_length", "step_rate"))
        if not 1 <= length <= _LONGEST_STEP or share < _LEAST_SHARE:
            continue
        found = set[tuple[int, int]]()
        for last in (0, 1):
            low, high = ((length - 1 + last + sign * _HALF) / (share - sign * _HALF) for sign in (-1, 1))
            found |= {(last, whole - last) for whole in range(max(ceil(low), 1 + last), int(high) + 1)}
        fits = found if fits is None else fits & found
    return next(iter(fits))[1] if fits is not None and len(fits) == 1 else 0


def _to_window(entry: _Entry, instance: str, k: int) -> Window:
    numbers = {name: float(text) for name, text in entry.readings.items() if name not in ("rates", "percent")}
    duration_s = _find_duration(entry, numbers)
    for count in _COUNTS - numbers.keys():  # of a line that was cut, the rates
        if f"{count}_per_s" in numbers:
            numbers[count] = round(numbers[f"{count}_per_s"] * duration_s)
    rate, percent = numbers.get("generation_tokens_per_s"), numbers.get("kv_percent")
    usage = numbers.get("kv_share") if percent is None else percent / 100
    hits, tokens = numbers.get("hits_percent"), numbers.get("tokens")
    if rate is not None:
        tokens = round(rate * duration_s)
    if rate is not None and numbers.get("step_length", 0.0) >= 1:
        _count_steps_of_drafts(numbers, rate * duration_s, k)
    return Window(
        pool="spec",
        instance=instance,
        engine=entry.engine,
        start_s=entry.at_s - duration_s,
        duration_s=duration_s,
        counters=Counters(
            spec=_count_drafts(entry.readings, numbers),
            generation_tokens=None if tokens is None else int(tokens),
            prefix_queries=None if hits is None else _RECENT,
            prefix_hits=None if hits is None else round(_RECENT * hits / 100),
        ),
        load=ServerLoad(
            running=numbers.get("running"),
            waiting=numbers.get("waiting"),
            kv_usage=usage,
        ),
        sums=Sums(preemptions=numbers.get("preemptions"), corrupted=numbers.get("corrupted")),
        tells_acceptance=not entry.is_about_drafts or numbers.keys() >= _COUNTS,
    )


def _count_steps_of_drafts(numbers: dict[str, float], tokens: float, k: int) -> None:
    """Add the counts of a line of SGLang, which tells tokens of a step: every step verifies a draft."""
    steps, share = tokens / numbers["step_length"], numbers.get("step_rate", 0.0)
    numbers["accepted"] = round(tokens - steps)
    numbers["drafted"] = k * round(steps) if share >= _LEAST_SHARE else 0
    numbers["drafts"] = round(steps)


def _find_duration(entry: _Entry, numbers: Mapping[str, float]) -> float:
    """Return the seconds that a line is about: exactly where drafts were counted all the time, else to the second.

    A line of SGLang comes after some number of steps, and covers no time that another line does not bound.
    """
    if "kv_share" in numbers:
        return entry.since_s or 0.0
    if "eval_ms" in numbers:
        return numbers["eval_ms"] / 1000
    roughly = _INTERVAL_S if entry.since_s is None or entry.since_s <= 0 else entry.since_s
    pairs = (("drafted", "drafted_per_s"), ("accepted", "accepted_per_s"))
    exact = (numbers[count] / numbers[rate] for count, rate in pairs if numbers.get(rate) and count in numbers)
    alone = "generation_tokens_per_s" not in numbers
    return next((found for found in exact if alone or roughly / _LIKELY < found < roughly * _LIKELY), roughly)


def _count_drafts(readings: Mapping[str, str], numbers: Mapping[str, float]) -> SpecStats:
    """Return the counts behind rates: accepted tokens over those of a draft are the drafts.

    Lines of 0.8 tell neither these nor the positions: how many drafts there were is unknown then.
    """
    rates = [float(text) for text in readings.get("rates", "").split(",") if text.strip()]
    # A cut line lacks what follows its rates; before 0.10.2 nothing does, and only their sum can tell.
    length = numbers.get("length", 1.0) if "drafted_per_s" not in numbers else 1 + sum(rates)
    if "percent" not in readings or abs(1 + sum(rates) - length) > _ROUNDED:
        rates = []
    if _COUNTS - numbers.keys():
        return SpecStats()
    accepted, drafted = int(numbers["accepted"]), int(numbers["drafted"])
    if "drafts" in numbers:
        return SpecStats(num_drafts=int(numbers["drafts"]), num_draft_tokens=drafted, num_accepted_tokens=accepted)
    of_a_draft = sum(rates) or numbers.get("length", 1.0) - 1
    most = int(min(numbers.get("tokens", 0.0), drafted)) if "length" in numbers and not accepted else 0
    rejected = -(-drafted // len(rates)) if rates else most  # of llama.cpp, at most a draft for each token
    drafts = round(accepted / of_a_draft) if accepted and of_a_draft > 0 else rejected
    return SpecStats(
        num_drafts=drafts,
        num_draft_tokens=drafted,
        num_accepted_tokens=accepted,
        accepted_per_pos=tuple(round(rate * drafts) for rate in rates),
    )
