"""A keep-alive connection to a server: sends one request at a time and records when each byte arrived."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import httptools

from draftwise.backends.backend import Exchange, Piece

_READ_BYTES = 1 << 14
"""Bytes per read, enough for 400 tokens. Python allocates this much for every read. From 128 KiB on (asyncio uses 256),
it maps and unmaps memory each time, which takes three times as long as the read itself."""
_SO_TIMESTAMPNS = 35
"""Linux socket option: each read reports when the kernel received the bytes (socket(7); unnamed in Python)."""
_STAMP = struct.Struct("@ll")
_STAMP_SPACE = socket.CMSG_SPACE(_STAMP.size)
_UNDISTURBED_S = 2e-5
"""Maximum seconds between readings of two clocks. A longer gap means that the process was not running in between."""
_TRIES = 5
_RECORD_BYTES = 1 << 14
"""Maximum bytes of a TLS record."""


class LostError(Exception):
    """A connection ended before its answer.

    Args:
        reason: cause in words.
        reply: part of the answer that arrived.
        sent: time when the request was sent.
    """

    def __init__(self, reason: str, reply: Reply, sent: float) -> None:
        super().__init__(reason)
        self.reply = reply
        self.sent = sent


class Connection:
    """A connected socket.

    Arrival times come from the kernel if available: a busy event loop then reads late, but records the right time.

    Args:
        sock: connected, non-blocking socket. The connection closes it.
        silence_s: maximum seconds without data while an answer is due.
        tls: TLS after its handshake. None: plain TCP.
    """

    def __init__(self, sock: socket.socket, now: Callable[[], float], silence_s: float, tls: Tls | None = None) -> None:
        self._socket, self._tls = sock, tls
        self._now, self._silence_s = now, silence_s
        self._loop = asyncio.get_running_loop()
        self._reply: Reply | None = None
        self._ended: asyncio.Future[str | None] | None = None
        self._heard = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self.is_open = True
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if sys.platform == "linux":
            with suppress(OSError):  # the kernel of a sandbox may not know it
                sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._loop.add_reader(sock, self._read)

    async def ask(self, request: bytes, pieces: list[Piece]) -> Exchange:
        """Send a request and return its answer. Canceling closes the connection.

        Raises:
            LostError: the connection ended before the answer.
        """
        self._reply, self._ended = reply, ended = Reply(pieces), self._loop.create_future()
        self._watch = self._loop.call_later(self._silence_s, self._check_silence)
        sent = self._heard = self._now()
        try:
            await self._send(request if self._tls is None else self._tls.encrypt(request))
            if (reason := await ended) is not None:
                raise LostError(reason, reply, sent)
        except BaseException:
            self.close()
            raise
        finally:
            self._watch.cancel()
            self._reply = self._ended = None
            reply.release()
        if not reply.keep_alive:
            self.close()
        return Exchange(
            status=reply.status,
            sent=sent,
            received=tuple(pieces),
            finished=reply.finished,
            retry_after=reply.headers.pop("retry-after", ""),
            headers=reply.headers,
        )

    def close(self) -> None:
        """Close at once. Safe to call when closed."""
        if self.is_open:
            self.is_open = False
            self._loop.remove_reader(self._socket)
            self._socket.close()

    def is_ready(self) -> bool:
        """Return whether a request may be sent: the connection is open and has no unexpected data.

        Asks the kernel, which may know of an end that the event loop has not processed yet.
        """
        if self.is_open:
            try:
                self._socket.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                return True
            except OSError:
                pass
            self.close()
        return False

    async def _send(self, data: bytes) -> None:
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._lose(_name(error))
            return
        if sent < len(data):
            await self._send_rest(data[sent:])

    async def _send_rest(self, rest: bytes) -> None:
        """Wait until the kernel takes it, unless the answer comes (a refusal, say) or the connection ends first."""
        assert self._ended is not None
        sending = asyncio.ensure_future(self._loop.sock_sendall(self._socket, rest))
        try:
            await asyncio.wait((sending, self._ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sending.cancel()
            await asyncio.wait((sending,))
        if not sending.cancelled() and (error := sending.exception()) is not None:
            self._lose(_name(error))

    def _read(self) -> None:
        try:
            data, ancillary, _, _ = self._socket.recvmsg(_READ_BYTES, _STAMP_SPACE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(_name(error))
            return
        if not data:
            self._end()
            return
        at = self._arrival(*_STAMP.unpack(ancillary[0][2])) if ancillary else self._now()
        if self._tls is None:
            self._take(at, data)
        else:
            self._take_encrypted(at, data, self._tls)

    def _arrival(self, seconds: int, nanoseconds: int) -> float:
        """Return on our clock what the kernel has noted on the wall clock.

        A time before the request or an earlier arrival tells that the wall clock was set: it is now.
        """
        for _ in range(_TRIES):
            now, wall = self._now(), time.time()
            if self._now() - now < _UNDISTURBED_S:
                break
        at = now - (wall - seconds - nanoseconds * 1e-9)
        return at if self._heard <= at < now else now

    def _take_encrypted(self, at: float, data: bytes, tls: Tls) -> None:
        try:
            said = tls.decrypt(data)
        except ssl.SSLError as error:
            self._lose(_name(error))
            return
        if said:
            self._take(at, said)
        if tls.ended:
            self._end()

    def _take(self, at: float, data: bytes) -> None:
        """Take in bytes that arrived at `at`."""
        self._heard = at
        reply = self._reply
        if reply is None:
            # Nothing was asked: what a server says now could only be taken for an answer to the next request.
            self.close()
            return
        try:
            reply.feed(at, data)
        except ReplyError as error:
            self._lose(f"its answer is not HTTP/1.1: {error}")
        else:
            if reply.complete:
                self._finish(None)

    def _end(self) -> None:
        """The server has closed its side."""
        if self._reply is not None:
            self._reply.end(self._now())
            if self._reply.complete:
                self._finish(None)
        self._lose("closed by the server")

    def _lose(self, reason: str) -> None:
        self._finish(reason)
        self.close()

    def _finish(self, reason: str | None) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(reason)

    def _check_silence(self) -> None:
        """Look from time to time, so that arrivals need not touch a timer."""
        quiet = self._now() - self._heard
        if quiet >= self._silence_s:
            self._lose(f"no byte for {self._silence_s:.0f} s")
        else:
            self._watch = self._loop.call_later(self._silence_s - quiet, self._check_silence)


def _name(error: BaseException) -> str:
    return type(error).__name__


class ReplyError(Exception):
    """What arrived is not HTTP/1.1."""


_KEPT = frozenset({b"retry-after", b"age", b"date", b"cache-status", b"x-cache", b"x-cache-status", b"cf-cache-status"})


class Reply:
    """One arriving answer. The parser calls its `on_...` methods.

    Args:
        pieces: list for the body's pieces as they arrive, without transfer encoding.
    """

    __slots__ = (
        *("_delimited", "_parser", "_time", "complete", "finished", "headers", "keep_alive", "pieces"),
        *("started", "status"),
    )

    def __init__(self, pieces: list[Piece]) -> None:
        self.pieces = pieces
        self.status = 0
        self.started = False
        """Whether a byte of it has arrived."""
        self.complete = False
        self.keep_alive = False
        self.finished = 0.0
        self.headers: dict[str, str] = {}
        self._time = 0.0
        self._delimited = False
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, time: float, data: bytes) -> None:
        """Process bytes that arrived at `time`.

        Raises:
            ReplyError: they are not HTTP.
        """
        self.started = True
        self._time = time
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise ReplyError(str(error)) from None

    def end(self, time: float) -> None:
        """Handle the server's end of stream, which completes a body without a stated length and breaks any other."""
        if self.status >= 200 and not self._delimited and not self.complete:
            self.complete, self.finished = True, time

    def release(self) -> None:
        """Drop the parser: a reference cycle would keep the pieces until a garbage collection."""
        del self._parser

    def on_message_begin(self) -> None:
        """Reject data after a complete answer."""
        if self.complete:
            raise ReplyError("more bytes than the answer has")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Record how the body ends, when to retry, and what a cache says."""
        if (key := name.lower()) in (b"content-length", b"transfer-encoding"):
            self._delimited = True
        elif key in _KEPT:
            self.headers[key.decode()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Record the status. 1xx responses precede the final one."""
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """Record a piece of the body."""
        self.pieces.append((self._time, body))

    def on_message_complete(self) -> None:
        """Record the end."""
        if self.status < 200:
            self._delimited = False
            return
        self.complete, self.finished = True, self._time
        self.keep_alive = self._parser.should_keep_alive()


