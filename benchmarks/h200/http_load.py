"""A server that is started here, and a closed loop of streamed completions that it is loaded with.

The client is bare sockets in one process without torch. It counts the events of a stream as they come, reads the
number of tokens from the usage at its end, and takes nothing else apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

__all__ = ["Answer", "Load", "Server", "run_load", "summarise"]

_LOAD_S = 90
"""How long a load may take."""
_END_S = 20
"""How long a server may take to end when it is asked to."""
_HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)
_EVENT = b"data: {"
_USED = re.compile(rb'"completion_tokens": ?(\d+)[,}]')
_TAIL = 512
"""Bytes at the end of an answer in which its usage is."""


class Load(NamedTuple):
    """What is sent: random prompts of token ids, a fixed number in flight, each until it has all its tokens.

    Lengths are drawn evenly from a range, both ends included.
    """

    requests: int
    at_once: int
    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    temperature: float = 0.0
    top_p: float = 1.0


class Server:
    """A process that answers under /health when it is ready; its port is chosen here and added to the command.

    Args:
        command: starts it, but for `--port`.
        log: file that its output is appended to.
        env: environment, beside this process's own.
    """

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self._log = log
        self._began = time.perf_counter()
        with log.open("a") as sink:
            self._child = subprocess.Popen(
                [*command, "--port", str(self.port)],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=os.environ | (env or {}),
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End it, and by force whatever it leaves."""
        self.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout=_END_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()

    def terminate(self) -> None:
        """Ask it to end."""
        self._child.terminate()

    def wait(self, timeout_s: float) -> float:
        """Return the seconds from its start until `/health` says 200.

        Raises:
            RuntimeError: it has ended, or is not ready in time; the message has the end of its log.
        """
        until = time.perf_counter() + timeout_s
        while time.perf_counter() < until:
            if self._child.poll() is not None:
                raise RuntimeError(f"the server ended:\n{self.log()[-3000:]}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as answer:
                    if answer.status == 200:
                        return time.perf_counter() - self._began
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.01)
        raise RuntimeError(f"not ready after {timeout_s:.0f} s:\n{self.log()[-3000:]}")

    def version(self) -> str:
        """Return what it says under /version."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/version", timeout=10) as answer:
            return str(json.load(answer)["version"])

    def log(self) -> str:
        """Return what it wrote so far."""
        return self._log.read_text(errors="replace")


class Answer(NamedTuple):
    """A streamed answer as its client saw it; moments in seconds of one clock."""

    sent: float
    first: float
    last: float
    events: int
    tokens: int
    pause: float
    """The longest time without an event after the first."""


class _Connection(asyncio.Protocol):
    """One request after the other on one connection."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self._tail = b""
        self._sent = self._first = self._last = self._pause = 0.0
        self._events = 0
        self._done: asyncio.Future[None]
        self.transport: Any

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    async def send(self, body: bytes, tokens: int) -> None:
        """Send a request for this many tokens and return at the end of its answer."""
        self._done = asyncio.get_running_loop().create_future()
        self._tail, self._first, self._pause, self._events = b"", 0.0, 0.0, 0
        self._sent = time.perf_counter()
        self.transport.write(_HEAD % len(body) + body)
        await self._done
        found = _USED.findall(self._tail)
        if not found:
            raise RuntimeError(f"an answer without usage: {self._tail!r}")
        if int(found[-1]) != tokens:
            raise RuntimeError(f"an answer of {int(found[-1])} instead of {tokens} tokens")
        # The last event carries the usage and no token.
        self.answers.append(Answer(self._sent, self._first, self._last, self._events - 1, tokens, self._pause))

    def data_received(self, data: bytes) -> None:
        if events := data.count(_EVENT):
            now = time.perf_counter()
            self._first = self._first or now
            if self._events:
                self._pause = max(self._pause, now - self._last)
            self._last = now
            self._events += events
        self._tail = (self._tail + data)[-_TAIL:]
        if self._done.done():
            return
        if data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 200"):
            self._done.set_exception(RuntimeError(f"refused: {data[:300]!r}"))
        elif self._tail.endswith(b"0\r\n\r\n"):
            self._done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if hasattr(self, "_done") and not self._done.done():
            self._done.set_exception(error or ConnectionError("closed before the answer's end"))


async def _send_all(port: int, bodies: Sequence[tuple[bytes, int]], at_once: int) -> list[Answer]:
    """Send all requests, so many at a time."""
    left, loop = list(reversed(bodies)), asyncio.get_running_loop()
    connections = [(await loop.create_connection(_Connection, "127.0.0.1", port))[1] for _ in range(at_once)]

    async def work(connection: _Connection) -> None:
        while left:
            await connection.send(*left.pop())

    try:
        async with asyncio.timeout(_LOAD_S):
            await asyncio.gather(*map(work, connections))
    finally:
        for connection in connections:
            connection.transport.close()
    return [each for connection in connections for each in connection.answers]


def run_load(port: int, load: Load, vocab: int, seed: int) -> dict[str, Any]:
    """Return what clients saw of a load, and for which share of it their process was busy.

    Every seed has prompts of its own.

    Raises:
        RuntimeError: a request was refused, or an answer has no usage or another number of tokens than was asked for.
        ConnectionError: the server closed a connection.
        TimeoutError: the load takes longer than it may.
    """
    rng = random.Random(seed)
    fixed = {"model": "m", "temperature": load.temperature, "ignore_eos": True, "stream": True}
    fixed |= {"stream_options": {"include_usage": True}} | ({"top_p": load.top_p} if load.top_p < 1 else {})
    bodies = list[tuple[bytes, int]]()
    for _ in range(load.requests):
        prompt = [rng.randrange(3, vocab - 3) for _ in range(rng.randint(*load.prompt_tokens))]
        tokens = rng.randint(*load.output_tokens)
        bodies.append((json.dumps(fixed | {"prompt": prompt, "max_tokens": tokens}).encode(), tokens))
    began, busy_s = time.perf_counter(), time.process_time()
    answers = asyncio.run(_send_all(port, bodies, load.at_once))
    busy = (time.process_time() - busy_s) / (time.perf_counter() - began)
    return summarise(answers) | {"client_busy": round(busy, 3)}


def summarise(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return the row of a load.

    `itl_ms` is the mean time between two events of a stream, each of which carries what a step brought; `tpot_ms` the
    time from the first to the last token over the tokens after the first; `pause_ms` the longest time between two
    events of a stream.
    """
    span = max(each.last for each in answers) - min(each.sent for each in answers)
    streaming = sum(each.last - each.first for each in answers)
    return {
        "seconds": round(span, 3),
        "tokens_per_s": round(sum(each.tokens for each in answers) / span, 1),
        "ttft_ms": _describe([1e3 * (each.first - each.sent) for each in answers]),
        "tpot_ms": _describe([1e3 * (each.last - each.first) / (each.tokens - 1) for each in answers]),
        "pause_ms": _describe([1e3 * each.pause for each in answers]),
        "itl_ms": round(1e3 * streaming / max(1, sum(each.events - 1 for each in answers)), 3),
    }


def _describe(values: Sequence[float]) -> dict[str, float]:
    ascending = sorted(values)
    place = min(len(ascending) - 1, int(0.99 * len(ascending)))
    found = {"mean": statistics.fmean(ascending), "p50": statistics.median(ascending), "p99": ascending[place]}
    return {name: round(value, 2) for name, value in found.items()}
