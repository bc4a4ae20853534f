"""Manages connections: closes idle and half-open ones, and drains all of them when the server ends."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from draftwise.serve.engine_worker import EngineWorker
from draftwise.serve.entrance import InFlight, make_goodbye

logger = logging.getLogger("draftwise.serve")

_HEAD_S = 20.0
"""Longest time in seconds from connecting, or from the first byte of a further request, to the end of the headers."""
_KEEP_ALIVE_S = 75
"""Longest pause in seconds between requests on one connection. Clients and proxies close kept connections earlier, so
no request meets a closing connection."""
_LARGEST_HEAD = 2**16
"""Maximum bytes of a request up to the end of its headers."""
_UPGRADE = re.compile(rb"\r\nupgrade:[^\r\n]*", re.IGNORECASE)
"""Offer of another protocol, as in the first request of Java's client: httptools would drop the body."""
MOST_WAITING = 2048
"""Maximum connections that the system queues until they are accepted."""
_ACCEPTED_AT_ONCE, _READ_AT_ONCE = 16, 2**14
"""Maximum new connections, and bytes of one connection, to process before other work continues. A byte may be a piece
of a body, and forty bytes a request."""
_STALL_S = 120.0
"""Longest time in seconds without progress while a client reads its answer."""
_LINGER_S = 5.0
"""Seconds for which a closing connection is still read: closing it with unread bytes resets it and loses the answer."""
_LAST_REQUESTS_S = 0.2
"""Seconds for which requests on open connections get 503 before the connections end."""
_ACCEPT_PASSES = 8
"""Loop iterations after which accepted connections have their protocol."""
_LAST_CONNECTIONS_S = 3.0
"""Seconds for which an ending server waits for arriving requests and for clients to close their side."""


def make_config(app: Any, **options: Any) -> uvicorn.Config:
    """Return uvicorn's configuration, with limits on idle connections."""
    return uvicorn.Config(
        app,
        access_log=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        backlog=_ACCEPTED_AT_ONCE,
        http=_StrictProtocol,
        ws="none",
        **options,
    )


class _LingeringTransport:
    """A transport that sends its end first if a request is still arriving, and drops that until the client ends too.

    `is_all_read`: returns whether nothing of a request is still to come.
    """

    def __init__(self, transport: Any, is_all_read: Callable[[], bool]) -> None:
        self._transport, self._is_all_read, self._has_ended = transport, is_all_read, False
        self.abort, self.get_extra_info = transport.abort, transport.get_extra_info
        self.pause_reading, self.resume_reading = transport.pause_reading, transport.resume_reading

    def write(self, data: bytes) -> None:
        if not self._has_ended:
            self._transport.write(data)

    def is_closing(self) -> bool:
        return self._has_ended or self._transport.is_closing()

    def close(self) -> None:
        if self.is_closing():
            return
        if self._is_all_read():
            self._transport.close()
            return
        self._has_ended = True
        with suppress(OSError):  # the client is gone
            self._transport.write_eof()
        self._transport.resume_reading()
        asyncio.get_running_loop().call_later(_LINGER_S, self._transport.close)


