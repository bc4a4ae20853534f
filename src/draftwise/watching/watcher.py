"""Watches servers: looks at all of them at intervals, and keeps of each engine its recent past, in bounded memory."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

from draftwise.core import BackendError, Finding, Window
from draftwise.watching.look import Look, grow
from draftwise.watching.pages import Page, read_all

__all__ = ["RECENT_S", "UNREAD", "Recent", "Sight", "Watcher", "Watching", "tick_every", "unread"]

UNREAD = "server-unread"
"""Code of a server that cannot be read."""
RECENT_S = 300.0
"""Long enough that a service of a few requests a minute shows more than noise, short enough to act on."""
_CHUNKS = 10
"""In which the recent past is kept, whatever the interval is."""

_Engine = tuple[str, str, str]
"""Pool, instance and engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What was seen at one time."""

    at_s: float
    """Seconds since the epoch."""
    windows: tuple[Window, ...]
    """Of each engine, since the look before."""
    recent: tuple[Window, ...]
    """Of each engine, over the last minutes."""
    findings: tuple[Finding, ...] = ()
    """Of servers that cannot be read."""

    @property
    def pools(self) -> tuple[str, ...]:
        """Their names, in the order in which they were given."""
        return tuple(dict.fromkeys(window.pool for window in self.recent))

    def of(self, pool: str) -> tuple[Window, ...]:
        """Return the recent windows of one pool, by engine."""
        return tuple(window for window in self.recent if window.pool == pool)


class Watching(Protocol):
    """Whatever tells again and again what a service does."""

    async def begin(self) -> None:
        """Take what the first sight is held against: intervals count from then on."""

    def sights(self, interval_s: float) -> AsyncGenerator[Sight]:
        """Yield what is seen at every interval, for as long as somebody asks."""


class Recent:
    """The last minutes of every engine, as a few windows that lie one behind the other.

    Args:
        span_s: how far back it goes.
    """

    def __init__(self, span_s: float = RECENT_S) -> None:
        self._span_s = span_s
        self._chunks: dict[_Engine, deque[Window]] = {}

    def add(self, windows: Iterable[Window]) -> None:
        """Take in the newest windows; engines that are not among them are forgotten once they are out of date."""
        for window in windows:
            self._append(self._chunks.setdefault((window.pool, window.instance, window.engine), deque()), window)

    def forget(self, now_s: float) -> None:
        """Drop what ended longer ago than the span."""
        oldest = now_s - self._span_s
        self._chunks = {key: kept for key, kept in self._chunks.items() if _end(kept[-1]) > oldest}

    def read(self) -> Iterator[Window]:
        """Yield one window an engine."""
        for chunks in self._chunks.values():
            yield reduce(Window.followed_by, chunks)

    def _append(self, chunks: deque[Window], window: Window) -> None:
        """Join it to the newest chunk while that is short, and drop the oldest ones that the span does not need."""
        if chunks and chunks[-1].duration_s + window.duration_s <= self._span_s / _CHUNKS:
            window = chunks.pop().followed_by(window)
        chunks.append(window)
        while len(chunks) > 1 and _end(chunks[0]) <= _end(window) - self._span_s:
            chunks.popleft()


class Watcher:
    """Looks again and again.

    Args:
        pages: of the servers.
        span_s: how far the recent past goes back.
        now: the clock, in seconds since the epoch.
    """

    def __init__(
        self, pages: Sequence[Page], *, span_s: float = RECENT_S, now: Callable[[], float] = time.time
    ) -> None:
        self._pages, self._now = pages, now
        self._last: dict[tuple[str, str], Look] = {}
        self._began_s: float | None = None
        self._recent = Recent(span_s)

    async def begin(self) -> None:
        """Take the first look, which has no windows."""
        self._began_s = asyncio.get_running_loop().time()
        await self.look()

    async def sights(self, interval_s: float) -> AsyncGenerator[Sight]:
        """Yield what is seen at every interval: first one interval after the beginning, as a window needs two looks."""
        try:
            if self._began_s is None:
                await self.begin()
            async for tick in tick_every(interval_s, since_s=self._began_s):
                if tick:
                    yield await self.look()
        finally:
            self.close()

    async def look(self) -> Sight:
        """Look at all servers now; the first look has no windows."""
        answers = await read_all(self._pages)
        looks = [answer for answer in answers if isinstance(answer, Look)]
        windows = tuple(window for look in looks for window in self._grow(look))
        self._recent.add(windows)
        at_s = self._now()
        self._recent.forget(at_s)
        pairs = zip(self._pages, answers, strict=True)
        faults = (unread(page.instance, answer) for page, answer in pairs if isinstance(answer, BackendError))
        return Sight(at_s=at_s, windows=windows, recent=tuple(self._recent.read()), findings=tuple(faults))

    def close(self) -> None:
        """Close all connections."""
        for page in self._pages:
            page.close()

    def _grow(self, look: Look) -> Iterator[Window]:
        key = (look.pool, look.instance)
        before = self._last.get(key)
        self._last[key] = look
        return iter(()) if before is None else grow(before, look)


async def tick_every(interval_s: float, *, since_s: float | None = None) -> AsyncGenerator[int]:
    """Yield 0 at once, then 1, 2 ... at every interval of the loop's clock; ticks that were missed are left out.

    Args:
        interval_s: between two of them.
        since_s: when the first interval began, on the loop's clock; now unless given.
    """
    clock = asyncio.get_running_loop().time
    began_s, tick = clock() if since_s is None else since_s, 0
    while True:
        yield tick
        tick = max(tick + 1, math.ceil((clock() - began_s) / interval_s))
        await asyncio.sleep(began_s + tick * interval_s - clock())


def _end(window: Window) -> float:
    return window.start_s + window.duration_s


def unread(where: str, error: BackendError) -> Finding:
    """Return the finding for a server that cannot be read, whatever it does meanwhile."""
    return Finding.error(
        UNREAD,
        str(error),
        where=where,
        fix="Look whether the server runs and whether this machine reaches it: what it does is not known.",
    )
