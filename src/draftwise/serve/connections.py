"""Connections to the server: when idle and half-open ones are closed, and how all end when the server does."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from draftwise.serve.engine_worker import EngineWorker
from draftwise.serve.in_flight import InFlight, make_goodbye

logger = logging.getLogger("draftwise.serve")

_HEAD_S = 20.0
"""Longest time from a connection, or the first byte of a further request, to the end of the headers."""
_KEEP_ALIVE_S = 75
"""Longest pause between requests on one connection. Clients and proxies that keep connections close them earlier, so
that no request meets a connection which is being closed."""
_LARGEST_HEAD = 2**16
"""Bytes of a request before the end of its headers."""
_UPGRADE = re.compile(rb"\r\nupgrade:[^\r\n]*", re.IGNORECASE)
"""An offer of another protocol, which Java's client makes with its first request: httptools would drop the body."""
_STALL_S = 120.0
"""Longest time in which a client reads none of what waits for it."""
_LAST_REQUESTS_S = 0.2
"""How long requests on open connections are answered with 503 before those connections are closed."""
_LAST_ANSWERS_S = 2.0
"""How long answers that were cut off may take to leave."""


def make_config(app: Any, **options: Any) -> uvicorn.Config:
    """Return uvicorn's configuration, with limits on connections that send no request."""
    return uvicorn.Config(
        app,
        access_log=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        http=_StrictProtocol,
        ws="none",
        **options,
    )


class _StrictProtocol(HttpToolsProtocol):
    """Limits time and bytes until headers have arrived, and what is no part of a body."""

    _timer: asyncio.TimerHandle | None = None
    _num_bytes = 0
    """What has arrived of a request's headers, or between the pieces of its body and behind it, in bytes."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._close_in(_HEAD_S)

    def data_received(self, data: bytes) -> None:
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
        if self._is_between_requests():
            self._close_in(_KEEP_ALIVE_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._close_in(None)
        super().connection_lost(exc)

    def _is_between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _close_in(self, seconds: float | None) -> None:
        """Close the connection then; None: not."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self.transport.close)


class HttpServer(uvicorn.Server):
    """Serves until a signal or until the engine fails; then it drains.

    While it drains, what runs goes on for `drain_s` seconds or until a second signal, and new requests get 503. What is
    left then ends with 503 as well: as a whole answer, or as an event in a stream.
    """

    def __init__(self, config: uvicorn.Config, worker: EngineWorker, in_flight: InFlight, *, drain_s: float) -> None:
        super().__init__(config)
        self._worker, self._in_flight, self._drain_s = worker, in_flight, drain_s
        self._is_hurried = False
        worker.on_failure = self.end

    def end(self) -> None:
        """Begin to drain; a second call ends that."""
        self._is_hurried = self.should_exit
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Take a signal."""
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
            await in_flight.wait_until_idle(_LAST_ANSWERS_S if worker.failure is None else _LAST_REQUESTS_S)
        await asyncio.sleep(_LAST_REQUESTS_S)
        await super().shutdown(sockets)
