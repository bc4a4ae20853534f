"""An event loop whose timers fire when they are due, for requests that are to go out at their times."""

from __future__ import annotations

import asyncio
import select
import selectors
import sys

__all__ = ["precise_loop"]


def precise_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop that waits with the precision of the kernel's timers.

    On Linux asyncio waits with epoll_wait, which counts whole milliseconds, so that a timer fires up to one late
    (uvloop's do too). Give this to `asyncio.Runner(loop_factory=precise_loop)`.
    """
    if sys.platform == "linux":
        return asyncio.SelectorEventLoop(_PreciseSelector())
    return asyncio.new_event_loop()


if sys.platform == "linux":

    class _PreciseSelector(selectors.EpollSelector):
        """Waits for its own descriptor with select(2), which counts microseconds, and only then asks epoll."""

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if timeout is not None and timeout > 0 and self.fileno() < _MOST_FD:
                select.select([self], [], [], timeout)
                timeout = 0
            return super().select(timeout)


_MOST_FD = 1024
"""select(2) takes no descriptor from here on; a loop that was made late waits as asyncio does."""
