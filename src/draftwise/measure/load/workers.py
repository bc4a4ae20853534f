"""Worker processes that share the load of a turn, for more streams than one process can handle."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from multiprocessing.connection import Connection

from draftwise.backends import Backend, OneAtATime, UrlBackend
from draftwise.core import Answer, BackendError, ClientHealth, Replay
from draftwise.knowledge.messages import text_of
from draftwise.machine.processes import count_cores
from draftwise.measure.load.client import Client
from draftwise.measure.load.event_loop import HealthWatch, precise_loop
from draftwise.measure.load.requests import replay_times
from draftwise.measure.load.traffic import ResponseParser, Share, TurnTraffic, limit_garbage_collection, run_beside
from draftwise.runs.turn_order import Turn


class _Signal(Enum):
    """A message without content."""

    READY = auto()
    """Sent by a worker that can take jobs."""
    MEASURED = auto()
    """Sent by a worker whose measured requests are answered; background requests continue."""
    END = auto()
    """Tells a worker to cancel its requests in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A share of a turn."""

    turn: Turn
    seed: int
    began: float
    """Start of an open loop's times. All processes of a machine share one monotonic clock."""
    share: Share


@dataclass(frozen=True, slots=True)
class _Failure:
    """The server broke."""

    message: str


class _RemoteServer(UrlBackend):
    """A server that another process has started: that process knows what became of it."""

    @classmethod
    def of(cls, backend: UrlBackend) -> _RemoteServer:
        """Return the remote server of a started backend."""
        return cls(backend.name, backend.url, headers=backend.headers)

    def complaint(self) -> str:
        """Return nothing: the parent explains failures."""
        return ""


def work(descriptor: int) -> None:
    """Run jobs until the parent closes its end.

    Args:
        descriptor: file descriptor of the socket to the parent. The parent sends a Client whose backend is not started,
            then Jobs and _Signal.END. The worker sends _Signal.READY, and per job Answers, _Signal.MEASURED, and
            finally a ClientHealth or a _Failure.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process in order
    pipe = Connection(descriptor)
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        runner.run(_Worker(pipe, pipe.recv()).run())


class _Worker:
    def __init__(self, pipe: Connection, client: Client) -> None:
        self._pipe, self._client = pipe, client
        self._jobs: asyncio.Queue[_Job] = asyncio.Queue()
        self._traffic: TurnTraffic | None = None
        # A parent that is slow to receive must not delay the traffic.
        self._sender = ThreadPoolExecutor(max_workers=1)

    async def run(self) -> None:
        asyncio.get_running_loop().add_reader(self._pipe.fileno(), self._receive)
        try:
            await self._client.backend.start()
            self._post(_Signal.READY)
            while True:
                self._post(await self._run_job(await self._jobs.get()))
        except BackendError as error:
            self._post(_Failure(str(error)))

    async def _run_job(self, job: _Job) -> ClientHealth | _Failure:
        parser, watch = ResponseParser(self._post), HealthWatch(self._client.backend.now)
        self._traffic = TurnTraffic(
            self._client,
            job.turn,
            seed=job.seed,
            began=job.began,
            parser=parser,
            watch=watch,
            share=job.share,
            on_measured=lambda: self._post(_Signal.MEASURED),
        )
        try:
            with limit_garbage_collection():
                await run_beside(parser.work(), self._traffic.run())
        except BackendError as error:
            return _Failure(str(error))
        finally:
            health = watch.stop()
            parser.clear()
            self._traffic = None
        return health

    def _receive(self) -> None:
        try:
            received = self._pipe.recv()
        except (EOFError, OSError):
            os._exit(1)  # the parent is gone; closing the sockets makes the server give its requests up
        if isinstance(received, _Job):
            self._jobs.put_nowait(received)
        elif self._traffic is not None:
            self._traffic.end()

    def _post(self, message: object) -> None:
        self._sender.submit(self._pipe.send, message)


_HEAD_START_S = 0.05
"""Seconds from the start of a turn to the first arrival of an open loop."""
_READY_S = 60.0
_LEAVE_S = 2.0
"""How long processes may take to cancel their requests and exit."""
_STREAMS_EACH = 1024
_WORKER = "import sys; from draftwise.measure.load.workers import work; work(int(sys.argv[1]))"


def count_processes(streams: int) -> int:
    """Return how many processes a load of `streams` needs: one for up to about a thousand streams.

    A chunk costs 12 us of CPU time, so a thousand streams of 50 tokens/s take 60 % of a core.
    """
    return max(1, min(-(-streams // _STREAMS_EACH), count_cores() - 1))


@dataclass(frozen=True, slots=True, eq=False)
class _WorkerProcess:
    """A worker process."""

    process: subprocess.Popen[bytes]
    pipe: Connection

    def receive(self) -> object:
        """Return the worker's next message, or a _Failure if it has ended."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(self.pipe.fileno())
            return _Failure(
                "A process of the load generator has ended, probably out of memory. Lower the load or free memory."
            )


