"""A process that carries its share of the load: what it runs, and the words it exchanges with its parent."""

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
from draftwise.measure.load.drive import beside, short_collections
from draftwise.measure.load.health import HealthWatch
from draftwise.measure.load.loop import precise_loop
from draftwise.measure.load.parser import Desk
from draftwise.measure.load.traffic import Share, Traffic
from draftwise.runs.schedule import Turn

__all__ = ["Failure", "Job", "Outpost", "Word", "work"]


class Word(Enum):
    """What is said without further ado."""

    READY = auto()
    """By a worker: it can take jobs."""
    MEASURED = auto()
    """By a worker: its measured requests are answered, fillers go on."""
    END = auto()
    """To a worker: withdraw what is in flight."""


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


class Outpost(UrlBackend):
    """A server as another process reaches it; that one knows more of what became of the server."""

    @classmethod
    def of(cls, backend: UrlBackend) -> Outpost:
        """Return it for a started backend."""
        return cls(backend.name, backend.url, api_key=backend.api_key)

    def complaint(self) -> str:
        """Leave that to the parent."""
        return ""


def work(descriptor: int) -> None:
    """Carry jobs out until the parent is gone.

    Args:
        descriptor: of the socket to the parent. It brings a Client whose backend is not started, then Jobs and
            Word.END; it takes Word.READY, and for each job Answers, Word.MEASURED, and at last the ClientHealth or
            a Failure.
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
        # A parent that is slow to listen must not hold the traffic up.
        self._speaker = ThreadPoolExecutor(max_workers=1)

    async def run(self) -> None:
        asyncio.get_running_loop().add_reader(self._pipe.fileno(), self._listen)
        try:
            await self._client.backend.start()
            self._say(Word.READY)
            while True:
                self._say(await self._carry_out(await self._jobs.get()))
        except BackendError as error:
            self._say(Failure(str(error)))

    async def _carry_out(self, job: Job) -> ClientHealth | Failure:
        desk, watch = Desk(self._say), HealthWatch(self._client.backend.now)
        self._traffic = Traffic(
            self._client,
            job.turn,
            seed=job.seed,
            began=job.began,
            desk=desk,
            watch=watch,
            share=job.share,
            on_measured=lambda: self._say(Word.MEASURED),
        )
        try:
            with short_collections():
                await beside(desk.work(), self._traffic.run())
        except BackendError as error:
            return Failure(str(error))
        finally:
            health = watch.stop()
            desk.clear()
            self._traffic = None
        return health

    def _listen(self) -> None:
        try:
            heard = self._pipe.recv()
        except (EOFError, OSError):
            os._exit(1)  # the parent is gone; closing the sockets makes the server give its requests up
        if isinstance(heard, Job):
            self._jobs.put_nowait(heard)
        elif self._traffic is not None:
            self._traffic.end()

    def _say(self, word: object) -> None:
        self._speaker.submit(self._pipe.send, word)
