"""Messages between the HTTP process and the engine process, and the socket pair that carries them. Uses no torch."""

from __future__ import annotations

import asyncio
import pickle
import select
import socket
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, NamedTuple, cast

from draftwise.core import Finding
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.engine_outputs import Delta, EngineStats
from draftwise.engine.step.scheduler import EngineRequest


class PackedRequest(NamedTuple):
    """A serialized request for the engine. Other processes read only its outer fields."""

    request_id: str
    n: int
    num_prompt_tokens: int
    max_tokens: int | None
    content: bytes

    @classmethod
    def pack(cls, request: EngineRequest) -> PackedRequest:
        """Pack a request."""
        content = pickle.dumps(request, pickle.HIGHEST_PROTOCOL)
        params = request.params
        return cls(request.request_id, params.n, len(request.prompt_token_ids), params.max_tokens, content)

    def unpack(self) -> EngineRequest:
        """Return the request."""
        request = pickle.loads(self.content)
        assert isinstance(request, EngineRequest)
        return request


class Add(NamedTuple):
    """To the engine: queue all of these requests or none. They share their parameters.

    The reply is `RequestsAccepted` or `RequestsRefused` with the same number.
    """

    number: int
    requests: Sequence[PackedRequest]


class Abort(NamedTuple):
    """To the engine: drop these requests if still running."""

    request_ids: Sequence[str]


class StartupPhase(NamedTuple):
    """A phase of the start-up."""

    name: str
    seconds: float | None = None
    """Duration in seconds; None: it has begun."""


class Ready(NamedTuple):
    """The engine is ready. Holds its properties."""

    config: EngineConfig
    k: int | None
    """Number of draft positions; None without speculation."""
    spec: dict[str, Any] | None
    """The resolved speculative config."""
    findings: Sequence[Finding]
    num_pages: int
    stats: EngineStats


class SetupRefusal(NamedTuple):
    """The engine cannot be built because of the user's settings."""

    findings: Sequence[Finding]


class EngineFailure(NamedTuple):
    """The engine failed during start-up or later. No messages follow."""

    reason: str


class RequestsAccepted(NamedTuple):
    """The requests of an `Add` are queued."""

    number: int


class RequestsRefused(NamedTuple):
    """The requests of an `Add` cannot run. No request is queued."""

    number: int
    findings: Sequence[Finding]


class StepResult(NamedTuple):
    """Results of a step. `began` and `ended` are on the monotonic clock, which all processes of a machine share."""

    began: float
    ended: float
    stats: EngineStats
    rows: list[tuple[Any, ...]]
    """Increments as tuples, which pickle ten times faster than dataclasses."""

    @classmethod
    def pack(cls, deltas: Iterable[Delta], stats: EngineStats, *, began: float, ended: float) -> StepResult:
        """Pack the increments of a step."""
        return cls(began, ended, stats, list(map(_FIELDS_OF, deltas)))

    def unpack(self) -> list[Delta]:
        """Return the increments."""
        return [Delta(**dict(zip(_NAMES, row, strict=True))) for row in self.rows]


_NAMES = tuple(field.name for field in fields(Delta))
_FIELDS_OF = attrgetter(*_NAMES)


_LENGTH = struct.Struct("!Q")


def _frame(message: Any) -> bytes:
    content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(content)) + content


class Channel:
    """A blocking end of the socket pair: for the engine's loop, and for the server until its event loop runs."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end

    def send(self, message: Any) -> None:
        """Send a message; raises OSError when the other end is gone."""
        self.socket.sendall(_frame(message))

    def receive(self) -> Any:
        """Wait for a message and return it; raises EOFError when the other end is gone."""
        return pickle.loads(self._read(_LENGTH.unpack(self._read(_LENGTH.size))[0]))

    def has_message(self, timeout_s: float = 0) -> bool:
        """Return whether `receive` would return or raise at once, after waiting up to `timeout_s` seconds."""
        poller = select.poll()  # which takes descriptors of any size, as a server with many connections has them
        poller.register(self.socket, select.POLLIN)
        return bool(poller.poll(1000 * timeout_s))

    def _read(self, size: int) -> bytes:
        parts = []
        while size:
            try:
                part = self.socket.recv(size, socket.MSG_WAITALL)
            except ConnectionError:  # it was closed with messages unread
                part = b""
            if not part:
                raise EOFError("the other end is closed")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


class ChannelProtocol(asyncio.Protocol):
    """An end on an event loop. Calls `on_message` with each message, and `on_end` when the other end is gone."""

    def __init__(self, on_message: Callable[[Any], None], on_end: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_end = on_end
        self._received = bytearray()
        self._transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport for writing."""
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's has the methods, but not the base class

    def data_received(self, data: bytes) -> None:
        """Pass on complete messages."""
        self._received += data
        while len(self._received) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._received)[0]
            if len(self._received) < end:
                return
            content = bytes(self._received[_LENGTH.size : end])
            del self._received[:end]
            self._on_message(pickle.loads(content))

    @property
    def is_closed(self) -> bool:
        """Return whether the connection is closed."""
        return self._transport.is_closing()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        """Call `on_end`."""
        self._on_end()

    def send(self, message: Any) -> None:
        """Send a message without waiting. Does nothing once the other end is gone."""
        if not self.is_closed:
            self._transport.write(_frame(message))

    def close(self) -> None:
        """Close the connection once everything is sent."""
        self._transport.close()
