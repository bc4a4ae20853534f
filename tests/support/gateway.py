"""A gateway in front of servers, as clusters have them: it hides /metrics, wants a header, and routes by host."""

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from tests.support.fake_server import FakeBackend


class Gateway:
    """Passes requests on, bytes as they come.

    Args:
        routes: URL of a server by the Host that requests name; under "" for every other host.
        wants: a header, lower case, and its value, without which requests are refused.
        hides: paths that it does not know.
    """

    def __init__(
        self,
        routes: Mapping[str, str],
        *,
        wants: tuple[str, str] | None = None,
        hides: Sequence[str] = ("/metrics", "/version"),
    ) -> None:
        self._routes, self._wants, self._hides = routes, wants, hides
        self.url = ""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream: asyncio.StreamWriter | None = None
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                path, fields = _parse(head)
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                if refusal := self.refuse(path, fields):
                    writer.write(f"HTTP/1.1 {refusal} -\r\nContent-Length: 0\r\n\r\n".encode())
                    continue
                if upstream is None:
                    parts = urlsplit(self.find_route(fields))
                    back, upstream = await asyncio.open_connection(parts.hostname, parts.port)
                    passing = asyncio.create_task(_pass_on(back, writer))
                upstream.write(head + body)
        if upstream is not None:
            upstream.close()
            passing.cancel()
        writer.close()

    def find_route(self, fields: Mapping[str, str]) -> str:
        """Return the URL of the server that a request is for, by its headers."""
        return self._routes.get(fields["host"], self._routes.get("", ""))

    def refuse(self, path: str, fields: Mapping[str, str]) -> int | None:
        """Return the status with which a request is refused, None where it is passed on."""
        if self._wants is not None and fields.get(self._wants[0]) != self._wants[1]:
            return 403
        return 404 if path in self._hides else None


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
    writer.close()


def _parse(head: bytes) -> tuple[str, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    fields = dict(line.split(":", 1) for line in lines if line)
    return first.split()[1].partition("?")[0], {name.lower(): value.strip() for name, value in fields.items()}


@contextmanager
def running(*parts: FakeBackend | Gateway) -> Iterator[None]:
    """Run fakes and gateways on an event loop of their own, in the order given."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        for each in parts:
            asyncio.run_coroutine_threadsafe(each.start(), loop).result(300)
        yield
    finally:
        for each in reversed(parts):
            asyncio.run_coroutine_threadsafe(each.stop(), loop).result(300)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
