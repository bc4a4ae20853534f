"""Watches servers: reads their counters at intervals, and keeps each engine's recent past in bounded memory."""

from __future__ import annotations

import asyncio
import gzip
import math
import re
import time
import zlib
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from typing import Protocol

from draftwise.backends.address import check_url
from draftwise.backends.backend import BrokenStream, Exchange
from draftwise.backends.exposition import EngineReading, find_engine, find_unknown, parse_engines, parse_start
from draftwise.backends.wire import Wire
from draftwise.core import BackendError, Finding, ServerLoad, Window
from draftwise.core.window import LONGEST, blend_lengths, get_sums
from draftwise.knowledge.messages import fault, note, warning
from draftwise.knowledge.metrics import OLD_METRICS
from draftwise.machine.network import find_proxy
from draftwise.watching.page_identity import START_TOLERANCE_S, PageIdentity, may_be_shared, read_identity
from draftwise.watching.stalls import Stalls, tell_hung_or_copied

CLOCKS_DIFFER_S = 30.0
"""Allowed difference in seconds between the clocks of two machines."""
_FASTER = 2.0
"""Largest growth of a server's counters between two looks, as a multiple of its fastest observed rate."""
_MANY_TOKENS, _ALMOST = 10_000, 1e-3
"""Tokens from which two processes do not agree by chance, and the share by which one page may be ahead."""
PLAIN = "plain"
"""Name of the pool whose servers do not speculate."""
_EACH_SERVER = "the address of each server (port 8000 of a pod, or the /metrics page that Prometheus scrapes)"
_GATEWAY = f"a gateway has no metrics of its own there. Pass {_EACH_SERVER}, or --prometheus URL"
_NAME = re.compile(r"^(?!(?:process|python|go|http|promhttp)_)([A-Za-z]\w*[_:]\w+)(?:\{.*\})? [-+\d.NI]", re.MULTILINE)
"""Name of a sample that is not of every program."""
_TRITON = (
    "this is Triton's own page. Its vLLM backend adds vLLM's counters if the model's config.pbtxt sets "
    'REPORT_CUSTOM_METRICS to "true"'
)
_ANSWERED = 'http_requests_total{handler="/v1/'
_STATS_OFF = "it answers requests, so its statistics are off. Start it without --disable-log-stats"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One reading of a server's metrics page."""

    pool: str
    instance: str
    at_s: float
    """Time of the reading, in seconds since the epoch."""
    clock_s: float
    """The same on a monotonic clock, in seconds: for durations."""
    engines: tuple[EngineReading, ...]
    server: str | None
    """Engine that the metrics belong to, such as vLLM; None if no sample is known."""
    started_s: float | None
    """Start of the process, in seconds since the epoch; None if not reported."""
    revision: str = ""
    """Label of the server's roll-out; empty if unknown."""
    several: bool = False
    """Whether several processes answered at this address during the look."""
    unknown: tuple[str, ...] = ()
    """Metric names about drafts that no known release has."""


def read_page(text: str, *, pool: str, instance: str, at_s: float, clock_s: float, revision: str = "") -> Look:
    """Parse a metrics page."""
    return Look(
        pool=pool,
        instance=instance,
        at_s=at_s,
        clock_s=clock_s,
        engines=parse_engines(text),
        server=find_engine(text),
        started_s=parse_start(text),
        revision=revision,
        unknown=find_unknown(text),
    )


def grow(before: Look, after: Look) -> Iterator[Window]:
    """Yield each engine's window between two looks at one server.

    If an engine restarted in between, its window covers only the time since. An engine that is new, that is gone, or
    whose pages are inconsistent has no window.
    """
    for earlier, later in _pair_engines(before, after):
        restarted = _restarts(before, after, earlier, later)
        if restarted or not (_lacks(earlier, later) or _falls(earlier, later)):
            yield _compare(before, after, earlier, later, restarted=restarted)


def begins_anew(before: Look, after: Look) -> bool:
    """Return whether an engine restarted between two looks at one server."""
    return any(_restarts(before, after, *pair) for pair in _pair_engines(before, after))


def _restarts(before: Look, after: Look, earlier: EngineReading, later: EngineReading) -> bool:
    return _is_new_start(before, after) or _begins_anew(earlier, later)


