"""Connects the server to its engine: forwards requests and aborts, and distributes each step's output."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from draftwise.core import BackendError, InvalidSetup, SpecConfig
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.engine_outputs import Delta, EngineStats
from draftwise.engine.kernel_cache import count_kernels, make_environment
from draftwise.serve.channel import (
    Abort,
    Add,
    ChannelProtocol,
    EngineFailure,
    PackedRequest,
    Ready,
    RequestsAccepted,
    RequestsRefused,
    SetupRefusal,
    StartupPhase,
    StepResult,
)
from draftwise.serve.engine_process import EngineProcess, build_engine, start_process, unpack
from draftwise.serve.entrance import make_goodbye
from draftwise.serve.errors import RequestError
from draftwise.serve.generation import Generation
from draftwise.serve.served_metrics import ServerMetrics, Timeline

logger = logging.getLogger("draftwise.serve")


@dataclass(slots=True)
class _Live:
    """A request in the engine."""

    generation: Generation
    prompt_index: int
    timeline: Timeline
    num_unfinished: int


class EngineWorker:
    """An engine in another process. After `connect`, everything here runs on one event loop.

    `max_waiting` is the maximum number of waiting sequences. If the engine fails, every request fails, `failure` holds
    the reason, and later requests are rejected.
    """

    def __init__(self, launched: EngineProcess, *, max_waiting: int) -> None:
        self.failure: str | None = None
        self.on_failure: Callable[[], None] = lambda: None
        """Called when the engine has failed, with all that ran refused."""
        self.about: Ready
        self.metrics: ServerMetrics
        self.stats: EngineStats
        """The engine's latest snapshot."""
        self._launched = launched
        self._max_waiting = max_waiting
        self._live: dict[str, _Live] = {}
        self._is_built = self._is_stopping = False
        self._unanswered: dict[int, Generation] = {}
        self._numbers = count()
        self._channel: ChannelProtocol

    def wait_until_built(self, model_name: str, *, on_phase: Callable[[StartupPhase], None] = lambda _: None) -> None:
        """Wait until the engine is ready. `on_phase` is called with each start-up phase.

        Raises:
            InvalidSetup: the model or a setting is invalid.
            BackendError: the engine could not be built for another reason.
        """
        while not isinstance(message := self._receive(), Ready):
            if isinstance(message, StartupPhase):
                on_phase(message)
            elif isinstance(message, SetupRefusal):
                raise InvalidSetup(message.findings)
            elif isinstance(message, EngineFailure):
                raise BackendError(f"The engine could not start: {message.reason}. See the log above.")
        self.about, self.stats, self._is_built = message, message.stats, True
        self.metrics = ServerMetrics(
            model_name=model_name,
            max_model_len=message.config.max_model_len or 1,
            k=message.k,
            read_stats=lambda: self.stats,
        )

    def _receive(self) -> Any:
        try:
            return self._launched.channel.receive()
        except EOFError:
            raise BackendError(f"The engine could not start: {self._launched.join()}.") from None

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[None]:
        """Exchange messages with the engine on the running event loop. Requests unfinished at the end fail."""
        loop = asyncio.get_running_loop()
        _, self._channel = await loop.create_unix_connection(
            lambda: ChannelProtocol(self._take, self._lose), sock=self._launched.channel.socket
        )
        try:
            yield
        finally:
            self._is_stopping = True
            self.fail_all(make_goodbye())
            self._channel.close()

    def stop(self) -> None:
        """Stop the engine after its current step, or at once if it is not built yet."""
        self._launched.channel.socket.close()
        self._launched.join(patient=self._is_built)

    async def submit(self, requests: Sequence[PackedRequest], *, arrived: float) -> Generation:
        """Queue all requests or none. `arrived` is the time of their HTTP call, on the monotonic clock.

        Raises:
            InvalidSetup: the engine cannot run one of them.
            RequestError: 503 if the queue is full, 500 if the engine has failed.
        """
        if self.failure is not None:
            raise self._refusal(self.failure)
        self._check_room(requests)
        generation = Generation(requests, self._abort)
        for index, request in enumerate(requests):
            timeline = Timeline(self.metrics, request, arrived=arrived, queued=time.monotonic())
            self._live[request.request_id] = _Live(generation, index, timeline, request.n)
        number = next(self._numbers)
        self._unanswered[number] = generation
        self._channel.send(Add(number, requests))
        try:
            await generation.wait_until_accepted()
        except asyncio.CancelledError:
            self._unanswered.pop(number, None)
            self._abort(generation)
            raise
        return generation

    def _check_room(self, requests: Sequence[PackedRequest]) -> None:
        """Refuse requests for which the queue has no room."""
        wanted = sum(request.n for request in requests)
        places = self.about.config.num_slots
        most = places + self._max_waiting
        if wanted > most:
            raise RequestError(
                400,
                f"The request asks for {wanted} completions at once, but this server takes at most {most} "
                f"({places} running and {self._max_waiting} waiting). Split it.",
            )
        if wanted + sum(live.num_unfinished for live in self._live.values()) > most:
            self.metrics.count_rejected()
            message = f"The queue is full ({self._max_waiting} requests wait). Try again later."
            raise RequestError(503, message, headers={"Retry-After": "1"})

    def _take(self, message: Any) -> None:
        """Process a message of the engine."""
        if isinstance(message, StepResult):
            self.stats = message.stats  # first, so that every answer is counted before it is sent
            for delta in message.unpack():
                self._deal_out(delta, message)
        elif isinstance(message, RequestsAccepted | RequestsRefused):
            if (generation := self._unanswered.pop(message.number, None)) is None:
                return  # its client has left
            if isinstance(message, RequestsAccepted):
                generation.accept()
            else:
                self._forget(generation)
                generation.fail(InvalidSetup(message.findings))
        elif isinstance(message, EngineFailure):
            self._break(message.reason)

    def _deal_out(self, delta: Delta, step: StepResult) -> None:
        live = self._live.get(delta.request_id)
        if live is None:
            return  # aborted while the step ran
        live.timeline.note_delta(delta, began=step.began, now=step.ended)
        if delta.finish_reason in ("abort", "error"):  # no client takes a part for the answer
            message = f"The structured output could not be completed: {delta.stop_reason}. Change or simplify it."
            error = RequestError(400, message, param="structured_outputs")
            if delta.finish_reason == "error":
                error = RequestError(500, str(delta.stop_reason))
            live.generation.fail(error)
            self._forget(live.generation)
            self._channel.send(Abort([request.request_id for request in live.generation.requests]))
            return
        live.generation.push(live.prompt_index, delta)
        live.num_unfinished -= delta.finish_reason is not None
        if not live.num_unfinished:
            del self._live[delta.request_id]

    def _abort(self, generation: Generation) -> None:
        forgotten = self._forget(generation)
        self._channel.send(Abort([request.request_id for request in generation.requests]))
        self.metrics.count_finished("abort", sum(live.num_unfinished for live in forgotten))

    def _forget(self, generation: Generation) -> list[_Live]:
        """Stop tracking the requests of a call; return those that were running."""
        found = (self._live.pop(request.request_id, None) for request in generation.requests)
        return [live for live in found if live is not None]

    def _lose(self) -> None:
        """Handle the end of the connection: after a failure, at shutdown, or because the engine's process died."""
        if self.failure is None and not self._is_stopping:
            self._break(self._launched.describe_end())

    def _break(self, reason: str) -> None:
        self.failure = reason
        logger.error("The engine failed (%s) with %d requests; the server ends.", reason, len(self._live))
        self.fail_all(self._refusal(reason))
        self.stats = replace(self.stats, num_running=0, num_waiting=0)
        self.on_failure()

    def fail_all(self, error: Exception) -> None:
        """End every request with an error."""
        for generation in self._unanswered.values():
            generation.fail(error)
        for live in self._live.values():
            live.generation.fail(error)
            self.metrics.count_finished("error", live.num_unfinished)
        self._live.clear()

    def _refusal(self, reason: str) -> RequestError:
        return RequestError(500, f"The engine failed ({reason}); restart the server.")


class FilledKernels(NamedTuple):
    """Size of a kernel folder."""

    num_kernels: int
    num_bytes: int


def fill_kernel_cache(
    config: EngineConfig, spec: SpecConfig | None, folder: str, *, on_phase: Callable[[StartupPhase], None]
) -> FilledKernels:
    """Fill a kernel folder by starting and stopping a server's engine on it.

    Raises:
        InvalidSetup: the model, a setting or the folder cannot be used.
        BackendError: the engine cannot be built for another reason.
    """
    config, spec = unpack(config, spec)
    build = partial(build_engine, config, None if spec is None else spec.to_json())
    worker = EngineWorker(start_process(build, environment=make_environment(folder)), max_waiting=0)
    try:
        worker.wait_until_built(config.model, on_phase=on_phase)
    finally:
        worker.stop()
    return FilledKernels(*count_kernels(folder))
