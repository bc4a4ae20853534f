"""Sends the requests of one turn: streams without a pause, or requests that go out at their times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import TypeVar

from draftwise.backends import Exchange, Piece
from draftwise.core import ClosedLoop, OpenLoop, Replay
from draftwise.measure.load.arrivals import arrival_times, replay_times
from draftwise.measure.load.client import Client, LoadRequest
from draftwise.measure.load.health import HealthWatch
from draftwise.measure.load.parser import ResponseParser
from draftwise.measure.load.requests import background_requests, measured_requests, set_times
from draftwise.runs.schedule import Turn

__all__ = ["Share", "Traffic"]

T = TypeVar("T")
_OK = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Which part of a turn's load a process carries: every `of`-th stream and request, from `number` on."""

    number: int = 0
    of: int = 1

    def part(self, everything: Iterator[T]) -> Iterator[T]:
        """Return what falls to this process."""
        return islice(everything, self.number, None, self.of)


class Traffic:
    """The load of one turn, or a process's share of it.

    Args:
        client: of the turn's arm.
        turn: what to send.
        seed: of the run.
        began: when the times of an open loop begin, on the backend's clock.
        parser: parses finished responses.
        watch: records how late requests went out.
        share: what of it to send.
        on_measured: called when the last measured request has been answered; `end` is then due, and called by default.
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
        """Cancel whatever is in flight and send no more."""
        self._over.set()

    async def run(self) -> None:
        """Keep the load up until `end`; when a request breaks, cancel the others.

        Raises:
            BaseExceptionGroup: of BackendErrors.
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
        """Keep so many requests in flight whenever a measured one is: ramp-up before, background requests after."""
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
        """Send each request when its time has come, whatever became of the others; cancelled, cancel all."""
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
        """Queue the response for parsing, a cancelled one with what had arrived; return its HTTP status."""
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
