"""Puts the load of one turn on a server, from this process or shared among several."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from draftwise.core import Answer, ClientHealth
from draftwise.measure.load.client import Client
from draftwise.measure.load.health import HealthWatch
from draftwise.measure.load.parser import ResponseParser
from draftwise.measure.load.traffic import Traffic
from draftwise.runs.schedule import Turn

__all__ = ["drive", "limit_garbage_collection", "run_beside"]

_HEAD_START_S = 0.005
"""From the start of a turn to the first arrival of an open loop."""


async def drive(client: Client, turn: Turn, *, seed: int, on_answer: Callable[[Answer], None]) -> ClientHealth:
    """Answer the prompts of a turn under its condition, and return how well this process kept up.

    Args:
        client: of the turn's arm.
        turn: what to send.
        seed: of the run.
        on_answer: called after each request, background ones too; a refused one is an answer with `error`.

    Raises:
        BackendError: the server broke; `on_answer` got everything that had ended.
    """
    parser, watch = ResponseParser(on_answer), HealthWatch(client.backend.now)
    began = client.backend.now() + _HEAD_START_S
    traffic = Traffic(client, turn, seed=seed, began=began, parser=parser, watch=watch)
    try:
        with limit_garbage_collection():
            await run_beside(parser.work(), traffic.run())
    finally:
        health = watch.stop()
        parser.clear()
    return health


async def run_beside(background: Coroutine[Any, Any, None], work: Coroutine[Any, Any, None]) -> None:
    """Await `work` while `background` runs; raise the first error of either."""
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(background)
            await work
            task.cancel()
    except BaseExceptionGroup as failures:
        raise _first(failures) from None


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@contextmanager
def limit_garbage_collection() -> Iterator[None]:
    """Limit garbage collection to new objects: a full collection takes tens of milliseconds."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
