"""The HTTP/1.1 grammar of one streamed answer: bytes with their arrival in, body pieces with their arrival out."""

from __future__ import annotations

import httptools

from draftwise.backends.base import Piece

__all__ = ["Reply", "ReplyError"]


class ReplyError(Exception):
    """What arrived is not HTTP/1.1."""


class Reply:
    """One answer as it arrives; its methods named `on_...` are called by the parser.

    Args:
        pieces: list that receives the body, without its transfer coding, as it arrives.
    """

    __slots__ = ("_delimited", "_parser", "_time", "complete", "finished", "keep_alive", "pieces", "started", "status")

    def __init__(self, pieces: list[Piece]) -> None:
        self.pieces = pieces
        self.status = 0
        self.started = False
        """Whether a byte of it has arrived."""
        self.complete = False
        self.keep_alive = False
        self.finished = 0.0
        self._time = 0.0
        self._delimited = False
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, time: float, data: bytes) -> None:
        """Take in bytes that arrived at `time`.

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
        """The server has closed its side: that ends a body of no stated length, and breaks any other."""
        if self.status >= 200 and not self._delimited and not self.complete:
            self.complete, self.finished = True, time

    def release(self) -> None:
        """Part from the parser: each holds the other, which would keep the pieces until a garbage collection."""
        del self._parser

    def on_message_begin(self) -> None:
        """Refuse what follows a complete answer."""
        if self.complete:
            raise ReplyError("more bytes than the answer has")

    def on_header(self, name: bytes, _value: bytes) -> None:
        """Notice whether the end of the body can be told from the body."""
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._delimited = True

    def on_headers_complete(self) -> None:
        """Take the status; 1xx heads precede the one that counts."""
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """Keep a piece."""
        self.pieces.append((self._time, body))

    def on_message_complete(self) -> None:
        """Note the end."""
        if self.status < 200:
            self._delimited = False
            return
        self.complete, self.finished = True, self._time
        self.keep_alive = self._parser.should_keep_alive()
