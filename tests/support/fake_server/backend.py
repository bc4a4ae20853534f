"""A fake as a backend: in memory on the clock of its event loop, or behind a socket of 127.0.0.1."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

import httpx

from draftwise.backends.backend import BrokenStream, Exchange, Piece
from draftwise.backends.url import UrlBackend
from tests.support.fake_server.engine import FakeEngine, Incoming, Page
from tests.support.fake_server.script import FakeScript
from tests.support.fake_server.server import FakeServer
from tests.support.fake_server.stream import Outlet, Stream

__all__ = ["FakeBackend"]


class _Memory:
    """Takes one answer without a socket; `ended` is set with it."""

    full = False

    def __init__(self, pieces: list[Piece]) -> None:
        self._loop = asyncio.get_running_loop()
        self.pieces = pieces
        self.ended: asyncio.Future[bool] = self._loop.create_future()
        """Whether the answer is whole."""

    def write(self, data: bytes) -> None:
        if data:
            self.pieces.append((self._loop.time(), data))

    def close(self) -> None:
        self._end(whole=True)

    def abort(self) -> None:
        self._end(whole=False)

    def _end(self, *, whole: bool) -> None:
        if not self.ended.done():
            self.ended.set_result(whole)


class FakeBackend(UrlBackend):
    """A fake engine behind the same API and /metrics as a real one.

    Args:
        name: of the arm.
        script: what it does when.
        real_time: whether it listens on a socket. Otherwise nothing leaves memory and its clock is that of the
            event loop: on `virtual_time.run` whole experiments take milliseconds and always give the same numbers.
    """

    def __init__(self, name: str, script: FakeScript, *, real_time: bool = False) -> None:
        super().__init__(name, "http://127.0.0.1:0", command=f"fake {name}")
        self.engine = FakeEngine(script)
        self._real_time = real_time
        self._server: FakeServer | None = None

    def now(self) -> float:
        """Return seconds on the clock of this fake."""
        return super().now() if self._real_time else asyncio.get_running_loop().time()

    async def start(self) -> None:
        """Listen, or open the connection in memory."""
        if self._real_time:
            self._server = FakeServer(self.engine)
            self.url = self._server.url
            self._open()
        else:
            await asyncio.sleep(self.engine.script.start_s)
            self.engine.start()
            self._open(httpx.MockTransport(self._answer))
        await self.describe()

    async def stop(self) -> None:
        """Close everything."""
        await super().stop()
        if self._server is not None:
            self._server.close()
            self._server = None

    async def stream(self, path: str, body: bytes, received: list[Piece] | None = None) -> Exchange:
        """POST a JSON body and return the answer with the arrival of each of its pieces; cancelling gives it up.

        Raises:
            BrokenStream: the fake has died.
        """
        if self._real_time:
            return await super().stream(path, body, received)
        sent, outlet = self.now(), _Memory([] if received is None else received)
        begun = self._handle(path, body, outlet)
        if isinstance(begun, Stream):
            whole = await self._wait(begun, outlet)
        else:
            outlet.write(begun.body)
            whole = True
        status = begun.status if isinstance(begun, Page) else 200
        exchange = Exchange(status=status, sent=sent, received=tuple(outlet.pieces), finished=self.now())
        if not whole:
            raise self._broken("closed by the server", exchange)
        return exchange

    def _handle(self, path: str, body: bytes, outlet: Outlet) -> Page | Stream:
        try:
            return self.engine.handle(Incoming(path=path, body=body, arrived=self.now()), outlet)
        except ConnectionError as error:
            raise self._broken(str(error)) from None

    def _broken(self, reason: str, partial: Exchange | None = None) -> BrokenStream:
        message = f"{self.name}: the connection to {self.url} broke ({reason}). {self.complaint()}"
        return BrokenStream(message, partial)

    async def _wait(self, stream: Stream, outlet: _Memory) -> bool:
        """Return whether the answer came whole."""
        try:
            return await outlet.ended
        except asyncio.CancelledError:
            self.engine.batch.cancel(stream)
            raise

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        """Answer what goes through `client`; only `stream` keeps the times of pieces."""
        try:
            exchange = await self.stream(request.url.path, await request.aread())
        except BrokenStream as error:
            raise httpx.ConnectError(str(error)) from None
        return _to_response(exchange)

    async def _get(self, path: str, headers: Mapping[str, str] | None = None) -> httpx.Response:
        """Return the answer of a path; in memory it needs no request, which would take longer than the answer."""
        if not self._real_time and path.startswith("/"):
            with suppress(BrokenStream):  # which the request meets again
                return _to_response(await self.stream(path.partition("?")[0], b""))
        return await super()._get(path, headers)


def _to_response(exchange: Exchange) -> httpx.Response:
    return httpx.Response(exchange.status, content=b"".join(data for _, data in exchange.received))
