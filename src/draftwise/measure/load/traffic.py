"""The requests of one turn on their way: streams that never rest, or requests that go out at their times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import TypeVar

from draftwise.backends import Exchange, Piece
from draftwise.core import ClosedLoop, OpenLoop, Replay
from draftwise.measure.load.arrivals import arrival_times, replay_times
from draftwise.measure.load.client import Client, Sending
from draftwise.measure.load.health import HealthWatch
from draftwise.measure.load.parser import Desk
from draftwise.measure.load.sendings import at, measured, unmeasured
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
        desk: where answers are left.
        watch: told how late requests went out.
        share: what of it to send.
        on_measured: told when the last measured request has been answered; its end is then to be asked for.
    """

    def __init__(
        self,
        client: Client,
        turn: Turn,
        *,
        seed: int,
        began: float,
        desk: Desk,
        watch: HealthWatch,
        share: Share | None = None,
        on_measured: Callable[[], None] | None = None,
    ) -> None:
        self._client, self._turn, self._seed, self._began = client, turn, seed, began
        self._desk, self._watch = desk, watch
        self._share = share or Share()
        self._on_measured = on_measured or self.end
        self._left = len(range(self._share.number, len(turn.prompts), self._share.of))
        self._over = asyncio.Event()

    def end(self) -> None:
        """Withdraw whatever is in flight and send no more."""
        self._over.set()

    async def run(self) -> None:
        """Keep the load up until its end is asked for; when a request breaks, withdraw the others.

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
        """Keep so many requests in flight whenever a measured one is: lead-ins before, fillers behind."""
        lead_ins = streams if streams > 1 else 0
        others = unmeasured(self._turn, lead_ins)
        first: list[Sending | None] = [*islice(others, lead_ins)] or [None]
        to_measure, fillers = self._share.part(measured(self._turn)), self._share.part(others)
        tasks = []
        for lead_in in self._share.part(iter(first)):
            sendings = to_measure if lead_in is None else chain((lead_in,), to_measure)
            tasks.append(group.create_task(self._stream(sendings, fillers)))
            await asyncio.sleep(0)  # thousands of connections made in one go would keep answers waiting
        return tasks

    async def _stream(self, sendings: Iterator[Sending], fillers: Iterator[Sending]) -> None:
        """Send one request after the other."""
        for sending in sendings:
            await self._send(sending)
        # (A server that refuses fillers is left alone.)
        while not self._over.is_set() and await self._send(next(fillers)) == _OK:
            pass

    def _timed(self, load: OpenLoop | Replay) -> Iterator[Sending]:
        """Yield the requests with their times, on and on where the load does."""
        turn, sendings = self._turn, measured(self._turn)
        if isinstance(load, Replay):
            return self._share.part(at(sendings, replay_times(turn.prompts, load), self._began))
        key = f"{turn.workload}/{turn.condition.label}/{turn.repeat}/{turn.block}"
        times = arrival_times(load, seed=self._seed, key=key)
        return self._share.part(at(chain(sendings, unmeasured(turn)), times, self._began))

    async def _send_in_time(self, sendings: Iterator[Sending], group: asyncio.TaskGroup) -> None:
        """Send each request when its time has come, whatever became of the others; cancelled, withdraw all."""
        sent: set[asyncio.Task[int]] = set()
        try:
            for sending in sendings:
                assert sending.intended is not None
                body = self._client.encode(sending, seed=self._seed)
                await asyncio.sleep(max(0.0, sending.intended - self._client.backend.now()))
                task = group.create_task(self._send(sending, body))
                sent.add(task)
                task.add_done_callback(sent.discard)
            await self._over.wait()
        finally:
            for task in sent:
                task.cancel()

    async def _send(self, sending: Sending, body: bytes | None = None) -> int:
        """Leave the answer at the desk, a withdrawn one with what came of it; return its HTTP status."""
        if body is None:
            body = self._client.encode(sending, seed=self._seed)
        now, received = self._client.backend.now, list[Piece]()
        sent = now()
        try:
            exchange = await self._client.send(sending, body, received)
        except asyncio.CancelledError:
            if received and not sending.measured:
                self._desk.put(sending, Exchange(status=_OK, sent=sent, received=tuple(received), finished=now()))
            raise
        self._desk.put(sending, exchange)
        if sending.intended is not None:
            self._watch.note_lag(exchange.sent - sending.intended)
        if sending.measured:
            self._left -= 1
            if not self._left:
                self._on_measured()
        return exchange.status
