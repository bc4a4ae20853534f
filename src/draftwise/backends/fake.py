"""A pretend server of known latencies: on a virtual clock, or over real sockets in real time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import httpx

from draftwise.backends.fake_engine import FakeEngine, FakeReply, FakeScript
from draftwise.backends.url import UrlBackend

__all__ = ["FakeBackend", "FakeScript"]


class FakeBackend(UrlBackend):
    """A fake engine behind the same API and /metrics as a real one.

    On its virtual clock no time passes in the world: `now` moves by exactly what the script says, so an
    experiment takes milliseconds and always gives the same numbers. In real time it listens on 127.0.0.1 and sleeps.
    """

    def __init__(self, name: str, script: FakeScript, *, real_time: bool = False) -> None:
        super().__init__(name, "http://127.0.0.1:0", command=f"fake {name}")
        self.engine = FakeEngine(script)
        self._real_time = real_time
        self._now = 0.0
        self._server: asyncio.Server | None = None

    def now(self) -> float:
        """Return seconds on the clock of this fake."""
        return super().now() if self._real_time else self._now

    async def start(self) -> None:
        """Listen, or open the virtual connection."""
        if self._real_time:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
            self._open()
        else:
            self._open(httpx.MockTransport(self._answer))
        await self.describe()

    async def stop(self) -> None:
        """Close everything."""
        await super().stop()
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        try:
            reply = self.engine.reply(request.url.path, await request.aread())
        except ConnectionError as error:
            raise httpx.ConnectError(str(error)) from None
        if reply.events is None:
            return httpx.Response(reply.status, text=reply.body)
        return httpx.Response(200, content=self._pass_time(reply.events))

    async def _pass_time(self, events: Iterator[tuple[float, str]]) -> AsyncIterator[bytes]:
        for delay, data in events:
            self._now += delay
            yield f"data: {data}\n\n".encode()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path, size = _parse_head(head.decode("latin-1"))
                await self._write(writer, self.engine.reply(path, await reader.readexactly(size)))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _write(self, writer: asyncio.StreamWriter, reply: FakeReply) -> None:
        if reply.events is None:
            body = reply.body.encode()
            writer.write(f"HTTP/1.1 {reply.status} -\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            return await writer.drain()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for delay, data in reply.events:
            await asyncio.sleep(delay)
            chunk = f"data: {data}\n\n".encode()
            writer.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        return await writer.drain()


def _parse_head(head: str) -> tuple[str, int]:
    """Return the path and the length of the body of an HTTP/1.1 request."""
    request_line, *headers = head.split("\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in headers)}
    return request_line.split(" ")[1], int(fields.get("content-length", 0))
