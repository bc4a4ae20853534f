"""Runs the load of each turn on one server, records counters before and after, and appends every result to disk."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from draftwise.backends import Backend
from draftwise.core import Answer, ClientHealth, Counters, Progress, RunPlan, StorageError, TurnRecord
from draftwise.knowledge.messages import text_of
from draftwise.measure.device_state import DeviceReader
from draftwise.measure.load.client import Client
from draftwise.measure.load.traffic import drive
from draftwise.measure.load.workers import WorkerPool, count_processes
from draftwise.runs import RunDirectory
from draftwise.runs.turn_order import Turn

_DRAIN_S = 10.0
"""How long a server may keep working on canceled requests."""
_DRAIN_POLL_S = 0.005


async def no_device() -> Mapping[str, Any]:
    """Return no readings: the servers run elsewhere, or are simulated."""
    return {}


@dataclass(slots=True, kw_only=True)
class Experiment:
    """Measures the turns that the run directory does not hold yet.

    Args:
        clients: HTTP clients by arm.
        progress: receives each measured request as a step.
        read_device: reads clocks and temperatures after a turn.
        processes: processes of the load generator. None: as many as the load needs.
        cold: arms whose servers were not steady yet after the warm-up.
    """

    plan: RunPlan
    directory: RunDirectory
    clients: Mapping[str, Client]
    progress: Progress
    read_device: DeviceReader = no_device
    processes: int | None = None
    cold: set[str] = field(default_factory=set)
    num_answers: int = field(default=0, init=False)
    """Number of measured requests with an answer."""
    _measured: set[tuple[str, str, str, int, int, int]] = field(default_factory=set, init=False)
    _asked: set[tuple[str, str, str]] = field(default_factory=set, init=False)
    """Arm, workload and id of the prompts that a server that could remember them has been asked."""
    _pools: dict[tuple[str, int, str], WorkerPool] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        run = self.directory.read()
        self._measured = {(w.arm, w.workload, w.condition, w.repeat, w.block, w.attempt) for w in run.turns}
        self.num_answers = sum(answer.measured for answer in run.answers)
        # What draftwise starts itself begins without memories; a server that somebody else runs still has them.
        running = {arm.name for arm in self.plan.arms if arm.url is not None} & set(self.plan.asked_once)
        self._asked = {each for each in self.directory.read_asked() if each[0] in running}
        self._asked |= {(each.arm, each.workload, each.prompt_id) for each in run.answers if each.arm in running}

    def has(self, turn: Turn) -> bool:
        """Return whether a turn is measured already."""
        return turn.key in self._measured

    async def take(self, turn: Turn, *, expected_s: float | None = None) -> bool:
        """Measure a turn. Return False if it is measured already or must not be asked (`may_ask`).

        Args:
            turn: turn to measure.
            expected_s: forecast of its duration in seconds, for the record.

        Raises:
            BackendError: a server failed. Everything measured is on disk.
            StorageError: the disk is full. Everything measured is on disk.
        """
        if self.has(turn) or not self.may_ask(turn):
            return False
        # Noted before the first request: a run that is killed in a turn has shown that turn's prompts all the same.
        if asked := self._list_once(turn):
            self._asked |= asked
            self.directory.add_asked(turn.arm, turn.workload, sorted(each for _, _, each in asked))
        await self._take(turn, expected_s)
        return True

    def may_ask(self, turn: Turn) -> bool:
        """Return whether the turn repeats no prompt to a server that may remember its answers, except for its pace."""
        return bool(turn.attempt) or self._list_once(turn).isdisjoint(self._asked)

    def _list_once(self, turn: Turn) -> set[tuple[str, str, str]]:
        """Return what is asked in a turn of a server that could remember it, as arm, workload and id of each prompt."""
        prompts = (*turn.prompts, *(turn.background or ())) if turn.arm in self.plan.asked_once else ()
        return {(turn.arm, turn.workload, prompt.id) for prompt in prompts}

    async def _take(self, turn: Turn, expected_s: float | None) -> None:
        clock, client = asyncio.get_running_loop().time, self.clients[turn.arm]
        backend, started = client.backend, clock()
        await backend.wake()
        load, counters = await backend.look()
        began_s, began = time.time(), backend.now()
        health = await self._drive(client, turn)
        wall_s = backend.now() - began
        growth = await _drain(backend, down_to=load.running or 0) - counters
        await backend.rest()
        device = await self.read_device()
        record = TurnRecord(
            turn=turn.number,
            arm=turn.arm,
            workload=turn.workload,
            condition=turn.condition.label,
            repeat=turn.repeat,
            block=turn.block,
            attempt=turn.attempt,
            is_warm=turn.arm not in self.cold,
            counters=growth,
            wall_s=wall_s,
            began_s=began_s,
            client=health,
            expected_s=expected_s,
            took_s=clock() - started,
            before=load,
            device=device,
        )
        self.directory.finish_turn(record)
        self._measured.add(turn.key)
        if self.directory.is_full:
            path = self.directory.path
            raise StorageError(text_of("run-disk-full", path=path, quoted=shlex.quote(str(path))))

    async def _drive(self, client: Client, turn: Turn) -> ClientHealth:
        """Put the load of a turn on its server, from as many processes as that takes."""

        def keep(answer: Answer) -> None:
            self._keep(turn, answer)

        count = self.processes or count_processes(turn.condition.concurrency or 1)
        if count == 1:
            return await drive(client, turn, seed=self.plan.seed, on_answer=keep)
        pool = self._pools.setdefault((turn.arm, count, client.backend.url), WorkerPool(client, count))
        return await pool.drive(turn, seed=self.plan.seed, on_answer=keep)

    def close(self) -> None:
        """End the load generator's processes."""
        for pool in self._pools.values():
            pool.stop()
        self._pools.clear()

    def _keep(self, turn: Turn, answer: Answer) -> None:
        self.directory.add_answer(answer)
        if answer.measured:
            self.num_answers += 1
            what = f"repetition {turn.repeat} · {turn.workload} · {turn.condition.label} · {turn.arm}"
            self.progress.step(self.num_answers, text=what)


async def _drain(backend: Backend, *, down_to: float) -> Counters:
    """Wait until a server runs no more than before, if it says so: canceled requests would load the next turn. Return
    its counters then."""
    give_up = backend.now() + _DRAIN_S
    while True:
        load, counters = await backend.look()
        if (load.running or 0) <= down_to or backend.now() >= give_up:
            return counters
        await asyncio.sleep(_DRAIN_POLL_S)
