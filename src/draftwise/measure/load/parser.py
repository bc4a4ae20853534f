"""Parses finished responses while others are still streaming, a few events at a time, so that no arrival is delayed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

from draftwise.backends import Exchange
from draftwise.core import Answer
from draftwise.measure.load.client import LoadRequest, to_answer
from draftwise.measure.load.response import ParsedResponse

__all__ = ["ResponseParser"]


class ResponseParser:
    """A queue of finished responses, which are parsed one after another.

    Args:
        on_answer: called with each answer once it is parsed.
    """

    def __init__(self, on_answer: Callable[[Answer], None]) -> None:
        self._on_answer = on_answer
        self._waiting: deque[tuple[LoadRequest, Exchange]] = deque()
        self._woken = asyncio.Event()
        self._work = self._steps()

    def put(self, request: LoadRequest, exchange: Exchange) -> None:
        """Queue a response."""
        self._waiting.append((request, exchange))
        self._woken.set()

    async def work(self) -> None:
        """Parse whatever is queued, until cancelled."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            self._work = self._steps()
            for _ in self._work:
                await asyncio.sleep(0)

    def clear(self) -> None:
        """Parse all that is left, at once."""
        for steps in (self._work, self._steps()):
            for _ in steps:
                pass

    def _steps(self) -> Iterator[None]:
        while self._waiting:
            request, exchange = self._waiting.popleft()
            response = ParsedResponse(exchange)
            yield from response.steps()
            self._on_answer(to_answer(request, exchange, response))
            yield
