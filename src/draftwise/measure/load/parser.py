"""Reads finished answers beside the traffic, in parts so small that no arrival waits for them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

from draftwise.backends import Exchange
from draftwise.core import Answer
from draftwise.measure.load.client import Sending, to_answer
from draftwise.measure.load.reading import Reading

__all__ = ["Desk"]


class Desk:
    """Where finished answers are put, to be read one after another.

    Args:
        on_answer: told of each answer once it is read.
    """

    def __init__(self, on_answer: Callable[[Answer], None]) -> None:
        self._on_answer = on_answer
        self._waiting: deque[tuple[Sending, Exchange]] = deque()
        self._woken = asyncio.Event()
        self._work = self._steps()

    def put(self, sending: Sending, exchange: Exchange) -> None:
        """Leave an answer to be read."""
        self._waiting.append((sending, exchange))
        self._woken.set()

    async def work(self) -> None:
        """Read whatever is put, until cancelled."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            self._work = self._steps()
            for _ in self._work:
                await asyncio.sleep(0)

    def clear(self) -> None:
        """Read all that is left, at once."""
        for steps in (self._work, self._steps()):
            for _ in steps:
                pass

    def _steps(self) -> Iterator[None]:
        while self._waiting:
            sending, exchange = self._waiting.popleft()
            reading = Reading(exchange)
            yield from reading.steps()
            self._on_answer(to_answer(sending, exchange, reading))
            yield
