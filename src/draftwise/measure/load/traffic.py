"""Sends the requests of one turn, back to back or at their times, and parses the responses."""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, TypeVar

from draftwise.backends import Exchange, Piece
from draftwise.core import Answer, ClientHealth, ClosedLoop, OpenLoop, Replay
from draftwise.measure.load.client import Client, LoadRequest, to_answer
from draftwise.measure.load.event_loop import HealthWatch
from draftwise.measure.load.requests import (
    arrival_times,
    background_requests,
    measured_requests,
    replay_times,
    set_times,
)
from draftwise.measure.load.response import ParsedResponse
from draftwise.runs.turn_order import Turn

T = TypeVar("T")
_OK = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A process's part of a turn's load: every `of`-th stream and request, starting at `number`."""

    number: int = 0
    of: int = 1

    def part(self, everything: Iterator[T]) -> Iterator[T]:
        """Return this process's items."""
        return islice(everything, self.number, None, self.of)


class TurnTraffic:
    """The load of one turn, or a process's share of it.

    Args:
        client: client of the turn's arm.
        turn: turn to send.
        seed: the run's seed.
        began: start of an open loop's times, on the backend's clock.
        parser: parses finished responses.
        watch: records how late requests went out.
        share: this process's part of it; None: all.
        on_measured: called after the last measured answer. By default it calls `end`.
    """

    def __init__(
        self,
        client: Client,
        turn: Turn,
        *,
        seed: int,
        began: float,
        parser: ResponseParser,
        watch: HealthWatch,
        share: Share | None = None,
        on_measured: Callable[[], None] | None = None,
    ) -> None:
        self._client, self._turn, self._seed, self._began = client, turn, seed, began
        self._parser, self._watch = parser, watch
        self._share = share or Share()
        self._on_measured = on_measured or self.end
        self._left = len(range(self._share.number, len(turn.prompts), self._share.of))
        self._over = asyncio.Event()

    def end(self) -> None:
        """Cancel all requests in flight and send no more."""
        self._over.set()

    async def run(self) -> None:
        """Maintain the load until `end`. If a request fails, cancel the others.

        Raises:
            BaseExceptionGroup: contains the BackendErrors.
        """
        if not self._left:
            self._on_measured()
        if not self._turn.prompts:
            return
        load = self._turn.condition.load
        async with asyncio.TaskGroup() as group:
            if isinstance(load, ClosedLoop):
                tasks = await self._open_streams(load.concurrency, group)
            else:
                tasks = [group.create_task(self._send_in_time(self._timed(load), group))]
            await self._over.wait()
            for task in tasks:
                task.cancel()

    async def _open_streams(self, streams: int, group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """Keep the load's requests in flight whenever a measured one is: ramp-up before, background requests after."""
        ramp_up = streams if streams > 1 else 0
        others = background_requests(self._turn, ramp_up)
        first: list[LoadRequest | None] = [*islice(others, ramp_up)] or [None]
        to_measure, background = self._share.part(measured_requests(self._turn)), self._share.part(others)
        tasks = []
        for first_one in self._share.part(iter(first)):
            requests = to_measure if first_one is None else chain((first_one,), to_measure)
            tasks.append(group.create_task(self._stream(requests, background)))
            await asyncio.sleep(0)  # thousands of connections made in one go would keep answers waiting
        return tasks

    async def _stream(self, requests: Iterator[LoadRequest], background: Iterator[LoadRequest]) -> None:
        """Send one request after the other."""
        for request in requests:
            await self._send(request)
        # (A server that refuses background requests gets no more of them.)
        while not self._over.is_set() and (another := next(background, None)) is not None:
            if await self._send(another) != _OK:
                break

    def _timed(self, load: OpenLoop | Replay) -> Iterator[LoadRequest]:
        """Yield the requests with their times, on and on where the load does."""
        turn, requests = self._turn, measured_requests(self._turn)
        if isinstance(load, Replay):
            return self._share.part(set_times(requests, replay_times(turn.prompts, load), self._began))
        key = f"{turn.workload}/{turn.condition.label}/{turn.repeat}/{turn.block}"
        times = arrival_times(load, seed=self._seed, key=key)
        return self._share.part(set_times(chain(requests, background_requests(turn)), times, self._began))

    async def _send_in_time(self, requests: Iterator[LoadRequest], group: asyncio.TaskGroup) -> None:
        """Send each request when its time has come, whatever became of the others; canceled, cancel all."""
        sent: set[asyncio.Task[int]] = set()
        try:
            for request in requests:
                assert request.intended is not None
                body = self._client.encode(request, seed=self._seed)
                await asyncio.sleep(max(0.0, request.intended - self._client.backend.now()))
                task = group.create_task(self._send(request, body))
                sent.add(task)
                task.add_done_callback(sent.discard)
            await self._over.wait()
        finally:
            for task in sent:
                task.cancel()

    async def _send(self, request: LoadRequest, body: bytes | None = None) -> int:
        """Queue the response for parsing, a canceled one with what had arrived; return its HTTP status."""
        if body is None:
            body = self._client.encode(request, seed=self._seed)
        now, received = self._client.backend.now, list[Piece]()
        sent = now()
        try:
            exchange = await self._client.send(request, body, received)
        except asyncio.CancelledError:
            if received and not request.measured:
                self._parser.put(request, Exchange(status=_OK, sent=sent, received=tuple(received), finished=now()))
            raise
        self._parser.put(request, exchange)
        if request.intended is not None:
            self._watch.note_lag(exchange.sent - request.intended)
        if request.measured:
            self._left -= 1
            if not self._left:
                self._on_measured()
        return exchange.status


_HEAD_START_S = 0.005
"""Seconds from the start of a turn to the first arrival of an open loop."""


async def drive(client: Client, turn: Turn, *, seed: int, on_answer: Callable[[Answer], None]) -> ClientHealth:
    """Send the prompts of a turn under its condition, and return how well this process kept up.

    Args:
        client: client of the turn's arm.
        turn: turn to send.
        seed: the run's seed.
        on_answer: called after each request, background ones too. A refused request gives an answer with `error`.

    Raises:
        BackendError: the server failed. `on_answer` has received every completed answer.
    """
    parser, watch = ResponseParser(on_answer), HealthWatch(client.backend.now)
    began = client.backend.now() + _HEAD_START_S
    traffic = TurnTraffic(client, turn, seed=seed, began=began, parser=parser, watch=watch)
    try:
        with limit_garbage_collection():
            await run_beside(parser.work(), traffic.run())
    finally:
        health = watch.stop()
        parser.clear()
    return health


async def run_beside(background: Coroutine[Any, Any, None], work: Coroutine[Any, Any, None]) -> None:
    """Await `work` while `background` runs; raise the first error of either."""
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(background)
            await work
            task.cancel()
    except BaseExceptionGroup as failures:
        raise _first(failures) from None


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@contextmanager
def limit_garbage_collection() -> Iterator[None]:
    """Limit garbage collection to new objects: a full collection takes tens of milliseconds."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class ResponseParser:
    """Parses completed responses one after another, from a queue.

    Args:
        on_answer: called with each parsed answer.
    """

    def __init__(self, on_answer: Callable[[Answer], None]) -> None:
        self._on_answer = on_answer
        self._waiting: deque[tuple[LoadRequest, Exchange]] = deque()
        self._woken = asyncio.Event()
        self._work = self._steps()

    def put(self, request: LoadRequest, exchange: Exchange) -> None:
        """Queue a response."""
        self._waiting.append((request, exchange))
        self._woken.set()

    async def work(self) -> None:
        """Parse queued responses until canceled."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            self._work = self._steps()
            for _ in self._work:
                await asyncio.sleep(0)

    def clear(self) -> None:
        """Parse all remaining responses now."""
        for steps in (self._work, self._steps()):
            for _ in steps:
                pass

    def _steps(self) -> Iterator[None]:
        while self._waiting:
            request, exchange = self._waiting.popleft()
            response = ParsedResponse(exchange)
            yield from response.steps()
            self._on_answer(to_answer(request, exchange, response))
            yield