class _StrictProtocol(HttpToolsProtocol):
    """Limits time and bytes until headers have arrived, and what is no part of a body."""

    _timer: asyncio.TimerHandle | None = None
    _is_last = False
    """Whether the connection closes after its next answer."""
    _num_bytes = 0
    """What has arrived of a request's headers, or between the pieces of its body and behind it, in bytes."""

    def connection_made(self, transport: Any) -> None:
        with suppress(AttributeError):  # uvloop's has no such setting
            transport.max_size = _READ_AT_ONCE
        super().connection_made(cast("asyncio.Transport", _LingeringTransport(transport, self._is_all_read)))
        self._close_in(_HEAD_S)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if not self._num_bytes and self._is_between_requests():
            self._close_in(_HEAD_S)
            head, end, rest = data.partition(b"\r\n\r\n")
            data = _UPGRADE.sub(b"", head) + end + rest
        self._num_bytes += len(data)
        super().data_received(data)
        if not self._is_between_requests():
            self._close_in(None)
        if self._num_bytes > _LARGEST_HEAD and not self.transport.is_closing():
            self.send_400_response(f"The headers are larger than {_LARGEST_HEAD} bytes.")

    def on_header(self, name: bytes, value: bytes) -> None:
        if "path" not in self.scope:  # fields behind a body are dropped
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if self.scope["http_version"] != "1.1":
            _end_with_connection(self.cycle)

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._num_bytes = 0

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._num_bytes = 0

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall = self.loop.call_later(_STALL_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stall.cancel()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_between_requests() and self._is_last:
            self.transport.close()
        elif self._is_between_requests():
            self._close_in(_KEEP_ALIVE_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._close_in(None)
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Close after the request in progress. A new connection may still send one."""
        self._is_last = True
        if self.cycle is None and not self._num_bytes:
            self._close_in(_LAST_REQUESTS_S)
        elif self._is_between_requests() and not self._num_bytes:
            self.transport.close()

    def _is_all_read(self) -> bool:
        return self.cycle is not None and not self.cycle.more_body and not self._num_bytes

    def _is_between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _close_in(self, seconds: float | None) -> None:
        """Close the connection then; None: not."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self.transport.close)


def _end_with_connection(cycle: Any) -> None:
    """Send a stream without chunks, which came with HTTP/1.1: the end of the connection is its end."""
    cycle.chunked_encoding, send = False, cycle.send

    async def send_bare(message: Any) -> None:
        cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = send_bare


class HttpServer(uvicorn.Server):
    """Serves until a signal arrives or the engine fails, then drains.

    While it drains, running requests continue for `drain_s` seconds or until a second signal, and new requests get 503.
    Remaining requests then end with 503, too: as a whole answer, or as an event in a stream.
    """

    def __init__(self, config: uvicorn.Config, worker: EngineWorker, in_flight: InFlight, *, drain_s: float) -> None:
        super().__init__(config)
        self._worker, self._in_flight, self._drain_s = worker, in_flight, drain_s
        self._is_hurried = False
        worker.on_failure = self.end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections, a few at a time. Many may queue."""
        await super().startup(sockets)
        for listener in sockets or []:
            listener.listen(MOST_WAITING)

    def end(self) -> None:
        """Start draining. A second call ends it."""
        self._is_hurried = self.should_exit
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Handle a signal."""
        self._captured_signals.append(sig)
        self.end()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, then close every connection."""
        in_flight, worker = self._in_flight, self._worker
        in_flight.close()
        if in_flight.count and worker.failure is None:
            logger.info("%d requests run; they have %g s to end.", in_flight.count, self._drain_s)
        end = asyncio.get_running_loop().time() + self._drain_s
        while worker.failure is None and not self._is_hurried and asyncio.get_running_loop().time() < end:
            if await in_flight.wait_until_idle(0.05):
                break
        if in_flight.count:
            logger.warning("%d requests did not end in time and are cut off with an error.", in_flight.count)
            worker.fail_all(make_goodbye())
            in_flight.cut()
        await asyncio.sleep(_LAST_REQUESTS_S)
        await self._stop_listening(sockets or [])
        for connection in list(self.server_state.connections):
            connection.shutdown()
        end = asyncio.get_running_loop().time() + _LAST_CONNECTIONS_S
        while self.server_state.connections and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.02)
        for task in self.server_state.tasks:
            task.cancel()
        await self.lifespan.shutdown()

    async def _stop_listening(self, listeners: Sequence[socket.socket]) -> None:
        """Close the port, once every connection that the system has made is accepted: the others would be reset."""
        loop, last = asyncio.get_running_loop(), list[socket.socket]()
        for listener in listeners:
            loop.remove_reader(listener)
        for _ in range(_ACCEPT_PASSES):  # asyncio drops what it has accepted and not set up when it closes
            await asyncio.sleep(0)
        for server, listener in zip(self.servers, listeners, strict=True):
            with suppress(OSError):  # none is left, or no more can be taken
                while True:
                    last.append(listener.accept()[0])
            server.close()
        for end in last:
            end.setblocking(False)
            await loop.connect_accepted_socket(self._make_protocol, end)

    def _make_protocol(self) -> asyncio.Protocol:
        return _StrictProtocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
