"""HTTP handling below the endpoints: bounded bodies, client disconnects, event streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from draftwise.serve.errors import RequestError
from draftwise.serve.generation import Call, Generation, stream_events

_LARGEST_BODY = 16 * 2**20
_OVERHEAD = 2**20
"""Maximum bytes of a body for everything except its prompt: tools, a schema, logit_bias."""
_BYTES_A_CHARACTER = 6
"""Maximum bytes per character: JSON may write one as \\u1234."""
_ALL_BODIES = 2**28
"""Maximum bytes of all bodies held at once."""
_PAUSE_S = 30.0
"""Longest wait for the next piece of a body, in seconds."""
_SLOWEST = 2**15
"""Minimum bytes of a body per second, after the first pause."""


class BodyReader:
    """Reads request bodies within limits for each and for all together.

    Args:
        most_characters: maximum characters of a prompt that the model can take.
    """

    def __init__(self, most_characters: int) -> None:
        self._largest = min(_OVERHEAD + _BYTES_A_CHARACTER * most_characters, _LARGEST_BODY)
        self._held = 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """Yield the body, which counts toward the limit until the block ends.

        Raises:
            RequestError: 413 as soon as it is too large, 408 if its next piece is late, 503 if too many bodies are
                being read.
            ClientDisconnect: the client left.
        """
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._largest:
            raise self._too_large()
        chunks: list[bytes] = []
        size, stream, clock = 0, request.stream(), asyncio.get_running_loop().time
        began = clock()
        try:
            while True:
                try:
                    async with asyncio.timeout(min(_PAUSE_S, began + _PAUSE_S + size / _SLOWEST - clock())):
                        chunk = await anext(stream)
                except StopAsyncIteration:
                    break
                except TimeoutError:
                    raise RequestError(408, "The body did not arrive.", headers={"Connection": "close"}) from None
                size += len(chunk)
                self._held += len(chunk)
                if size > self._largest:
                    raise self._too_large()
                if self._held > _ALL_BODIES:
                    message = "Too many large bodies arrive at once. Try again later."
                    raise RequestError(503, message, headers={"Connection": "close", "Retry-After": "1"})
                chunks.append(chunk)
            yield b"".join(chunks)
        finally:
            self._held -= size

    def _too_large(self) -> RequestError:
        message = f"The body is larger than {self._largest} bytes, more than any prompt of this model takes."
        return RequestError(413, message, headers={"Connection": "close"})


async def run_until_disconnect(work: asyncio.Future, receive: Receive) -> None:
    """Wait until `work` is done or the client disconnects, then cancel the other."""

    async def wait_for_disconnect() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    gone = asyncio.ensure_future(wait_for_disconnect())
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        work.cancel()


class EventStream(Response):
    """A stream of server-sent events. A disconnect aborts the generation, even between events."""

    def __init__(self, call: Call, generation: Generation) -> None:
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._call = call
        self._generation = generation

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the end or until the client disconnects."""
        with self._generation:
            work = asyncio.ensure_future(self._send_events(send))
            await run_until_disconnect(work, receive)
            if work.done():
                work.result()

    async def _send_events(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for event in stream_events(self._call, self._generation):
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
