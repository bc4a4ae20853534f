"""What one HTTP call waits for: increments handed over from the engine's thread to the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType

from draftwise.engine.outputs import Delta
from draftwise.engine.sequence import Request

__all__ = ["Generation"]


class Generation:
    """Increments of the requests of one HTTP call, as they come; leaving its `with` block aborts what is unfinished."""

    def __init__(self, requests: Sequence[Request], abort: Callable[[Generation], None]) -> None:
        self.requests = requests
        self._abort = abort
        self._num_unfinished = sum(request.params.n for request in requests)
        self._loop = asyncio.get_running_loop()
        self._accepted: asyncio.Future[None] = self._loop.create_future()
        self._events: asyncio.Queue[tuple[int, Delta] | Exception] = asyncio.Queue()

    async def accepted(self) -> None:
        """Return once the engine has taken the requests; raise why it does not."""
        await self._accepted

    async def __aiter__(self) -> AsyncIterator[tuple[int, Delta]]:
        while self._num_unfinished:
            event = await self._events.get()
            if isinstance(event, Exception):
                raise event
            self._num_unfinished -= event[1].finish_reason is not None
            yield event

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._num_unfinished:
            self._abort(self)

    def accept(self) -> None:
        """From the engine's thread: the requests are queued."""
        self._on_loop(self._settle, None)

    def push(self, prompt_index: int, delta: Delta) -> None:
        """From the engine's thread: an increment of one of the prompts."""
        self._on_loop(self._events.put_nowait, (prompt_index, delta))

    def fail(self, error: Exception) -> None:
        """From the engine's thread: no more will come."""
        self._on_loop(self._settle, error)
        self._on_loop(self._events.put_nowait, error)

    def _settle(self, error: Exception | None) -> None:
        if self._accepted.done():
            return
        if error is None:
            self._accepted.set_result(None)
        else:
            self._accepted.set_exception(error)

    def _on_loop(self, function: Callable, *args: object) -> None:
        # A closed loop has nobody left to tell.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *args)
