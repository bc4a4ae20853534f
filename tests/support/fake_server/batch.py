"""The pretend batch: a queue, requests that step on their own, and one timer for all of them."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from heapq import heappop, heappush
from typing import Any

from draftwise.core import ServerLoad
from tests.support.fake_server.metrics import FakeMetrics, spec_metrics
from tests.support.fake_server.script import FakeScript
from tests.support.fake_server.stream import Stream

__all__ = ["Batch"]

_TOGETHER = 32
"""Pieces that go out as one when a stream is behind its time."""
_TURN = 64
"""Streams served before the event loop looks at its sockets again."""
_SAME_TIME_S = 1e-9


class Batch:
    """Serves streams at the times of the script, in the event loop that is running when it is made."""

    def __init__(self, script: FakeScript, metrics: FakeMetrics) -> None:
        self._script = script
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._waiting: deque[Stream] = deque()
        self._running: dict[Stream, None] = {}  # a set whose order is that of starting
        self._heap: list[tuple[float, int, Stream]] = []
        self._held_tokens = 0
        self._sizes: set[int] = set()
        """Of the batch so far."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def load(self) -> ServerLoad:
        """Readings of the gauges."""
        running = len(self._running) + self._script.foreign_running
        return ServerLoad(
            running=running, waiting=len(self._waiting), kv_usage=self._held_tokens / self._script.kv_tokens
        )

    @property
    def foreign_tokens(self) -> int:
        """Tokens that others have got since the start."""
        return int(self._script.foreign_tokens_per_s * (self._loop.time() - self._began))

    @property
    def is_full(self) -> bool:
        """Whether another request would have to wait."""
        limit = self._script.max_running
        return limit is not None and len(self._running) >= limit

    @property
    def refuses(self) -> bool:
        """Whether another request would find no place to wait either."""
        limit = self._script.max_waiting
        return limit is not None and self.is_full and len(self._waiting) >= limit

    def add(self, stream: Stream) -> None:
        """Serve a stream, now or when there is room."""
        if self.is_full:
            self._waiting.append(stream)
        else:
            self._start(stream)

    def cancel(self, stream: Stream) -> None:
        """Give a request up, as a server does when its client has gone."""
        if stream in self._waiting:
            self._waiting.remove(stream)
            self._note(stream, "abort")
        elif stream in self._running:
            self._end(stream, "abort")

    def cancel_all(self) -> None:
        """Give everything up and break its connections."""
        streams = (*self._waiting, *self._running)
        self._waiting.clear()
        self._running.clear()
        for stream in streams:
            self._note(stream, "abort")
            stream.outlet.abort()

    def resume(self, stream: Stream) -> None:
        """Go on with a stream whose outlet has room again."""
        if stream.parked:
            stream.parked = False
            self._push(stream)

    def _start(self, stream: Stream) -> None:
        """Put a request into the batch and begin to compute its prompt."""
        length = len(stream.answer.prompt)
        stream.served.started = stream.due = self._loop.time()
        self._running[stream] = None
        if len(self._running) not in self._sizes:
            self._sizes.add(len(self._running))
            stream.slowness *= self._script.cold_sizes
        self._held_tokens += length
        self._metrics.prompt_tokens += length
        self._metrics.prefix_hits += stream.hits
        self._plan(stream, self._script.first_token_s + self._script.prefill_s * (length - stream.hits))
        self._push(stream)

    def _plan(self, stream: Stream, seconds: float) -> None:
        """Set when the next piece is due, counted from when the last one was: lateness does not add up."""
        script, since_start = self._script, stream.due - self._began
        seconds *= stream.slowness * script.slowdown(since_start)
        if script.step_jitter:
            seconds *= math.exp(stream.chance.gauss(0, script.step_jitter))
        stream.due += seconds
        if script.stalls:
            stream.due = self._began + script.after_stalls(since_start + seconds)

    def _push(self, stream: Stream) -> None:
        heappush(self._heap, (stream.due, stream.served.number, stream))
        self._wind()

    def _wind(self) -> None:
        """Set the one timer to the earliest stream."""
        due = self._heap[0][0]
        if self._timer is None or due < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(due, self._turn)

    def _turn(self) -> None:
        """Serve what is due."""
        self._timer = None
        now, heap = self._loop.time() + _SAME_TIME_S, self._heap
        for _ in range(_TURN):
            if not heap or heap[0][0] > now:
                break
            stream = heappop(heap)[2]
            if stream in self._running:
                self._serve(stream, now)
        if heap:
            self._wind()

    def _serve(self, stream: Stream, now: float) -> None:
        """Write what a stream should have sent by `now`, in one go when that is several pieces."""
        at = self._loop.time()
        pieces: list[bytes] = []
        reason: str | None = None
        while reason is None and stream.due <= now and len(pieces) < _TOGETHER:
            pieces.append(self._step(stream, at))
            if stream.done == stream.answer.num_tokens:
                reason = stream.answer.finish_reason
                pieces.append(stream.answer.ending(self._tell(stream)))
            elif stream.fails_at is not None and stream.done >= stream.fails_at:
                reason = "error"
                pieces.append(stream.answer.failure("the engine has failed"))
            else:
                self._plan(stream, self._script.step_time(len(self._running)))
        stream.outlet.write(b"".join(pieces))
        if reason is not None:
            self._end(stream, reason)
            stream.outlet.close()
        elif stream.outlet.full:
            stream.parked = True
        else:
            heappush(self._heap, (stream.due, stream.served.number, stream))

    def _step(self, stream: Stream, at: float) -> bytes:
        """Return the next piece, counted as sent."""
        size, chunks, done = 1, stream.served.chunks, stream.done
        if done:
            self._metrics.add_gap(at - chunks[-1][0])
            if self._script.k:
                accepted = min(stream.accept(), stream.answer.num_tokens - done - 1)
                stream.steps[accepted] += 1
                self._metrics.steps[accepted] += 1
                size += accepted
        stream.done += size
        chunks.append((at, size))
        self._held_tokens += size
        self._metrics.generation_tokens += size
        return stream.answer.piece(done, stream.done)

    def _tell(self, stream: Stream) -> dict[str, Any]:
        return spec_metrics(stream.steps) if self._script.per_request_metrics and self._script.k else {}

    def _end(self, stream: Stream, outcome: str) -> None:
        """Take a stream out of the batch and let the next one in."""
        del self._running[stream]
        self._held_tokens -= len(stream.answer.prompt) + stream.done
        self._note(stream, outcome)
        while self._waiting and not self.is_full:
            self._start(self._waiting.popleft())

    def _note(self, stream: Stream, outcome: str) -> None:
        """Write down how a request ended."""
        stream.served.ended, stream.served.outcome = self._loop.time(), outcome
        self._metrics.count_request(stream)
