"""Sends requests over HTTP/1.1 on any number of kept-alive connections, timed at the socket."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from base64 import b64encode
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from draftwise.backends.backend import BrokenStream, Exchange, Piece
from draftwise.backends.connection import Connection, LostError, Tls
from draftwise.machine.network import open_tls
from draftwise.machine.processes import raise_file_limit

_T = TypeVar("_T")

_CONNECT_S = 10.0
_SILENCE_S = 600.0
_MOST_OF_TUNNEL = 1 << 14
"""Maximum bytes of a proxy's answer."""
_Address = tuple[int, tuple[Any, ...]]
"""(address family, socket address)."""


class Wire:
    """The connections to one server.

    Args:
        url: `http[s]://host[:port][/prefix]`.
        headers: sent with every request, such as a bearer token.
        tls: TLS context for https. Default: authorities that the environment trusts.
        proxy: `http://[user:password@]host:port`. None: connect directly.
        connect_s: maximum seconds to connect, TLS included.
        silence_s: maximum seconds without data while an answer is due.
    """

    def __init__(
        self,
        url: str,
        *,
        now: Callable[[], float],
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        proxy: str | None = None,
        connect_s: float = _CONNECT_S,
        silence_s: float = _SILENCE_S,
    ) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None, "checked by UrlBackend"
        self._host = parts.hostname
        default = 443 if parts.scheme == "https" else 80
        self._port = default if parts.port is None else parts.port
        self._prefix = parts.path
        self._tls = (tls or open_tls()) if parts.scheme == "https" else None
        self._now, self._connect_s, self._silence_s = now, connect_s, silence_s
        own = {"Host": parts.netloc.rpartition("@")[2], "Accept-Encoding": "identity"}
        self._tunnel = b""
        self._at = self._host, self._port
        if proxy is not None:
            own |= self._go_through(proxy, url)
        given = {name.lower() for name in headers or {}}
        fields = {name: value for name, value in own.items() if name.lower() not in given} | dict(headers or {})
        self._head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._idle: list[Connection] = []
        self._address: _Address | None = None
        self._known: list[_Address] = []
        raise_file_limit()

    def _go_through(self, proxy: str, url: str) -> dict[str, str]:
        """Connect to a proxy instead; return the headers of requests that it reads, which are those of http."""
        parts = urlsplit(proxy)
        self._at = parts.hostname or "", parts.port or 80
        own = {}
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            own["Proxy-Authorization"] = f"Basic {b64encode(login.encode()).decode()}"
        if self._tls is None:
            self._prefix = f"http://{urlsplit(url).netloc.rpartition('@')[2]}{self._prefix}"
            return own
        host = f"[{self._host}]" if ":" in self._host else self._host
        lines = (f"CONNECT {host}:{self._port} HTTP/1.1", f"Host: {host}:{self._port}", *map(": ".join, own.items()))
        self._tunnel = "".join(f"{line}\r\n" for line in (*lines, "")).encode("latin-1")
        return {}

    async def post(self, path: str, body: bytes, received: list[Piece] | None = None) -> Exchange:
        """POST a JSON body; return the answer with the arrival time of each piece.

        If a kept connection turns out to be closed and nothing arrived, the request is sent once more on a new one.

        Raises:
            BrokenStream: the connection failed or broke. Its message is a reason like `ConnectionRefusedError`.
        """
        about = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return await self._exchange(self._encode("POST", path, about) + body, [] if received is None else received)

    async def get(self, path: str, *, anew: bool = False) -> Exchange:
        """GET a path and return the answer. A closed kept connection is replaced as in `post`.

        Args:
            path: path after the URL's prefix.
            anew: use a new connection; open ones stay open.

        Raises:
            BrokenStream: the connection failed or broke.
        """
        return await self._exchange(self._encode("GET", path), [], anew=anew)

    def turn(self) -> None:
        """Send new connections to the host's next address, if it has several."""
        if self._address in self._known:
            self._address = self._known[(self._known.index(self._address) + 1) % len(self._known)]

    def close(self) -> None:
        """Close the idle connections."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _exchange(self, request: bytes, pieces: list[Piece], *, anew: bool = False) -> Exchange:
        if not anew and (kept := self._take_idle()) is not None:
            try:
                return await self._ask(kept, request, pieces)
            except LostError as lost:
                if lost.reply.started:
                    raise self._broken(lost, pieces) from None
        try:
            return await self._ask(await self._connect(), request, pieces)
        except LostError as lost:
            raise self._broken(lost, pieces) from None

    async def _ask(self, connection: Connection, request: bytes, pieces: list[Piece]) -> Exchange:
        exchange = await connection.ask(request, pieces)
        if connection.is_open:
            self._idle.append(connection)
        return exchange

    def _broken(self, lost: LostError, pieces: list[Piece]) -> BrokenStream:
        partial = Exchange(status=lost.reply.status, sent=lost.sent, received=tuple(pieces), finished=self._now())
        return BrokenStream(str(lost), partial)

    def _take_idle(self) -> Connection | None:
        while self._idle:
            if (connection := self._idle.pop()).is_ready():
                return connection
        return None

    def _encode(self, method: str, path: str, about: str = "") -> bytes:
        """Return the head of a request; `about` are the header lines of its body."""
        return f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._head}{about}\r\n".encode("latin-1")

    async def _connect(self) -> Connection:
        try:
            async with asyncio.timeout(self._connect_s):
                return await self._open()
        except TimeoutError:
            self._address = None
            raise BrokenStream(f"no connection within {self._connect_s:.0f} s") from None
        except OSError as error:
            raise BrokenStream(_explain(error)) from None

    async def _open(self) -> Connection:
        """Connect to the address that worked last, else to the first that does; the name is looked up only then."""
        if self._address is not None:
            with suppress(OSError):
                return await self._open_at(self._address)
            self._address = None
        found = await asyncio.get_running_loop().getaddrinfo(*self._at, type=socket.SOCK_STREAM)
        self._known = [(family, address) for family, _, _, _, address in found if family == found[0][0]]
        failure = OSError(errno.EADDRNOTAVAIL, f"{self._at[0]} has no address")
        for family, _, _, _, address in found:
            try:
                connection = await self._open_at((family, address))
            except OSError as error:
                failure = error
            else:
                self._address = (family, address)
                return connection
        raise failure

    async def _open_at(self, address: _Address) -> Connection:
        sock = socket.socket(address[0], socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, address[1])
            tls = None
            if self._tunnel:
                await _open_tunnel(sock, self._tunnel)
            if self._tls is not None:
                tls = Tls(self._tls, self._host)
                await tls.shake_hands(sock)
            return Connection(sock, self._now, self._silence_s, tls)
        except BaseException:
            sock.close()
            raise


async def _open_tunnel(sock: socket.socket, request: bytes) -> None:
    """Ask a proxy for a tunnel.

    Raises:
        OSError: it refuses, or does not speak HTTP.
    """
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, request)
    answer = b""
    while b"\r\n\r\n" not in answer:
        if not (read := await loop.sock_recv(sock, _MOST_OF_TUNNEL)) or len(answer) > _MOST_OF_TUNNEL:
            raise OSError(errno.ECONNABORTED, "the proxy ended the connection")
        answer += read
    status = answer.split(b"\r\n", 1)[0].decode("latin-1").partition(" ")[2]
    if not status.startswith("2"):
        raise OSError(errno.ECONNREFUSED, f"the proxy answers {status[:80]!r}")


def run_with_sockets(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine like `asyncio.run`, in a loop that can watch sockets, unlike the default loop on Windows."""
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        return runner.run(main)


def _explain(error: OSError) -> str:
    """Return why a connection could not be made, with what to do where this machine is the reason."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return (
            f"more streams than this machine lets a process open ({raise_file_limit()} files): raise the limit "
            "(`ulimit -Hn 65536` as root, LimitNOFILE= of a service) or ask for fewer"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return (
            f"{error.strerror}: for thousands of streams, widen the range of local ports "
            "(sysctl net.ipv4.ip_local_port_range)"
        )
    why = error.strerror
    if why and error.errno and why.startswith("Connect call failed"):  # asyncio's, with a tuple of Python
        why = os.strerror(error.errno)
    return f"{type(error).__name__}: {why}" if why else type(error).__name__
