"""Serves a fake engine over HTTP/1.1 from bare sockets: cheap enough to share a machine with its client."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import time
from contextlib import suppress

from tests.support.fake_server.engine import FakeEngine, Incoming, Page
from tests.support.fake_server.stream import Stream

__all__ = ["FakeServer"]

_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
_BACKLOG = 4096
"""Connections that may wait to be accepted: thousands of streams start at once."""
_READ_BYTES = 1 << 18
_SO_TIMESTAMPNS = 35
"""Linux: every read tells when the kernel received the bytes (socket(7); the standard library has no name for it)."""
_STAMP = struct.Struct("@ll")
_STAMP_SPACE = socket.CMSG_SPACE(_STAMP.size)
# (backends.connection reads the same stamps, by code of its own: the truth must not rest on what it is to check.)


class FakeServer:
    """Listens on 127.0.0.1 until closed."""

    def __init__(self, engine: FakeEngine, port: int = 0) -> None:
        self._engine = engine
        self._connections: set[_Connection] = set()
        self._socket = socket.create_server(("127.0.0.1", port), backlog=_BACKLOG)
        self._socket.setblocking(False)
        if sys.platform == "linux":
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)  # accepted sockets inherit it
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._accept)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        engine.start()

    def close(self) -> None:
        """Stop listening and drop all connections."""
        self._loop.remove_reader(self._socket)
        self._socket.close()
        for connection in list(self._connections):
            connection.abort()

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            while True:
                sock, _ = self._socket.accept()
                _Connection(sock, self._engine, self._connections)


class _Connection:
    """One connection, one request at a time; also the outlet of its answer."""

    def __init__(self, sock: socket.socket, engine: FakeEngine, connections: set[_Connection]) -> None:
        self.full = False
        self._socket = sock
        self._engine = engine
        self._connections = connections
        self._received = self._unsent = b""
        self._stream: Stream | None = None
        self._framed = False
        self._loop = asyncio.get_running_loop()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._loop.add_reader(sock, self._read)
        connections.add(self)

    def write(self, data: bytes) -> None:
        """Hand over bytes of the body."""
        if self._framed:
            self._send(b"%x\r\n%b\r\n" % (len(data), data))
        elif data:
            self._show(Page(body=data))

    def close(self) -> None:
        """End the answer; the connection stays for the next request."""
        self._stream = None
        if self._framed:
            self._send(b"0\r\n\r\n")
        if self._received:
            self._take(self._loop.time())

    def abort(self) -> None:
        """Break the connection; harmless when it is broken."""
        if self in self._connections:
            self._connections.remove(self)
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()
            if self._stream is not None:
                self._engine.batch.cancel(self._stream)

    def _read(self) -> None:
        try:
            data, ancillary, _, _ = self._socket.recvmsg(_READ_BYTES, _STAMP_SPACE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.abort()
            return
        self._received += data
        self._take(self._when(ancillary))

    def _when(self, ancillary: list[tuple[int, int, bytes]]) -> float:
        """Return when bytes reached the machine: a client must not be blamed for what this process takes to read."""
        if not ancillary:
            return self._loop.time()
        seconds, nanoseconds = map(int, _STAMP.unpack(ancillary[0][2]))
        # The kernel stamps with the wall clock. Of three comparisons, the smallest was not interrupted in between.
        offset = min(-self._loop.time() + time.time() for _ in range(3))
        return min(self._loop.time(), seconds + nanoseconds * 1e-9 - offset)

    def _take(self, arrived: float) -> None:
        """Answer the next request once all of it is there and the one before it is answered."""
        while self._stream is None and (end := self._received.find(b"\r\n\r\n")) >= 0:
            path, fields = _parse_head(self._received[:end])
            length = end + 4 + int(fields.get(b"content-length", 0))
            if len(self._received) < length:
                return
            body, self._received = self._received[end + 4 : length], self._received[length:]
            self._answer(path, fields, body, arrived)

    def _answer(self, path: str, fields: dict[bytes, bytes], body: bytes, arrived: float) -> None:
        request_id = fields.get(b"x-request-id", b"").decode("latin-1")
        incoming = Incoming(path=path, body=body, arrived=arrived, request_id=request_id)
        try:
            begun = self._engine.handle(incoming, self)
        except ConnectionError:
            return self.abort()
        if isinstance(begun, Page):
            return self._show(begun)
        self._stream, self._framed = begun, begun.answer.streams
        if self._framed:
            self._send(_STREAM_HEAD)
        return None

    def _show(self, page: Page) -> None:
        head = f"HTTP/1.1 {page.status} -\r\nContent-Type: {page.kind}\r\nContent-Length: {len(page.body)}\r\n\r\n"
        self._send(head.encode() + page.body)

    def _send(self, data: bytes) -> None:
        """Give bytes to the kernel at once; what it does not take waits, and the answer with it."""
        if self._unsent:
            self._unsent += data
            return
        try:
            count = self._socket.send(data)
        except BlockingIOError:
            count = 0
        except OSError:  # the client has gone; the caller may be in the middle of serving it
            self._loop.call_soon(self.abort)
            return
        if count < len(data):
            self._unsent, self.full = data[count:], True
            self._loop.add_writer(self._socket, self._send_rest)

    def _send_rest(self) -> None:
        rest, self._unsent = self._unsent, b""
        self._loop.remove_writer(self._socket)
        self.full = False
        self._send(rest)
        if not self.full and self._stream is not None:
            self._engine.batch.resume(self._stream)


def _parse_head(head: bytes) -> tuple[str, dict[bytes, bytes]]:
    """Return the path and the header fields of a request."""
    request_line, *lines = head.split(b"\r\n")
    fields = {}
    for line in lines:
        name, _, value = line.partition(b":")
        fields[name.lower()] = value.strip()
    return request_line.split(b" ")[1].decode("latin-1").partition("?")[0], fields
