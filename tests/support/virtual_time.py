"""An asyncio event loop whose clock jumps to the next timer: hours of a measurement pass in milliseconds."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, TypeVar

__all__ = ["VirtualTimeLoop", "run"]

T = TypeVar("T")
_REAL = "Sockets, pipes and subprocesses live in real time: run this with asyncio.run."


class _Jumps(selectors.DefaultSelector):
    """Waits for nothing: what would be waited for is added to the clock.

    asyncio asks its selector to sleep until the next timer is due, or until a socket has news. Here no socket
    exists, so that time may pass at once.
    """

    now = 0.0
    limit_s = float("inf")
    _misused = False

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        if self.get_map():  # the loop's own wake-up pipe comes first, and has to stay alone
            self._misused = True
            raise RuntimeError(_REAL)
        return super().register(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._misused:  # asyncio may have kept the error of a callback to itself
            self._misused = False
            raise RuntimeError(_REAL)
        woken = super().select(0)  # by a signal, or by another thread
        if woken or timeout == 0:
            return woken
        if timeout is None:
            raise RuntimeError("Nothing is ready and no timer is set: this would wait for ever.")
        self.now += timeout
        if self.now > self.limit_s:
            raise RuntimeError(f"{self.limit_s:g} virtual seconds have passed: does something wake up for ever?")
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time: `time()` starts at 0 and moves only when nothing is ready to run.

    What runs takes no time, so that the same coroutines always meet in the same order at the same times, to the last
    bit. Functions given to threads are called in place for the same reason.

    Args:
        limit_s: virtual seconds after which it gives up with a RuntimeError.
    """

    def __init__(self, limit_s: float = float("inf")) -> None:
        self._jumps = _Jumps()
        self._jumps.limit_s = limit_s
        super().__init__(self._jumps)

    def time(self) -> float:
        """Return the virtual seconds that have passed."""
        return self._jumps.now

    def run_in_executor(  # type: ignore[override]
        self,
        executor: Any,
        func: Callable[..., T],
        *args: Any,
    ) -> asyncio.Future[T]:
        """Call a function now, and return its result as a future."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    async def subprocess_exec(self, *command: Any, **options: Any) -> NoReturn:
        """Refuse: a process takes real time.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(_REAL)


def run(coroutine: Coroutine[Any, Any, T], *, limit_s: float = 1e6) -> T:
    """Run a coroutine on virtual time and return its result, as `asyncio.run` does in real time.

    Raises:
        RuntimeError: nothing is ready and no timer is set (a deadlock), `limit_s` virtual seconds have passed, or
            the coroutine opens a socket, a pipe or a subprocess.
    """
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(limit_s)) as runner:
        return runner.run(coroutine)
