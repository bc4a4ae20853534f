"""Several processes that share the load of a turn, for more streams than one process keeps up with."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

from draftwise.backends import UrlBackend
from draftwise.core import Answer, BackendError, ClientHealth, Replay
from draftwise.measure.load.arrivals import replay_times
from draftwise.measure.load.client import Client
from draftwise.measure.load.traffic import Share
from draftwise.measure.load.worker import Failure, Job, Outpost, Word
from draftwise.runs.schedule import Turn

__all__ = ["Crew", "count_processes"]

_HEAD_START_S = 0.05
"""From the giving out of a turn to the first time of an open loop."""
_READY_S = 60.0
_LEAVE_S = 2.0
"""How long processes may take to withdraw and leave."""
_STREAMS_EACH = 1024
_WORKER = "import sys; from draftwise.measure.load.worker import work; work(int(sys.argv[1]))"


def count_processes(streams: int) -> int:
    """Return how many processes a load of so many streams needs: one, up to about a thousand streams.

    A chunk costs a process 12 us of CPU, so a thousand streams of 50 tokens/s take 60 % of a core.
    """
    return max(1, min(-(-streams // _STREAMS_EACH), (os.cpu_count() or 2) - 1))


@dataclass(frozen=True, slots=True, eq=False)
class _Hand:
    """A worker process."""

    process: subprocess.Popen[bytes]
    pipe: Connection

    def hear(self) -> object:
        """Return its next word; when it has ended, that is a Failure."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(self.pipe.fileno())
            return Failure("A process of the load generator has ended (out of memory?).")


class Crew:
    """Worker processes of one backend: started with the first turn, kept, and gone when this process is.

    Args:
        client: of the arm; its backend runs and can be reached by its URL from another process.
        processes: how many.
    """

    def __init__(self, client: Client, processes: int) -> None:
        assert isinstance(client.backend, UrlBackend)
        self._backend = client.backend
        self._client = replace(client, backend=Outpost.of(client.backend))
        self._processes = processes
        self._hands: list[_Hand] = []
        self._busy: set[_Hand] = set()
        self._heard: asyncio.Queue[tuple[_Hand, object]] = asyncio.Queue()

    @property
    def pids(self) -> list[int]:
        """Of the processes, while they run."""
        return [hand.process.pid for hand in self._hands]

    async def drive(self, turn: Turn, *, seed: int, on_answer: Callable[[Answer], None]) -> ClientHealth:
        """Answer the prompts of a turn as `load.drive.drive` does, and return how well the processes kept up.

        Raises:
            BackendError: the server broke, or a process ended; `on_answer` was told of everything that had ended.
            InvalidSetup: a replay lacks its times.
        """
        if isinstance(turn.condition.load, Replay):
            replay_times(turn.prompts, turn.condition.load)  # (a mistake in them is told here, not in a process)
        if not self._hands:
            await self._start()
        began = self._backend.now() + _HEAD_START_S
        try:
            # (A process without a stream would have nobody to send its share.)
            hands = self._hands[: turn.condition.concurrency]
            self._busy = set(hands)
            for number, hand in enumerate(hands):
                share = Share(number=number, of=len(hands))
                with suppress(OSError):  # it has ended, which will be heard
                    hand.pipe.send(Job(turn=turn, seed=seed, began=began, share=share))
            return await self._attend(on_answer)
        except BaseException:
            self._dismiss(on_answer)
            raise

    def stop(self) -> None:
        """End the processes; harmless when there are none."""
        hands, self._hands = self._hands, []
        for hand in hands:
            asyncio.get_running_loop().remove_reader(hand.pipe.fileno())
            hand.pipe.close()  # which ends it
        for hand in hands:
            with suppress(subprocess.TimeoutExpired):
                hand.process.wait(_LEAVE_S)
            hand.process.kill()
            hand.process.wait()

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(self._processes):
            hand = _hire(self._client)
            self._hands.append(hand)
            loop.add_reader(hand.pipe.fileno(), self._listen, hand)
        try:
            async with asyncio.timeout(_READY_S):
                for _ in self._hands:
                    _, word = await self._heard.get()
                    if isinstance(word, Failure):
                        raise BackendError(word.message)
        except TimeoutError:
            self.stop()
            raise BackendError(f"The load generator's processes did not start within {_READY_S:.0f} s.") from None
        except BaseException:
            self.stop()
            raise

    async def _attend(self, on_answer: Callable[[Answer], None]) -> ClientHealth:
        """Take in what the processes say until all have done their share."""
        measuring, healths, failures = set(self._busy), list[ClientHealth](), list[Failure]()
        while self._busy:
            hand, word = await self._heard.get()
            if isinstance(word, Answer):
                on_answer(word)
            elif word is Word.MEASURED:
                measuring.discard(hand)
                if not measuring:
                    self._withdraw()
            elif isinstance(word, ClientHealth):
                self._busy.discard(hand)
                healths.append(word)
            elif isinstance(word, Failure):
                self._busy.discard(hand)
                failures.append(word)
                self._withdraw()
        if failures:
            raise BackendError(f"{failures[0].message} {self._backend.complaint()}")
        return _together(healths)

    def _listen(self, hand: _Hand) -> None:
        self._heard.put_nowait((hand, hand.hear()))

    def _withdraw(self) -> None:
        """Let the processes withdraw what is in flight."""
        for hand in self._busy:
            with suppress(OSError):  # it has ended
                hand.pipe.send(Word.END)

    def _dismiss(self, on_answer: Callable[[Answer], None]) -> None:
        """End the processes, but first take in the answers that they have."""
        self._withdraw()
        words = [self._heard.get_nowait() for _ in range(self._heard.qsize())]
        give_up = time.monotonic() + _LEAVE_S
        for hand in self._busy:
            while hand.pipe.poll(max(0.0, give_up - time.monotonic())):
                words.append((hand, hand.hear()))
                if isinstance(words[-1][1], ClientHealth | Failure):
                    break
        self.stop()
        for _, word in words:
            if isinstance(word, Answer):
                on_answer(word)


def _hire(client: Client) -> _Hand:
    """Start a worker. (A bare interpreter: `multiprocessing` would import the main program again in each.)"""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _WORKER, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    pipe = Connection(ours.detach())
    pipe.send(client)
    return _Hand(process, pipe)


def _together(healths: Sequence[ClientHealth]) -> ClientHealth:
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
