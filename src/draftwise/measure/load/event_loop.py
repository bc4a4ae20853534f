"""An event loop with precise timers, and a watch on how late they fire."""

from __future__ import annotations

import asyncio
import select
import selectors
import sys
import time
from collections.abc import Callable

import numpy as np

from draftwise.core import ClientHealth


def precise_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop with the kernel's timer precision.

    On Linux, asyncio and uvloop wait with epoll_wait in whole milliseconds, so a timer fires up to 1 ms late. Pass this
    function to `asyncio.Runner(loop_factory=precise_loop)`.
    """
    if sys.platform == "linux":
        return asyncio.SelectorEventLoop(_PreciseSelector())
    return asyncio.SelectorEventLoop()  # Windows's usual loop watches no sockets


if sys.platform == "linux":

    class _PreciseSelector(selectors.EpollSelector):
        """Waits for its own descriptor with select(2), which counts microseconds, and only then asks epoll."""

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if timeout is not None and timeout > 0 and self.fileno() < _MOST_FD:
                select.select([self], [], [], timeout)
                timeout = 0
            return super().select(timeout)


_MOST_FD = 1024
"""Limit on descriptors of select(2). A loop with a larger one waits as asyncio does."""


_PERIOD_S = 0.02
"""Fifty samples a second see a stall of 20 ms and cost a few hundred microseconds."""


class HealthWatch:
    """Watches the running event loop from its creation until `stop`.

    Args:
        now: the clock of the measurement.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._delays: list[float] = []
        self._lags: list[float] = []
        self._cpu_s = time.process_time()
        self._offset_s = _clock_offset()
        self._due = 0.0
        self._timer = self._arm()

    def note_lag(self, lag_s: float) -> None:
        """Record by how much a request was sent late."""
        self._lags.append(lag_s)

    def stop(self) -> ClientHealth:
        """Stop watching and return the client's health."""
        self._timer.cancel()
        return ClientHealth(
            cpu_s=time.process_time() - self._cpu_s,
            loop_delay_p99_s=_p99(self._delays),
            loop_delay_max_s=max(self._delays, default=0.0),
            send_lag_p99_s=_p99(self._lags),
            send_lag_max_s=max(self._lags, default=0.0),
            clock_jump_s=_clock_offset() - self._offset_s,
        )

    def _arm(self) -> asyncio.TimerHandle:
        self._due = self._now() + _PERIOD_S
        return self._loop.call_later(_PERIOD_S, self._fire)

    def _fire(self) -> None:
        self._delays.append(max(0.0, self._now() - self._due))
        self._timer = self._arm()


def _clock_offset() -> float:
    return time.time() - time.monotonic()


def _p99(values: list[float]) -> float:
    return float(np.percentile(values, 99)) if values else 0.0
