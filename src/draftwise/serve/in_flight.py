"""Tracks requests in flight: counts them, and ends them when the server ends."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from draftwise.serve.errors import RequestError, handle_request_error


def make_goodbye() -> RequestError:
    """Return the error for requests that an ending server has no time for."""
    message = "The server is shutting down. Use another server, or try again later."
    return RequestError(503, message, headers={"Connection": "close", "Retry-After": "1"})


class InFlight:
    """Counts requests with a body. Once the server ends, answers new ones with 503 and waits for the last."""

    def __init__(self) -> None:
        self.is_closing = False
        self._unanswered: set[asyncio.Task[None]] = set()
        """Requests whose answer has not begun."""
        self.count = 0

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """Wrap an application to count its requests."""

        async def call(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["method"] != "POST":
                await app(scope, receive, send)
            elif self.is_closing:
                await _refuse(scope, receive, send)
            else:
                self.count += 1
                try:
                    await self._answer(app, scope, receive, send)
                finally:
                    self.count -= 1

        return call

    async def _answer(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_on(message: Message) -> None:
            self._unanswered.discard(task)
            await send(message)

        task = asyncio.ensure_future(app(scope, receive, send_on))
        self._unanswered.add(task)
        try:
            await asyncio.wait({task})
            is_cut = task.cancelled()
        finally:
            self._unanswered.discard(task)
            task.cancel()
        if is_cut:
            await _refuse(scope, receive, send)
        else:
            task.result()

    def close(self) -> None:
        """Reject requests from now on."""
        self.is_closing = True

    def cut(self) -> None:
        """Answer pending requests with 503, such as those whose body has not arrived."""
        for task in list(self._unanswered):
            task.cancel()

    async def wait_until_idle(self, seconds: float) -> bool:
        """Wait up to `seconds`; return whether every answer has ended."""
        end = asyncio.get_running_loop().time() + seconds
        while self.count and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.02)
        return not self.count


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    await handle_request_error(Request(scope), make_goodbye())(scope, receive, send)
