"""Length-prefixed pickled messages over a socket pair between two processes that trust each other."""

from __future__ import annotations

import asyncio
import pickle
import select
import socket
import struct
from collections.abc import Callable
from typing import Any, cast

__all__ = ["Channel", "ChannelProtocol"]

_LENGTH = struct.Struct("!Q")


def _frame(message: Any) -> bytes:
    content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(content)) + content


class Channel:
    """A blocking end: for the engine's loop, and for the server until its event loop runs."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end

    def send(self, message: Any) -> None:
        """Send a message; raises OSError when the other end is gone."""
        self.socket.sendall(_frame(message))

    def receive(self) -> Any:
        """Wait for a message and return it; raises EOFError when the other end is gone."""
        return pickle.loads(self._read(_LENGTH.unpack(self._read(_LENGTH.size))[0]))

    def has_message(self, timeout_s: float = 0) -> bool:
        """Return whether `receive` would return or raise at once; wait so long for that."""
        return bool(select.select([self.socket], [], [], timeout_s)[0])

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
    """An end on an event loop: calls `on_message` with each message and `on_end` when the other end is gone."""

    def __init__(self, on_message: Callable[[Any], None], on_end: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_end = on_end
        self._received = bytearray()
        self._transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport to write to."""
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

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        """Call `on_end`."""
        self._on_end()

    def send(self, message: Any) -> None:
        """Send a message without waiting; does nothing once the other end is gone."""
        if not self._transport.is_closing():
            self._transport.write(_frame(message))

    def close(self) -> None:
        """Close the connection once everything is sent."""
        self._transport.close()
