"""The engine's own loop: takes requests and aborts, steps while there is work, and sends the results of each step."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

from draftwise.core import Finding, InvalidSetup
from draftwise.engine.startup_phases import Startup, TimedStartup
from draftwise.serve.channel import (
    Abort,
    Add,
    Channel,
    EngineFailure,
    Ready,
    RequestsAccepted,
    RequestsRefused,
    SetupRefusal,
    StartupPhase,
    StepResult,
)

if TYPE_CHECKING:
    from draftwise.engine.core import Engine, Pending

__all__ = ["Build", "run_engine"]

logger = logging.getLogger("draftwise.serve")

_COMPILERS = 2
"""Grammars that are compiled at once, while steps run."""
_POLL_S = 0.001
"""How often an idle engine looks whether a grammar is compiled."""

Build = Callable[[Startup], "Engine"]
"""Builds the engine and reports the phases of its start-up."""


def run_engine(build: Build, channel: Channel) -> None:
    """Build an engine and run it until the other end of the channel closes, or the engine fails."""
    try:
        engine = build(_ReportedStartup(channel))
        _EngineLoop(engine, channel).run()
    except (EOFError, ConnectionError):
        return  # the server is gone
    except InvalidSetup as error:
        _send_last(SetupRefusal(error.findings), channel)
    except Exception as error:
        logger.exception("The engine failed; all further requests are refused.")
        _send_last(EngineFailure(repr(error)), channel)


def _send_last(message: SetupRefusal | EngineFailure, channel: Channel) -> None:
    with suppress(ConnectionError):
        channel.send(message)


class _ReportedStartup(TimedStartup):
    """Sends the phases to the other end."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def began(self, name: str) -> None:
        self._channel.send(StartupPhase(name))

    def ended(self, name: str, seconds: float) -> None:
        self._channel.send(StartupPhase(name, seconds))


class _EngineLoop:
    def __init__(self, engine: Engine, channel: Channel) -> None:
        self._engine = engine
        self._channel = channel
        self._sent_stats = engine.stats()
        """The snapshot that was sent last."""
        self._pending: Pending = ()
        self._compilers = ThreadPoolExecutor(_COMPILERS, "draftwise-grammar")
        self._compiling: list[tuple[Add, list[Future]]] = []
        """Requests whose grammars are not compiled yet."""

    def run(self) -> None:
        """Run until `receive` raises because the other end is gone."""
        engine, spec = self._engine, self._engine.spec
        self._channel.send(
            Ready(
                config=engine.config,
                k=spec.k if spec else None,
                spec=spec.to_dict() if spec else None,
                findings=engine.findings,
                num_pages=engine.num_pages,
                stats=self._sent_stats,
            )
        )
        while True:
            self._process_messages()
            self._step()

    def _process_messages(self) -> None:
        """Process the messages; wait for one if the engine is idle."""
        wait = not self._engine.has_work()
        while (wait and not self._compiling) or self._channel.has_message(_POLL_S if wait else 0):
            message = self._channel.receive()
            if isinstance(message, Add):
                self._add(message)
            elif isinstance(message, Abort):
                for request_id in message.request_ids:
                    self._engine.abort(request_id)
                self._compiling = [
                    each for each in self._compiling if each[0].requests[0].request_id not in message.request_ids
                ]
            wait = False
        self._add_compiled()

    def _add(self, message: Add) -> None:
        """Queue requests, once their grammars are compiled."""
        wanted = [each.params.structured_outputs for each in message.requests]
        new = {each.key: each for each in wanted if each is not None and not self._engine.grammars.has(each)}
        if new:
            futures: list[Future] = [
                self._compilers.submit(self._engine.grammars.compile, each) for each in new.values()
            ]
            self._compiling.append((message, futures))
        else:
            self._queue(message)

    def _add_compiled(self) -> None:
        compiling, self._compiling = self._compiling, []
        for message, futures in compiling:
            if not all(future.done() for future in futures):
                self._compiling.append((message, futures))
            elif failures := [error for future in futures if (error := future.exception()) is not None]:
                self._channel.send(RequestsRefused(message.number, _describe(failures[0])))
            else:
                self._queue(message)

    def _queue(self, message: Add) -> None:
        for position, request in enumerate(message.requests):
            try:
                self._engine.add(request)
            except InvalidSetup as error:
                for earlier in message.requests[:position]:
                    self._engine.abort(earlier.request_id)
                self._channel.send(RequestsRefused(message.number, error.findings))
                return
        self._channel.send(RequestsAccepted(message.number))

    def _step(self) -> None:
        began = time.monotonic()
        self._pending, deltas = self._engine.step(self._pending)
        ended = time.monotonic()
        stats = self._engine.stats()
        if deltas or stats != self._sent_stats:
            self._sent_stats = stats
            self._channel.send(StepResult.pack(deltas, stats, began=began, ended=ended))


def _describe(failure: BaseException) -> Sequence[Finding]:
    """Return the findings of a grammar that could not be compiled."""
    if isinstance(failure, InvalidSetup):
        return failure.findings
    logger.error("A grammar could not be compiled.", exc_info=failure)
    message = "The grammar could not be compiled; the server's log says more."
    return [Finding.error("invalid-grammar", message, where="structured_outputs")]