def _pair_engines(before: Look, after: Look) -> Iterator[tuple[EngineReading, EngineReading]]:
    known = {engine.engine: engine for engine in before.engines}
    return ((known[each.engine], each) for each in after.engines if each.engine in known)


def _lacks(earlier: EngineReading, later: EngineReading) -> bool:
    """Return whether one of two pages of a process has a part of the counters only."""
    return earlier.told != later.told


def is_damaged(before: Look, after: Look) -> bool:
    """Return whether a page lacks counters that its process showed before, or shows lower values.

    Counters of a process only grow, so such a page is truncated, or mixed from several processes.
    """
    if _is_new_start(before, after):
        return False
    pairs = list(_pair_engines(before, after))
    cut = any(earlier.told - later.told for earlier, later in pairs)
    return cut or any(_falls(*pair) and not _begins_anew(*pair) for pair in pairs)


def falls_back(before: Look, after: Look) -> bool:
    """Return whether counters fell between two complete pages at one address without start times."""
    pairs = list(_pair_engines(before, after))
    return after.started_s is None and any(_falls(*pair) and not _lacks(*pair) for pair in pairs)


def _compare(before: Look, after: Look, earlier: EngineReading, later: EngineReading, *, restarted: bool) -> Window:
    counters, sums = later.counters - earlier.counters, later.sums - earlier.sums
    tells = bool(later.tells_acceptance)
    if not later.counts_drafts:
        accepted = max(0, counters.spec.num_accepted_tokens)  # follows from other counters, and may fall
        verified = (counters.generation_tokens or 0) - (sums.finished or 0) - accepted
        tells = tells and accepted <= LONGEST * verified  # else steps that verified nothing count as accepted
        counters = replace(counters, spec=replace(counters.spec, num_accepted_tokens=accepted if tells else 0))
    awake = (earlier.sleeping, later.sleeping)
    return Window(
        pool=after.pool,
        instance=after.instance,
        engine=later.engine,
        start_s=before.at_s,
        duration_s=after.clock_s - before.clock_s,
        counters=later.counters if restarted else counters,
        load=_average(earlier.load, later.load),
        sums=later.sums if restarted else sums,
        counts_drafts=later.counts_drafts,
        tells_acceptance=tells or after.pool == PLAIN,
        restarted=restarted,
        ends_idle=later.load.running == 0 and not later.load.waiting,
        sleeping=None if awake == (None, None) else any(awake),
        adapters=frozenset(name for name, seen_s in later.adapters.items() if seen_s >= before.at_s),
        uptime_s=None if after.started_s is None else after.at_s - after.started_s,
        cache_dtype=later.cache_dtype,
        revision=after.revision,
        model=later.model,
        slower_than=later.slower_than if restarted else _grow_edges(earlier.slower_than, later.slower_than),
    )


def _grow_edges(
    earlier: tuple[tuple[float, float], ...], later: tuple[tuple[float, float], ...]
) -> tuple[tuple[float, float], ...]:
    before = dict(earlier)
    return tuple((edge, count - before[edge]) for edge, count in later if edge in before)


def _is_new_start(before: Look, after: Look) -> bool:
    """Return whether a page is another process's: a clock that is set moves the start, and no counter falls."""
    shift = _find_shift(before, after)
    if shift <= START_TOLERANCE_S:
        return False
    return shift > CLOCKS_DIFFER_S or any(_falls(*pair) for pair in _pair_engines(before, after))


def _find_shift(before: Look, after: Look) -> float:
    """Return by how many seconds the start moved; 0 where it is not told."""
    if before.started_s is None or after.started_s is None:
        return 0.0
    return abs(after.started_s - before.started_s)


def _fits(tokens: float, before: Look, after: Look, pace: float) -> bool:
    """Return whether tokens can be made between two looks at a pace, in tokens a second."""
    return tokens <= _FASTER * pace * max(after.clock_s - before.clock_s, 0.01)


def _are_several(before: Look, after: Look, fastest: float) -> bool:
    """Say whether two looks at one address met different processes that run side by side.

    The start of one process never goes back. A process that was there already at the look before, and did not answer
    then, is another one, unless its clock is late: then it has made no more tokens than fit in between.
    """
    if before.started_s is None or after.started_s is None or not _is_new_start(before, after):
        return False
    was_there = after.started_s < before.at_s - CLOCKS_DIFFER_S
    fresh = _count_tokens(after) < _count_tokens(before) and _fits(_count_tokens(after), before, after, fastest)
    return after.started_s < before.started_s or (was_there and not fresh)


