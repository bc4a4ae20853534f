"""The engine's own thread: takes requests and aborts, steps while there is work, hands out increments."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import chain

from draftwise.core import InvalidSetup
from draftwise.engine.core import Engine, EngineStats
from draftwise.engine.outputs import Delta
from draftwise.engine.sequence import Request
from draftwise.serve.errors import RequestError
from draftwise.serve.generation import Generation
from draftwise.serve.metrics import ServerMetrics
from draftwise.serve.timeline import Timeline

__all__ = ["EngineWorker"]

logger = logging.getLogger("draftwise.serve")


@dataclass(slots=True)
class _Live:
    """A request inside the engine."""

    generation: Generation
    prompt_index: int
    timeline: Timeline
    num_unfinished: int


class EngineWorker:
    """Owns the engine: builds it, calls it and nobody else does.

    `max_waiting` bounds the sequences that may wait beyond the engine's free places. When the engine raises,
    every request fails, `failure` says why, and later requests are refused.
    """

    def __init__(self, build: Callable[[], Engine], *, max_waiting: int) -> None:
        self.failure: Exception | None = None
        self.engine: Engine
        self.metrics: ServerMetrics
        self.stats: EngineStats
        """The engine's latest snapshot."""
        self._build = build
        self._max_waiting = max_waiting
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._live: dict[str, _Live] = {}
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="draftwise-engine", daemon=True)

    def start(self, model_name: str) -> None:
        """Build the engine and begin to serve; raises what building raises."""
        self._thread.start()
        self._ready.result()
        k = self.engine.spec.k if self.engine.spec else None
        self.metrics = ServerMetrics(
            model_name=model_name,
            max_model_len=self.engine.config.max_model_len or 1,
            k=k,
            read_stats=lambda: self.stats,
        )

    def stop(self) -> None:
        """Fail what is unfinished and end the thread after its current step."""
        self._commands.put(None)
        self._thread.join()

    async def submit(self, requests: Sequence[Request], *, arrived: float) -> Generation:
        """Queue requests, all or none; `arrived` is when their HTTP call came, on the monotonic clock.

        Raises:
            InvalidSetup: the engine cannot run one of them.
            RequestError: 503 when the queue is full, 500 when the engine has failed.
        """
        generation = Generation(requests, self._request_abort)
        self._commands.put(partial(self._add, generation, arrived))
        try:
            await generation.accepted()
        except asyncio.CancelledError:
            self._request_abort(generation)
            raise
        return generation

    def _request_abort(self, generation: Generation) -> None:
        self._commands.put(partial(self._abort, generation))

    def _run(self) -> None:
        try:
            self.engine = self._build()
            self.stats = self.engine.stats()
        except BaseException as error:
            self._ready.set_exception(error)
            return
        self._ready.set_result(None)
        while True:
            try:
                if not self._obey():
                    break
                self._step()
            except Exception as error:
                logger.exception("The engine failed; every request is refused from now on.")
                self.failure = error
                self._fail_all(self._refusal())
        self._fail_all(RequestError(503, "The server is shutting down."))

    def _obey(self) -> bool:
        """Carry out what was asked for, waiting for it when the engine is idle; False when asked to stop."""
        wait = self.failure is not None or not self.engine.has_work()
        while True:
            try:
                command = self._commands.get(block=wait)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()
            wait = False

    def _step(self) -> None:
        if self.failure is not None:
            return
        began = time.monotonic()
        deltas = self.engine.step()
        now = time.monotonic()
        self.stats = self.engine.stats()  # first, so that whoever has an answer finds it counted
        self._note_scheduled(deltas, began)
        for delta in deltas:
            self._pass_on(delta, now)

    def _pass_on(self, delta: Delta, now: float) -> None:
        live = self._live[delta.request_id]
        live.timeline.note_delta(delta, now)
        live.generation.push(live.prompt_index, delta)
        live.num_unfinished -= delta.finish_reason is not None
        if not live.num_unfinished:
            del self._live[delta.request_id]

    def _note_scheduled(self, deltas: list[Delta], began: float) -> None:
        """Tell the requests that this step computed for the first time."""
        running = (sequence.request.request_id for sequence in self.engine.scheduler.running)
        for request_id in chain(running, (delta.request_id for delta in deltas)):
            timeline = self._live[request_id].timeline
            if timeline.waiting:
                timeline.note_scheduled(began)

    def _add(self, generation: Generation, arrived: float) -> None:
        if self.failure is not None:
            generation.fail(self._refusal())
            return
        if (refusal := self._find_refusal(generation)) is not None:
            generation.fail(refusal)
            return
        for index, request in enumerate(generation.requests):
            timeline = Timeline(self.metrics, request, arrived=arrived, queued=time.monotonic())
            self._live[request.request_id] = _Live(generation, index, timeline, request.params.n)
            try:
                self.engine.add(request)
            except InvalidSetup as error:
                del self._live[request.request_id]
                self._abort(generation)
                generation.fail(error)
                return
        generation.accept()

    def _find_refusal(self, generation: Generation) -> RequestError | None:
        """Return why the queue has no room for these requests, or None."""
        wanted = sum(request.params.n for request in generation.requests)
        places = self.engine.config.max_num_seqs
        most = places + self._max_waiting
        if wanted > most:
            return RequestError(
                400,
                f"The request asks for {wanted} completions at once, but this server takes {most} at most "
                f"({places} running and {self._max_waiting} waiting). Split it.",
            )
        if wanted + sum(live.num_unfinished for live in self._live.values()) > most:
            self.metrics.count_rejected()
            message = f"The queue is full ({self._max_waiting} requests wait). Try again later."
            return RequestError(503, message, headers={"Retry-After": "1"})
        return None

    def _abort(self, generation: Generation) -> None:
        for request in generation.requests:
            live = self._live.pop(request.request_id, None)
            if live is not None:
                self.engine.abort(request.request_id)
                self.metrics.count_finished("abort", live.num_unfinished)

    def _fail_all(self, error: Exception) -> None:
        for live in self._live.values():
            live.generation.fail(error)
            self.metrics.count_finished("error", live.num_unfinished)
        self._live.clear()

    def _refusal(self) -> RequestError:
        return RequestError(500, f"The engine failed ({self.failure!r}); restart the server.")