class WorkerPool:
    """Worker processes of one backend: started with the first turn and kept. They end with this process.

    Args:
        client: client of the arm. Its backend runs, and other processes can reach its URL.
        processes: number of workers.
    """

    def __init__(self, client: Client, processes: int) -> None:
        server = client.backend.server if isinstance(client.backend, OneAtATime) else client.backend
        assert isinstance(server, UrlBackend)
        self._backend: Backend = client.backend
        self._client = replace(client, backend=_RemoteServer.of(server))
        self._processes = processes
        self._workers: list[_WorkerProcess] = []
        self._busy: set[_WorkerProcess] = set()
        self._messages: asyncio.Queue[tuple[_WorkerProcess, object]] = asyncio.Queue()

    @property
    def pids(self) -> list[int]:
        """Ids of the running processes."""
        return [worker.process.pid for worker in self._workers]

    async def drive(self, turn: Turn, *, seed: int, on_answer: Callable[[Answer], None]) -> ClientHealth:
        """Send the prompts of a turn as `load.traffic.drive` does, and return how well the processes kept up.

        Raises:
            BackendError: the server failed or a process ended. `on_answer` has received every completed answer.
            InvalidSetup: the prompts of a replay have no times.
        """
        if isinstance(turn.condition.load, Replay):
            replay_times(turn.prompts, turn.condition.load)  # (a mistake in them is raised here, not in a worker)
        if not self._workers:
            await self._start()
        began = self._backend.now() + _HEAD_START_S
        try:
            # (A worker without a stream would have nothing to send.)
            workers = self._workers[: turn.condition.concurrency]
            self._busy = set(workers)
            for number, worker in enumerate(workers):
                share = Share(number=number, of=len(workers))
                with suppress(OSError):  # it has ended; its _Failure will be received
                    worker.pipe.send(_Job(turn=turn, seed=seed, began=began, share=share))
            return await self._collect(on_answer)
        except BaseException:
            self._shut_down(on_answer)
            raise

    def stop(self) -> None:
        """End the processes. Safe to call without any."""
        workers, self._workers = self._workers, []
        for worker in workers:
            asyncio.get_running_loop().remove_reader(worker.pipe.fileno())
            worker.pipe.close()  # which ends it
        for worker in workers:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(_LEAVE_S)
            worker.process.kill()
            worker.process.wait()

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(self._processes):
            worker = _spawn(self._client)
            self._workers.append(worker)
            loop.add_reader(worker.pipe.fileno(), self._receive, worker)
        try:
            async with asyncio.timeout(_READY_S):
                for _ in self._workers:
                    _, message = await self._messages.get()
                    if isinstance(message, _Failure):
                        raise BackendError(message.message)
        except TimeoutError:
            self.stop()
            raise BackendError(text_of("load-not-started", ready_s=_READY_S)) from None
        except BaseException:
            self.stop()
            raise

    async def _collect(self, on_answer: Callable[[Answer], None]) -> ClientHealth:
        """Receive messages until all workers have done their share."""
        measuring, healths, failures = set(self._busy), list[ClientHealth](), list[_Failure]()
        while self._busy:
            worker, message = await self._messages.get()
            if isinstance(message, Answer):
                on_answer(message)
            elif message is _Signal.MEASURED:
                measuring.discard(worker)
                if not measuring:
                    self._cancel()
            elif isinstance(message, ClientHealth):
                self._busy.discard(worker)
                healths.append(message)
            elif isinstance(message, _Failure):
                self._busy.discard(worker)
                failures.append(message)
                self._cancel()
        if failures:
            raise BackendError(f"{failures[0].message} {self._backend.complaint()}")
        return _combine(healths)

    def _receive(self, worker: _WorkerProcess) -> None:
        self._messages.put_nowait((worker, worker.receive()))

    def _cancel(self) -> None:
        """Make the workers cancel what is in flight."""
        for worker in self._busy:
            with suppress(OSError):  # it has ended
                worker.pipe.send(_Signal.END)

    def _shut_down(self, on_answer: Callable[[Answer], None]) -> None:
        """End the processes, but first receive the answers that they have."""
        self._cancel()
        messages = [self._messages.get_nowait() for _ in range(self._messages.qsize())]
        give_up = time.monotonic() + _LEAVE_S
        for worker in self._busy:
            while worker.pipe.poll(max(0.0, give_up - time.monotonic())):
                messages.append((worker, worker.receive()))
                if isinstance(messages[-1][1], ClientHealth | _Failure):
                    break
        self.stop()
        for _, message in messages:
            if isinstance(message, Answer):
                on_answer(message)


def _spawn(client: Client) -> _WorkerProcess:
    """Start a worker process. (A bare interpreter: `multiprocessing` would import the main program again in each.)"""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _WORKER, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    pipe = Connection(ours.detach())
    pipe.send(client)
    return _WorkerProcess(process, pipe)


def _combine(healths: Sequence[ClientHealth]) -> ClientHealth:
    """Return the health of processes as one: their CPU together, the worst of each delay."""
    return ClientHealth(
        cpu_s=sum(each.cpu_s for each in healths),
        processes=len(healths),
        loop_delay_p99_s=max(each.loop_delay_p99_s for each in healths),
        loop_delay_max_s=max(each.loop_delay_max_s for each in healths),
        send_lag_p99_s=max(each.send_lag_p99_s for each in healths),
        send_lag_max_s=max(each.send_lag_max_s for each in healths),
        clock_jump_s=max((each.clock_jump_s for each in healths), key=abs),
    )