def _contradicts(before: Look, after: Look, fastest: float) -> bool:
    """Say whether of start time and counters, one began anew and the other went on."""
    if before.started_s is None or after.started_s is None:
        return False
    if not _is_new_start(before, after):
        moves = before.started_s + after.at_s - before.at_s  # as does the start of what answers each time anew
        moves_on = _find_shift(before, after) > START_TOLERANCE_S and abs(after.started_s - moves) <= START_TOLERANCE_S
        return moves_on or any(_begins_anew(*pair) for pair in _pair_engines(before, after))
    fell = any(_falls(*pair) for pair in _pair_engines(before, after))
    return not (fell or _fits(_count_tokens(after), before, after, fastest))


def _list_growth(earlier: EngineReading, later: EngineReading) -> list[float]:
    """Return by how much each counter grew that both looks show and that counted anything."""
    return [now - then for then, now in _pair_counts(earlier, later)]


def _pair_counts(one: EngineReading, other: EngineReading) -> Iterator[tuple[float, float]]:
    """Yield the values of every counter that both pages show, where the first is not 0."""
    pairs = zip(_list_counts(one), _list_counts(other), strict=False)  # positions, of which one may have more, are last
    return ((x, y) for x, y in pairs if x and y is not None)


def _list_counts(engine: EngineReading) -> tuple[float | None, ...]:
    """Return every counter; None where the page does not show it."""
    counters, spec = engine.counters, engine.counters.spec
    of_drafts = (spec.num_drafts, spec.num_draft_tokens, spec.num_accepted_tokens)
    return (
        *get_sums(engine.sums),
        *(counters.generation_tokens, counters.prefix_queries, counters.prefix_hits),
        *(of_drafts if engine.counts_drafts else (None, None, None)),  # those that follow from other counters may fall
        *spec.accepted_per_pos,
    )


def _falls(earlier: EngineReading, later: EngineReading) -> bool:
    return any(grown < 0 for grown in _list_growth(earlier, later))


def leave_out_damaged(looks: Iterable[Look]) -> Iterator[Look]:
    """Yield the looks at one server, except damaged ones. Several damaged looks in a row count as valid."""
    last, skipped = None, 0
    for look in looks:
        if last is not None and skipped < DAMAGED and is_damaged(last, look):
            skipped += 1
        else:
            last, skipped = look, 0
            yield look


def _begins_anew(earlier: EngineReading, later: EngineReading) -> bool:
    """Return whether most counters went down, as they do at a new start only."""
    grown = _list_growth(earlier, later)
    return earlier.told <= later.told and 2 * sum(each < 0 for each in grown) > len(grown)


def _average(a: ServerLoad, b: ServerLoad) -> ServerLoad:
    """Return the mean of both ends; of one end where the other does not tell."""

    def each(x: float | None, y: float | None) -> float | None:
        return (x + y) / 2 if x is not None and y is not None else x if y is None else y

    return ServerLoad(
        running=each(a.running, b.running),
        waiting=each(a.waiting, b.waiting),
        kv_usage=each(a.kv_usage, b.kv_usage),
        reported_length=b.reported_length,
        lengths=blend_lengths(a.lengths, b.lengths, 0.5),
    )


_METRICS = "/metrics"
_TIMEOUT_S = 5.0
"""Timeout in seconds for a whole page: slower answers say nothing about the present."""
_READS_AT_FIRST = 10
"""Pages of a look until an address has shown to be one server: of two behind it, 1 in 512 looks meets only one."""
_READS = 3
"""Pages of a look after that, as long as each continues the one before."""
_COPIED_S = 5.0
"""Seconds in which a process that is read several times takes some CPU time."""
_CLEAN = 2
"""Looks with other counts than zero in which an address has to show one server."""


class CountersPage(Protocol):
    """Source of one server's counters."""

    @property
    def pool(self) -> str:
        """Name of the server's pool."""

    @property
    def instance(self) -> str:
        """Name of the server."""

    async def look(self) -> Look:
        """Read the page now.

        Raises:
            BackendError: the page cannot be read, or comes from no known server.
        """

    def close(self) -> None:
        """Release its resources."""


