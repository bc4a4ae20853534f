"""The engine's loop: takes requests and aborts, runs steps while there is work, and sends each step's results.

A step ends for all its sequences at once: on a CPU, a prompt of a thousand tokens stalls all others for a second. So
prompts are split into pieces that take about `GAP_S`, according to the time of earlier pieces.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from draftwise.core import Finding, InvalidSetup
from draftwise.engine.startup_phases import Startup, TimedStartup
from draftwise.knowledge.messages import fault
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

GAP_S = 0.02
"""Seconds that prompts may add to a step with decoding sequences."""
_SHARE = 0.25
"""Share of a step's own time that they may add if that is longer, to make progress on a slow machine."""
_FIRST_ROWS, _FIRST_RANKED = 64, 16
"""Rows of the first piece, before any measurement: plain, or with log-probabilities."""
_MEMORY = 0.8
"""Weight of the past in the moving average over steps without prompts."""


class PromptPace:
    """Measures steps and decides how many prompt rows the next one may have.

    Args:
        least: minimum rows of a piece, which keeps prompts going on any machine.
        most: maximum rows of a piece.
    """

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most
        self._row_s, self._ranked_s = GAP_S / _FIRST_ROWS, GAP_S / _FIRST_RANKED
        self._step_s = 0.0

    @property
    def rows(self) -> int:
        """Number of plain rows that fit into the allowed time."""
        return max(self._least, min(self._most, int(max(GAP_S, _SHARE * self._step_s) / self._row_s)))

    @property
    def ranked_row(self) -> float:
        """Plain rows that take as long as one with log-probabilities, limited to let a piece keep `least` rows."""
        return min(max(self._ranked_s / self._row_s, 1.0), self.rows / self._least)

    def note(self, rows: int, seconds: float, *, decodes: bool, ranked: int = 0) -> None:
        """Record a step with `rows` prompt rows, `ranked` of them with log-probabilities.

        Slower steps count fully, faster ones half: a stalled stream is worse than a slightly slower prompt.
        """
        if rows == 0:
            self._step_s = _MEMORY * self._step_s + (1 - _MEMORY) * seconds if self._step_s else seconds
            return
        expected_s = (rows - ranked) * self._row_s + ranked * self._ranked_s
        factor = max(seconds - self._step_s * decodes, 0.1 * seconds) / expected_s
        factor = factor if factor > 1 else (factor + 1) / 2
        self._row_s *= factor if rows > ranked else 1
        self._ranked_s *= factor if ranked else 1


logger = logging.getLogger("draftwise.serve")

_COMPILERS = 2
"""Maximum number of grammars compiled concurrently with steps."""
_POLL_S = 0.001
"""Seconds between an idle engine's checks for compiled grammars."""
_ENTER_S = 0.005
"""Seconds for new requests between two steps."""
_LEAST_ROWS = 10
"""Minimum prompt rows of a step if prompts wait: half as many would take a quarter longer in total."""

_TRIM_S = 10.0
"""Seconds between returns of the allocator's free memory to the system: prompts of varied lengths fragment it."""

Build = Callable[[Startup], "Engine"]
"""Builds the engine and reports its start-up phases."""


def run_engine(build: Build, channel: Channel) -> None:
    """Build an engine and run it until the channel's other end closes or the engine fails."""
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


@dataclass(slots=True)
class _Entry:
    message: Add
    num_added: int = 0
    """Requests of the message that the engine has."""


