"""TLS between a socket and what is said over it, so that the socket stays ours and so do its time stamps."""

from __future__ import annotations

import asyncio
import socket
import ssl

__all__ = ["Tls"]

_READ_BYTES = 1 << 14
"""A record holds no more."""


class Tls:
    """The client's side of one connection; it touches the socket only to shake hands.

    Args:
        context: whom to trust.
        name: of the server, to be found in its certificate.
    """

    def __init__(self, context: ssl.SSLContext, name: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)
        self.ended = False
        """Whether the server has said that nothing will follow."""

    async def shake_hands(self, sock: socket.socket) -> None:
        """Agree on keys.

        Raises:
            OSError: the certificate is not trusted (ssl.SSLError), or the connection broke.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                await loop.sock_sendall(sock, self._outgoing.read())
                if not (data := await loop.sock_recv(sock, _READ_BYTES)):
                    raise ConnectionResetError("closed by the server during the TLS handshake") from None
                self._incoming.write(data)
            else:
                return await loop.sock_sendall(sock, self._outgoing.read())

    def encrypt(self, data: bytes) -> bytes:
        """Return what to send, with whatever else is due."""
        self._object.write(data)
        return self._outgoing.read()

    def decrypt(self, data: bytes) -> bytes:
        """Return what received bytes say, which may be nothing yet.

        Raises:
            ssl.SSLError: they are not what the server can have sent.
        """
        self._incoming.write(data)
        parts = []
        try:
            while part := self._object.read(_READ_BYTES):
                parts.append(part)
            self.ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        return b"".join(parts)
