"""The requests that are being answered: how many there are, and how they end when the server does."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from draftwise.serve.errors import RequestError, handle_request_error


def make_goodbye() -> RequestError:
    """Return the answer to requests for which a server that ends has no more time."""
    message = "The server is shutting down. Use another server, or try again later."
    return RequestError(503, message, headers={"Connection": "close", "Retry-After": "1"})


class InFlight:
    """Counts requests with a body; once the server ends, answers new ones with 503 and says when the last has ended."""

    def __init__(self) -> None:
        self.is_closing = False
        self._unanswered: set[asyncio.Task[None]] = set()
        """Requests whose answer has not begun."""
        self.count = 0

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """Return the application, counted."""

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
        """Refuse requests from now on."""
        self.is_closing = True

    def cut(self) -> None:
        """Answer with 503 what is not being answered yet, such as requests whose body is still to come."""
        for task in list(self._unanswered):
            task.cancel()

    async def wait_until_idle(self, seconds: float) -> bool:
        """Return whether every answer has ended by then."""
        end = asyncio.get_running_loop().time() + seconds
        while self.count and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.02)
        return not self.count


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    await handle_request_error(Request(scope), make_goodbye())(scope, receive, send)