class HttpPage:
    """A server's /metrics, read several times per look on new connections: inconsistent pages reveal a load balancer.

    Args:
        pool: pool of the server.
        url: the server's URL, with or without `/v1`, or the page's own, which ends in `/metrics`.
        headers: sent with every request.
        tls: TLS context for https.
        timeout_s: timeout for the whole page, in seconds.

    Raises:
        InvalidSetup: the URL is not an http(s) URL.
    """

    def __init__(
        self, pool: str, url: str, *, headers: Mapping[str, str] | None = None, timeout_s: float = _TIMEOUT_S
    ) -> None:
        check_url(url, where="URL")
        self.pool = pool
        self.instance = name_server(url)
        self._timeout_s = timeout_s
        self._last: PageIdentity | None = None
        self._written_s = 0.0
        self._date: str | None = None
        self._clean = 0
        self._wire = Wire(
            self.instance, headers=headers, now=time.perf_counter, proxy=find_proxy(self.instance), connect_s=timeout_s
        )  # fmt: skip

    async def look(self) -> Look:
        """Read the page now.

        Raises:
            BackendError: the server does not answer in time, or the page has no counters of a known server.
        """
        try:
            text, answer = await self._read()
            clock_s, page = answer.finished, read_identity(text)
            fits = self._last is None or not self._last.cannot_precede(page)
            reads = _READS if fits and self._clean >= _CLEAN else _READS_AT_FIRST
            pages, several, end_s = [page], False, clock_s + self._timeout_s
            for _ in range(reads - 1):
                if several or time.perf_counter() > end_s:
                    break
                self._wire.turn()
                with suppress(BackendError):
                    text, answer = await self._read()
                    clock_s, page = answer.finished, read_identity(text)
                    several = any(each.cannot_precede(page) for each in pages)
                    pages.append(page)
        finally:
            self._wire.close()
        at_s = time.time() - (time.perf_counter() - clock_s)
        look = read_page(text, pool=self.pool, instance=self.instance, at_s=at_s, clock_s=clock_s)
        if look.server is None or _has_only_gauges(look):
            raise BackendError(f"{self.instance}{_METRICS} shows no counters of a known server: {_explain_page(text)}.")
        copied = self._last is not None and self._last.is_copied(page)
        stored = self._last is not None and self._last.counted == page.counted and _is_stored(answer, self._date)
        old = not stored and self._last is not None and self._last.may_be_copied(page) and await self._is_old(page)
        if not (copied or stored or old):
            self._written_s = clock_s
        self._last, self._date = page, answer.headers.get("date")
        if (old_s := clock_s - self._written_s) >= _COPIED_S:
            why = (
                "not even the CPU time of the process, which a page costs"
                if copied
                else "its headers tell of a stored copy"
                if stored
                else "a request with a query gets another page"
            )
            raise BackendError(
                f"{self.instance}{_METRICS} has not changed for {old_s:.0f} s: {why}. So a cache answers in its place. "
                "Compare it with the page of the pod itself."
            )
        self._clean = 0 if several else self._clean + bool(_count_tokens(look))
        return replace(look, several=several)

    async def _is_old(self, page: PageIdentity) -> bool:
        """Return whether a server counts more than its page says to a request that no cache has the answer to."""
        with suppress(BackendError):
            text, _ = await self._read(f"?now={time.time():.3f}")
            self._wire.close()
            fresh = read_identity(text).counted
            return page.counted.keys() == fresh.keys() and page.counted != fresh
        return False

    async def _read(self, query: str = "") -> tuple[str, Exchange]:
        """Return the page, read on a new connection, with the answer that brought it."""
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._wire.get(_METRICS + query, anew=True)
        except TimeoutError:
            raise BackendError(f"{self.instance} did not return its counters within {self._timeout_s:g} s.") from None
        except BrokenStream as error:
            raise BackendError(f"{self.instance} does not answer ({error}).") from None
        if not 200 <= answer.status < 300:
            if answer.status == 404 and await self._is_ollama():
                raise BackendError(f"{self.instance} is Ollama, which has no metrics page and tells nothing of drafts.")
            raise BackendError(f"{self.instance}{_METRICS} answers {answer.status}{_explain(answer.status)}.")
        page = b"".join(data for _, data in answer.received)
        with suppress(OSError, EOFError, zlib.error):
            page = gzip.decompress(page)  # by a proxy that was not asked to
        return page.decode("utf-8-sig", errors="replace"), answer

    async def _is_ollama(self) -> bool:
        """Return whether the server answers at its root as Ollama does."""
        with suppress(BackendError, TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                answer = await self._wire.get("/", anew=True)
            return b"".join(data for _, data in answer.received).startswith(b"Ollama")
        return False

    def close(self) -> None:
        """Close the connection."""
        self._wire.close()


def _explain_page(text: str) -> str:
    """Return why a page may have no counters of a server."""
    if text.startswith("nv_inference_") or "\nnv_inference_" in text:
        return _TRITON
    if _ANSWERED in text:
        return _STATS_OFF
    names = list(dict.fromkeys(_NAME.findall(text)))[:3]
    shown = f"only {', '.join(names)} and the like. draftwise does not read this engine; if it is a gateway, pass"
    return f"{shown} {_EACH_SERVER}, or --prometheus URL" if names else _GATEWAY


def _has_only_gauges(look: Look) -> bool:
    """Return whether a page has names of vLLM's, but none of its counters, which vLLM always shows: a router's."""
    counts = (count for each in look.engines for count in _list_counts(each))
    return any(each.told for each in look.engines) and all(count is None for count in counts)


def _is_stored(answer: Exchange, date: str | None) -> bool:
    """Return whether a cache had the answer: it says so, or the answer has the date of an earlier one."""
    headers = dict(answer.headers)
    made, age = headers.pop("date", None), headers.pop("age", "0").strip()
    return age not in ("", "0") or "hit" in " ".join(headers.values()).lower() or (made is not None and made == date)


def name_server(url: str) -> str:
    """Return the server's URL from any of its URLs. Findings use it as the server's name."""
    return url.partition("?")[0].rstrip("/").removesuffix(_METRICS).removesuffix("/v1")


def open_pages(pools: Mapping[str, Sequence[str]], headers: Mapping[str, Mapping[str, str]]) -> list[HttpPage]:
    """Return the page of every server.

    Args:
        pools: URLs by pool.
        headers: headers for the servers of each pool.

    Raises:
        InvalidSetup: a URL is not an http(s) URL.
    """
    return [HttpPage(pool, url, headers=headers.get(pool)) for pool, urls in pools.items() for url in urls]


async def read_all(pages: Sequence[CountersPage]) -> list[Look | BackendError]:
    """Read all pages concurrently; return a look or an error for each."""

    async def read(page: CountersPage) -> Look | BackendError:
        try:
            return await page.look()
        except BackendError as error:
            return error

    return await asyncio.gather(*map(read, pages))


def _explain(status: int) -> str:
    """Return what a status says of the request, as a clause."""
    if status in (401, 403):
        return ": it requires a key or a header (--api-key-env, --header)"
    if status in (404, 405, 501):
        return f": {_GATEWAY}"
    if 300 <= status < 400:
        return ": pass the address that it leads to"
    return ""


FALLS = 3
"""Number of counter resets in the recent past that shows several servers behind one address."""
DAMAGED = 3
"""Number of inconsistent pages in a row after which the earlier one is discarded."""
UNREAD = "server-unread"
"""Finding code of a server that cannot be read."""
RECENT_S = 300.0
"""Seconds of the recent past: long enough for a service with a few requests a minute, short enough to act on."""
_RESTARTS, _RESTARTS_S = 2, 900.0
"""New starts, and within how many seconds, from which a server crashes again and again."""
_CHUNKS = 10
"""Number of windows that the recent past is kept in, whatever the interval is."""

_Engine = tuple[str, str, str]
"""Pool, instance and engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state of a service at one time."""

    at_s: float
    """Seconds since the epoch."""
    windows: tuple[Window, ...]
    """Window of each engine since the previous look."""
    recent: tuple[Window, ...]
    """Window of each engine over the last minutes."""
    findings: tuple[Finding, ...] = ()
    """Findings about servers that cannot be read."""
    gone: frozenset[str] = frozenset()
    """Servers that no longer report, such as those that a roll-out replaced."""

    @property
    def pools(self) -> tuple[str, ...]:
        """Names of the pools, in the given order."""
        return tuple(dict.fromkeys(window.pool for window in self.recent))

    def of(self, pool: str) -> tuple[Window, ...]:
        """Return the recent windows of one pool, by engine."""
        return tuple(window for window in self.recent if window.pool == pool)

    def serving(self, pool: str) -> tuple[Window, ...]:
        """Return the same without servers that are gone; all of them if none is left."""
        return tuple(each for each in self.of(pool) if each.instance not in self.gone) or self.of(pool)


class Watching(Protocol):
    """Source of repeated snapshots of a service."""

    async def begin(self) -> None:
        """Take the first reading. Intervals count from then on."""

    def snapshots(self, interval_s: float) -> AsyncGenerator[Snapshot]:
        """Yield a snapshot at every interval, without end."""


class Recent:
    """The last minutes of every engine, as a few consecutive windows.

    Args:
        span_s: length of the recent past in seconds.
    """

    def __init__(self, span_s: float = RECENT_S) -> None:
        self._span_s = span_s
        self._chunks: dict[_Engine, deque[Window]] = {}

    def add(self, windows: Iterable[Window]) -> None:
        """Add the newest windows. Engines without new windows are dropped once outdated."""
        for window in windows:
            self._append(self._chunks.setdefault((window.pool, window.instance, window.engine), deque()), window)

    def drop(self, server: tuple[str, str]) -> None:
        """Drop all data of a server, given as (pool, instance)."""
        self._chunks = {key: kept for key, kept in self._chunks.items() if key[:2] != server}

    def forget(self, now_s: float) -> None:
        """Drop windows that ended longer ago than the span."""
        oldest = now_s - self._span_s
        self._chunks = {key: kept for key, kept in self._chunks.items() if _end(kept[-1]) > oldest}

    def read(self) -> Iterator[Window]:
        """Yield one window per engine."""
        for chunks in self._chunks.values():
            yield reduce(Window.followed_by, chunks)

    def _append(self, chunks: deque[Window], window: Window) -> None:
        """Join it to the newest chunk while that is short, and drop the oldest ones that the span does not need."""
        if chunks and _end(chunks[-1]) > _end(window):
            chunks.clear()  # the clock was set back
        if chunks and chunks[-1].duration_s + window.duration_s <= self._span_s / _CHUNKS:
            window = chunks.pop().followed_by(window)
        chunks.append(window)
        while len(chunks) > 1 and _end(chunks[0]) <= _end(window) - self._span_s:
            chunks.popleft()


class Watcher:
    """Reads pages repeatedly.

    Args:
        pages: metrics pages of the servers.
        span_s: length of the recent past in seconds.
        now: returns the time in seconds since the epoch.
    """

    def __init__(
        self, pages: Sequence[CountersPage], *, span_s: float = RECENT_S, now: Callable[[], float] = time.time
    ) -> None:
        self._pages, self._now = pages, now
        self._last: dict[tuple[str, str], Look] = {}
        self._began_s: float | None = None
        self._recent = Recent(span_s)
        self._span_s, self._stalls = span_s, Stalls()
        pools = Counter(page.pool for page in pages)
        alone = [each.instance for each in pages if each.pool != PLAIN and pools[each.pool] == 1]
        self._alone = {name for name in alone if may_be_shared(name)}
        self._starts: dict[tuple[str, str], deque[float]] = {}
        self._several: dict[tuple[str, str], float] = {}
        self._odd: set[tuple[str, str]] = set()
        self._falls: dict[tuple[str, str], deque[float]] = {}
        self._damaged: dict[tuple[str, str], int] = {}
        self._began: dict[tuple[str, str], deque[float]] = {}
        self._fastest: dict[tuple[str, str], float] = {}
        self._paces: dict[tuple[str, str], deque[float]] = {}
        self._alive: set[tuple[str, str]] = set()
        """Servers whose newest page differs from the one before, as no copy does."""

    async def begin(self) -> None:
        """Take the first look, which has no windows."""
        self._began_s = asyncio.get_running_loop().time()
        await self.look()

    async def snapshots(self, interval_s: float) -> AsyncGenerator[Snapshot]:
        """Yield a snapshot at every interval. The first comes after one interval, because a window needs two looks."""
        try:
            if self._began_s is None:
                await self.begin()
            async for tick in tick_every(interval_s, since_s=self._began_s):
                if tick:
                    yield await self.look()
        finally:
            self.close()

    async def look(self) -> Snapshot:
        """Read all servers now. The first snapshot has no windows."""
        answers = await read_all(self._pages)
        looks = [answer for answer in answers if isinstance(answer, Look)]
        windows = tuple(window for look in looks for window in self._grow(look))
        self._recent.add(windows)
        self._stalls.add(windows)
        at_s = self._now()
        self._recent.forget(at_s)
        pairs = zip(self._pages, answers, strict=True)
        faults = [unread(page.instance, answer) for page, answer in pairs if isinstance(answer, BackendError)]
        faults += [tell_several(key[1], is_start=key in self._odd) for key in self._several]
        shown = {look.instance for look in looks} - {instance for _, instance in self._several}
        faults += [note("one-page-one-address", where=each) for each in sorted(self._alone & shown)]
        faults += find_renamed(self._last[look.pool, look.instance] for look in looks)
        faults += find_twice(looks, self._fastest)
        faults += self._find_dying(at_s)
        alive = {instance for _, instance in self._alive}.union(each.instance for each in looks if each.started_s)
        faults += (each if each.where in alive else tell_hung_or_copied(each) for each in self._stalls.find())
        return Snapshot(at_s=at_s, windows=windows, recent=tuple(self._recent.read()), findings=tuple(faults))

    def _find_dying(self, now_s: float) -> Iterator[Finding]:
        """Yield each server that began again and again of late."""
        for key, began in self._began.items():
            recent = [at_s for at_s in began if at_s > now_s - _RESTARTS_S]
            if len(recent) >= _RESTARTS and key not in self._several:
                span = f"{_RESTARTS_S / 60:.0f} minutes"
                yield fault("engine-dies", case="restarts", where=key[1], count=len(recent), span=span)

    def close(self) -> None:
        """Close all connections."""
        for page in self._pages:
            page.close()

    def _grow(self, look: Look) -> Iterator[Window]:
        key = (look.pool, look.instance)
        before = self._last.get(key)
        if before is None:
            self._last[key] = look
            if look.several:
                self._several[key] = look.clock_s
            return iter(())
        (self._alive.discard if before.engines == look.engines else self._alive.add)(key)
        is_whole = not is_damaged(before, look)
        damaged = not is_whole and self._damaged.get(key, 0) < DAMAGED
        windows = [] if damaged else list(grow(before, look))
        self._damaged[key] = self._damaged.get(key, 0) + 1 if damaged else 0
        self._last[key] = before if damaged else look
        falls, paces = self._falls.setdefault(key, deque(maxlen=FALLS)), self._paces.setdefault(key, deque(maxlen=8))
        if falls_back(before, look) and paces and _fits(_count_tokens(look), before, look, min(paces)):
            self._began.setdefault(key, deque(maxlen=8)).append(look.at_s)
        elif falls_back(before, look):
            falls.append(look.clock_s)
        starts = self._starts.setdefault(key, deque(maxlen=8))
        returns = False
        if _find_shift(before, look) > START_TOLERANCE_S:
            returns = any(abs(each - (look.started_s or 0.0)) <= START_TOLERANCE_S for each in starts)
            starts.append(before.started_s or 0.0)
            if not _is_new_start(before, look):
                falls.append(look.clock_s)
            elif not returns and look.started_s:
                self._began.setdefault(key, deque(maxlen=8)).append(look.started_s)
        # Where the start of the process is not shown, counters that fall again and again are those of several.
        alternates = len(falls) == FALLS and falls[-1] - falls[0] < self._span_s
        fastest = self._fastest.get(key, 0.0)
        stays = not (is_whole or damaged) and any(_falls(*pair) for pair in _pair_engines(before, look))
        several = look.several or alternates or returns
        contradicts = stays or _contradicts(before, look, fastest)
        if several or contradicts or _are_several(before, look, fastest):
            self._several[key] = look.clock_s
            (self._odd.add if contradicts and not several else self._odd.discard)(key)
            self._recent.drop(key)
        if look.clock_s - self._several.get(key, -math.inf) < self._span_s:
            return iter(())
        self._several.pop(key, None)
        made = sum(window.output_tokens_per_s or 0.0 for window in windows if not window.restarted)
        self._fastest[key] = max(self._fastest.get(key, 0.0), made)
        paces.extend([made] if made else [])
        return iter(windows)


async def tick_every(interval_s: float, *, since_s: float | None = None) -> AsyncGenerator[int]:
    """Yield 0 now, then 1, 2, ... at every interval of the loop's clock. Skips missed ticks.

    Args:
        interval_s: seconds between ticks.
        since_s: start of the first interval, on the loop's clock. None: now.
    """
    clock = asyncio.get_running_loop().time
    began_s, tick = clock() if since_s is None else since_s, 0
    while True:
        yield tick
        tick = max(tick + 1, math.ceil((clock() - began_s) / interval_s))
        await asyncio.sleep(began_s + tick * interval_s - clock())


def find_renamed(looks: Iterable[Look]) -> Iterator[Finding]:
    """Yield a finding per server whose page lacks counters that every known release has: its state is unknown."""
    for look in looks:
        known = [each for each in look.engines if each.told or (look.pool != PLAIN and _has_generated(each))]
        lacks = ["drafts"] if any(each.counts_drafts is None for each in known) else []
        if look.server != "vLLM":  # whose exporters show some counters from their first increment on only
            known = list(look.engines)
            lacks = ["drafts"] if look.pool != PLAIN and any(each.tells_acceptance is False for each in known) else []
        lacks += ["output tokens"] if any(each.counters.generation_tokens is None for each in known) else []
        if lacks and (old := next((name for name in look.unknown if name in OLD_METRICS), "")):
            yield warning("metrics-v0", instance=look.instance, old=old)
        elif lacks and look.server not in (None, "vLLM") and not look.unknown:
            names = " and ".join(lacks)
            lengths = [each.load.reported_length for each in look.engines if each.load.reported_length]
            if lengths and lacks == ["drafts"]:
                yield warning(
                    "drafts-uncounted", case="gauge", instance=look.instance, server=look.server, length=max(lengths)
                )
            else:
                yield warning("drafts-uncounted", instance=look.instance, server=look.server, names=names)
        elif lacks:
            shown = f", but {', '.join(look.unknown)}, which are of no known release" if look.unknown else ""
            yield warning("metrics-renamed", instance=look.instance, names=" and ".join(lacks), shown=shown)


def _has_generated(engine: EngineReading) -> bool:
    """Return whether a vLLM whose exporter shows a counter from its first increment on has long had to draft."""
    return engine.is_sparse and (engine.counters.generation_tokens or 0) >= _MANY_TOKENS


def tell_several(where: str, *, is_start: bool) -> Finding:
    """Return the finding for an address whose pages, or start time and counters, are not one process's."""
    if is_start:
        return fault("several-behind-url", case="start", where=where)
    return fault("several-behind-url", where=where)


def find_twice(looks: Iterable[Look], fastest: Mapping[tuple[str, str], float]) -> Iterator[Finding]:
    """Yield a finding per server that answers at two addresses, with equal counters and no other start time.

    Args:
        looks: looks of one time.
        fastest: highest tokens per second observed, by (pool, instance).
    """
    known = sorted(filter(_count_tokens, looks), key=lambda each: (_count_tokens(each), each.clock_s))
    for first, second in pairwise(known):
        pace = fastest.get((first.pool, first.instance), 0.0)
        more = _count_tokens(second) - _count_tokens(first)
        if _fits(more, first, second, pace) and _is_one_process(first, second):
            yield fault("same-server-twice", instance=first.instance, second_instance=second.instance)


def _is_one_process(first: Look, second: Look) -> bool:
    """Return whether two pages tell the same start; if one is rounded or missing, whether all counters agree."""
    starts = [each.started_s for each in (first, second) if each.started_s is not None]
    if len(starts) == 2 and (starts[0] == starts[1] or not any(each.is_integer() for each in starts)):
        return starts[0] == starts[1]
    counts = (pair for engines in _pair_engines(first, second) for pair in _pair_counts(*engines))
    return (
        max(starts, default=0.0) - min(starts, default=0.0) <= CLOCKS_DIFFER_S
        and _count_tokens(first) >= _MANY_TOKENS
        and all(abs(x - y) <= _ALMOST * x for x, y in counts)
    )


def _count_tokens(look: Look) -> int:
    return sum(engine.counters.generation_tokens or 0 for engine in look.engines)


def _end(window: Window) -> float:
    return window.start_s + window.duration_s


def unread(where: str, error: BackendError) -> Finding:
    """Return the finding for a server that cannot be read, which may still be serving."""
    return fault("server-unread", where=where, error=error)