class Tls:
    """The client's TLS for one connection. Uses the socket only for the handshake.

    Args:
        context: TLS context with the trusted authorities.
        name: server name that the certificate must contain.
    """

    def __init__(self, context: ssl.SSLContext, name: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)
        self.ended = False
        """Whether the server has said that nothing will follow."""

    async def shake_hands(self, sock: socket.socket) -> None:
        """Perform the handshake.

        Raises:
            OSError: the certificate is not trusted (ssl.SSLError), or the connection broke.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                await loop.sock_sendall(sock, self._outgoing.read())
                if not (data := await loop.sock_recv(sock, _RECORD_BYTES)):
                    raise ConnectionResetError("closed by the server during the TLS handshake") from None
                self._incoming.write(data)
            else:
                return await loop.sock_sendall(sock, self._outgoing.read())

    def encrypt(self, data: bytes) -> bytes:
        """Return the encrypted bytes to send, with any pending TLS data."""
        self._object.write(data)
        return self._outgoing.read()

    def decrypt(self, data: bytes) -> bytes:
        """Return the decrypted data, which may be empty.

        Raises:
            ssl.SSLError: the bytes are not valid.
        """
        self._incoming.write(data)
        parts = []
        try:
            while part := self._object.read(_RECORD_BYTES):
                parts.append(part)
            self.ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        return b"".join(parts)
