"""HTTP below the endpoints: bounded bodies, disconnects of clients, event streams and the API key."""

from __future__ import annotations

import asyncio
import hashlib
import hmac

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from draftwise.serve.errors import RequestError, handle_request_error
from draftwise.serve.generation import Call, Generation, stream_events

__all__ = ["ApiKey", "EventStream", "read_body", "run_until_disconnect"]

_MAX_BODY_BYTES = 16 * 2**20


async def read_body(request: Request) -> bytes:
    """Return the body; raise as soon as it is too large."""
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > _MAX_BODY_BYTES:
            message = f"The body is larger than {_MAX_BODY_BYTES} bytes."
            raise RequestError(413, message, headers={"Connection": "close"})
        chunks.append(chunk)
    return b"".join(chunks)


async def run_until_disconnect(work: asyncio.Future, receive: Receive) -> None:
    """Wait until `work` is done or the client disconnects; then cancel the other."""

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
    """Server-sent events; a client that disconnects aborts the generation, even while nothing is sent."""

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


class ApiKey:
    """Requires `Authorization: Bearer KEY` under /v1; the other paths stay open to probes, as in vLLM."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._digest = _digest(key.encode("utf-8", "surrogateescape"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] == "http" and scope["path"].startswith("/v1") and not self._admits(Headers(scope=scope)):
            error = RequestError(401, "The API key is missing or wrong.", headers={"WWW-Authenticate": "Bearer"})
            await handle_request_error(Request(scope), error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _admits(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(_digest(given.encode("latin-1")), self._digest)


def _digest(key: bytes) -> bytes:
    """Return values of equal length for the constant-time comparison, to hide even the key's length."""
    return hashlib.sha256(key).digest()
