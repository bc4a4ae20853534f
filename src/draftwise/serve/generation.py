"""The increments that one HTTP call waits for, as the engine's process sends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType

from draftwise.engine.outputs import Delta
from draftwise.engine.step.sequence import EngineRequest

__all__ = ["Generation"]


class Generation:
    """Increments of the requests of one HTTP call; leaving its `with` block aborts unfinished ones."""

    def __init__(self, requests: Sequence[EngineRequest], abort: Callable[[Generation], None]) -> None:
        self.requests = requests
        self._abort = abort
        self._num_unfinished = sum(request.params.n for request in requests)
        self._accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending: list[tuple[int, Delta]] = []
        self._error: Exception | None = None
        self._arrived = asyncio.Event()

    async def wait_until_accepted(self) -> None:
        """Return once the engine has queued the requests; raise if it refuses them."""
        await self._accepted

    async def iterate_batches(self) -> AsyncIterator[list[tuple[int, Delta]]]:
        """Yield the increments since the last batch, each with its prompt's index; raise if the generation fails."""
        while self._num_unfinished:
            await self._arrived.wait()
            self._arrived.clear()
            batch, self._pending = self._pending, []
            if batch:
                self._num_unfinished -= sum(delta.finish_reason is not None for _, delta in batch)
                yield batch
            if self._error is not None and self._num_unfinished:
                raise self._error

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._num_unfinished:
            self._abort(self)

    def accept(self) -> None:
        """Note that the requests are queued."""
        if not self._accepted.done():
            self._accepted.set_result(None)

    def push(self, prompt_index: int, delta: Delta) -> None:
        """Add an increment of one of the prompts."""
        self._pending.append((prompt_index, delta))
        self._arrived.set()

    def fail(self, error: Exception) -> None:
        """Note that no more will come, and why."""
        if not self._accepted.done():
            self._accepted.set_exception(error)
            return
        self._error = error
        self._arrived.set()