class _EngineLoop:
    def __init__(self, engine: Engine, channel: Channel) -> None:
        self._engine = engine
        self._channel = channel
        self._sent_stats = engine.stats()
        """The snapshot that was sent last."""
        self._pending: Pending = ()
        self._compilers = ThreadPoolExecutor(_COMPILERS, "draftwise-grammar")
        self._compiling: list[tuple[_Entry, Future]] = []
        """Requests whose grammars are still compiling."""
        self._queue: deque[_Entry] = deque()
        """Requests that the engine takes next."""
        self._trim, self._trimmed = getattr(ctypes.CDLL(None), "malloc_trim", None), time.monotonic()  # glibc has it
        self._pace = None if engine.lag else _make_pace(engine)

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
        try:
            while True:
                self._process_messages()
                self._step()
        finally:
            self._compilers.shutdown(wait=False, cancel_futures=True)  # otherwise the process ends after all of them

    def _process_messages(self) -> None:
        """Process the messages; wait for one if there is nothing else to do."""
        wait = not self._engine.has_work() and not self._queue
        while (wait and not self._compiling) or self._channel.has_message(_POLL_S if wait else 0):
            message = self._channel.receive()
            if isinstance(message, Add):
                self._add(_Entry(message))
            elif isinstance(message, Abort):
                self._abort(frozenset(message.request_ids))
            wait = False
        self._add_compiled()
        self._enter()

    def _abort(self, request_ids: Collection[str]) -> None:
        for request_id in request_ids:
            self._engine.abort(request_id)

        def is_dropped(entry: _Entry) -> bool:
            return entry.message.requests[0].request_id in request_ids

        for entry, future in self._compiling:
            if is_dropped(entry):
                future.cancel()  # unless it has begun
        self._compiling = [each for each in self._compiling if not is_dropped(each[0])]
        self._queue = deque(each for each in self._queue if not is_dropped(each))

    def _add(self, entry: _Entry) -> None:
        """Queue requests, once the grammar of all of them is compiled."""
        wanted = entry.message.requests[0].unpack().params.structured_outputs
        if wanted is not None and not self._engine.grammars.has(wanted):
            self._compiling.append((entry, self._compilers.submit(self._engine.grammars.compile, wanted)))
        else:
            self._queue.append(entry)

    def _add_compiled(self) -> None:
        compiling, self._compiling = self._compiling, []
        for entry, future in compiling:
            if not future.done():
                self._compiling.append((entry, future))
            elif (failure := future.exception()) is not None:
                self._refuse(entry, _describe(failure))
            else:
                self._queue.append(entry)

    def _enter(self) -> None:
        """Hand requests to the engine for a few milliseconds: more of them wait until the next step is done."""
        end = time.monotonic() + _ENTER_S
        while self._queue and time.monotonic() < end:
            entry = self._queue[0]
            message = entry.message
            request = message.requests[entry.num_added].unpack()
            wanted = request.params.structured_outputs
            if wanted is not None and not self._engine.grammars.has(wanted):  # as others took its place
                self._add(self._queue.popleft())
                continue
            try:
                self._engine.add(request)
            except InvalidSetup as error:
                self._refuse(self._queue.popleft(), error.findings)
                continue
            entry.num_added += 1
            if entry.num_added == len(message.requests):
                self._queue.popleft()
                self._channel.send(RequestsAccepted(message.number))

    def _refuse(self, entry: _Entry, findings: Sequence[Finding]) -> None:
        for earlier in entry.message.requests[: entry.num_added]:
            self._engine.abort(earlier.request_id)
        self._channel.send(RequestsRefused(entry.message.number, findings))

    def _step(self) -> None:
        if self._pace is not None:
            scheduler = self._engine.scheduler
            scheduler.most_rows_between, scheduler.ranked_row = self._pace.rows, self._pace.ranked_row
        began = time.monotonic()
        self._pending, deltas = self._engine.step(self._pending)
        ended = time.monotonic()
        if self._pace is not None and (schedule := self._engine.scheduled) is not None:
            rows = sum(chunk.length for chunk in schedule.chunks)
            ranked = sum(c.length for c in schedule.chunks if c.sequence.params.prompt_logprobs is not None)
            self._pace.note(rows, ended - began, decodes=bool(schedule.decodes), ranked=ranked)
        stats = self._engine.stats()
        while deltas and deltas[0].prompt_logprobs is not None:  # they come first, and are large: a message each
            self._channel.send(StepResult.pack([deltas.pop(0)], stats, began=began, ended=ended))
        if deltas or stats != self._sent_stats:
            self._sent_stats = stats
            self._channel.send(StepResult.pack(deltas, stats, began=began, ended=ended))
        if self._trim is not None and ended - self._trimmed > _TRIM_S:  # nobody waits for this step any more
            self._trim(0)
            self._trimmed = ended


def _describe(failure: BaseException) -> Sequence[Finding]:
    """Return the findings of a grammar that could not be compiled."""
    if isinstance(failure, InvalidSetup):
        return failure.findings
    logger.error("A grammar could not be compiled.", exc_info=failure)
    return [fault("invalid-grammar", case="log")]


def _make_pace(engine: Engine) -> PromptPace:
    """Return the pace of prompts, whose pieces are no longer than what fewer threads may compute."""
    engine.scheduler.most_shared_rows = engine.runner.most_shared_rows
    governed, most = engine.runner.threads, engine.config.num_step_tokens
    return PromptPace(_LEAST_ROWS, min(most, governed.most_rows) if governed else most)
