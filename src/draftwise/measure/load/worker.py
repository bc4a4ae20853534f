"""A worker process of the load generator: what it runs, and the messages that it exchanges with its parent."""

from __future__ import annotations

import asyncio
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum, auto
from multiprocessing.connection import Connection

from draftwise.backends import UrlBackend
from draftwise.core import BackendError, ClientHealth
from draftwise.measure.load.client import Client
from draftwise.measure.load.drive import limit_garbage_collection, run_beside
from draftwise.measure.load.health import HealthWatch
from draftwise.measure.load.loop import precise_loop
from draftwise.measure.load.parser import ResponseParser
from draftwise.measure.load.traffic import Share, Traffic
from draftwise.runs.schedule import Turn

__all__ = ["Failure", "Job", "RemoteServer", "Signal", "work"]


class Signal(Enum):
    """A message without content."""

    READY = auto()
    """From a worker: it can take jobs."""
    MEASURED = auto()
    """From a worker: its measured requests are answered; background requests go on."""
    END = auto()
    """To a worker: cancel what is in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A share of a turn."""

    turn: Turn
    seed: int
    began: float
    """When the times of an open loop begin; all processes of a machine have one monotonic clock."""
    share: Share


@dataclass(frozen=True, slots=True)
class Failure:
    """The server broke."""

    message: str


class RemoteServer(UrlBackend):
    """A server that another process has started: that process knows what became of it."""

    @classmethod
    def of(cls, backend: UrlBackend) -> RemoteServer:
        """Return it for a started backend."""
        return cls(backend.name, backend.url, headers=backend.headers)

    def complaint(self) -> str:
        """Leave that to the parent."""
        return ""


def work(descriptor: int) -> None:
    """Run jobs until the parent is gone.

    Args:
        descriptor: of the socket to the parent. It brings a Client whose backend is not started, then Jobs and
            Signal.END; it takes Signal.READY, and for each job Answers, Signal.MEASURED, and at last the ClientHealth
            or a Failure.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process in order
    pipe = Connection(descriptor)
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        runner.run(_Worker(pipe, pipe.recv()).run())


class _Worker:
    def __init__(self, pipe: Connection, client: Client) -> None:
        self._pipe, self._client = pipe, client
        self._jobs: asyncio.Queue[Job] = asyncio.Queue()
        self._traffic: Traffic | None = None
        # A parent that is slow to receive must not delay the traffic.
        self._sender = ThreadPoolExecutor(max_workers=1)

    async def run(self) -> None:
        asyncio.get_running_loop().add_reader(self._pipe.fileno(), self._receive)
        try:
            await self._client.backend.start()
            self._post(Signal.READY)
            while True:
                self._post(await self._run_job(await self._jobs.get()))
        except BackendError as error:
            self._post(Failure(str(error)))

    async def _run_job(self, job: Job) -> ClientHealth | Failure:
        parser, watch = ResponseParser(self._post), HealthWatch(self._client.backend.now)
        self._traffic = Traffic(
            self._client,
            job.turn,
            seed=job.seed,
            began=job.began,
            parser=parser,
            watch=watch,
            share=job.share,
            on_measured=lambda: self._post(Signal.MEASURED),
        )
        try:
            with limit_garbage_collection():
                await run_beside(parser.work(), self._traffic.run())
        except BackendError as error:
            return Failure(str(error))
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
        if isinstance(received, Job):
            self._jobs.put_nowait(received)
        elif self._traffic is not None:
            self._traffic.end()

    def _post(self, message: object) -> None:
        self._sender.submit(self._pipe.send, message)
