"""Several processes as one load generator, and what becomes of them."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from tests.support.fake_server import FakeBackend, FakeScript

from draftwise.core import Answer, BackendError, ClosedLoop, Condition, InvalidSetup, Load, OpenLoop, Prompt, Replay
from draftwise.measure.load.client import Client
from draftwise.measure.load.workers import WorkerPool, count_processes
from draftwise.runs.turn_order import Turn

SCRIPT = FakeScript(first_token_s=0.02, step_s=0.005)


def make_turn(load: Load, count: int, tokens: int = 8) -> Turn:
    prompts = tuple(Prompt(id=f"p{i}", text=f"prompt {i}", max_tokens=tokens) for i in range(count))
    return Turn(number=3, arm="a", workload="w", repeat=1, prompts=prompts, condition=Condition(load=load))


async def with_crew(script: FakeScript, processes: int, work) -> None:
    backend = FakeBackend("a", script, real_time=True)
    await backend.start()
    client = await Client.greet(backend, Prompt(id="hello", text="hello", max_tokens=2), salt="s")
    pool = WorkerPool(client, processes)
    try:
        await work(pool, backend)
    finally:
        pool.stop()
        await backend.stop()


def test_a_crew_sends_what_one_process_would_turn_after_turn() -> None:
    async def work(pool: WorkerPool, backend: FakeBackend) -> None:
        for load in (ClosedLoop(concurrency=5), OpenLoop.steady(100.0)):
            answers: list[Answer] = []
            health = await pool.drive(make_turn(load, 12), seed=1, on_answer=answers.append)
            measured = [answer for answer in answers if answer.measured]
            assert sorted(answer.prompt_id for answer in measured) == sorted(f"p{i}" for i in range(12))
            assert {answer.error for answer in measured} == {None}
            names = [(answer.prompt_id, answer.copy) for answer in answers]
            assert len(set(names)) == len(names)
            assert (health.processes, health.cpu_s > 0) == (2, True)
            if isinstance(load, OpenLoop):
                starts = [answer.timing.intended for answer in sorted(measured, key=lambda a: int(a.prompt_id[1:]))]
                assert starts == sorted(starts), "dealt out in the order of their times"
                assert all(answer.timing.send_lag_s >= 0 for answer in measured)
        await _come_to_rest(backend)
        with pytest.raises(InvalidSetup, match="arrival time"):
            await pool.drive(make_turn(Replay(), 2), seed=1, on_answer=answers.append)
        for streams, count in ((2, 1), (1, 3)):
            fewer: list[Answer] = []
            await pool.drive(make_turn(ClosedLoop(concurrency=streams), count), seed=1, on_answer=fewer.append)
            assert sum(answer.measured for answer in fewer) == count, "one process had no request or no stream"

    asyncio.run(with_crew(SCRIPT, 2, work))


async def _come_to_rest(backend: FakeBackend) -> None:
    """Wait until nothing is on the server; hangs when something is never withdrawn."""
    async with asyncio.timeout(60):
        while (await backend.gauges()).running:
            await asyncio.sleep(0.01)


async def _soon(condition) -> bool:
    for _ in range(6000):
        if condition():
            return True
        await asyncio.sleep(0.01)
    return False


def test_when_the_server_dies_what_had_ended_is_told_and_the_crew_is_gone() -> None:
    async def work(pool: WorkerPool, backend: FakeBackend) -> None:
        answers: list[Answer] = []
        with pytest.raises(BackendError, match=r"a: the connection to .* broke"):
            await pool.drive(make_turn(ClosedLoop(concurrency=4), 40), seed=1, on_answer=answers.append)
        assert any(answer.measured for answer in answers)

    asyncio.run(with_crew(FakeScript(first_token_s=0.02, step_s=0.005, dies_after=20), 2, work))


def test_a_process_that_is_killed_is_noticed_and_replaced_in_the_next_turn() -> None:
    async def work(pool: WorkerPool, backend: FakeBackend) -> None:
        answers: list[Answer] = []

        def kill_one(answer: Answer) -> None:
            answers.append(answer)
            if len(answers) == 5:
                os.kill(pool.pids[0], signal.SIGKILL)

        with pytest.raises(BackendError, match="process of the load generator has ended"):
            await pool.drive(make_turn(ClosedLoop(concurrency=4), 200), seed=1, on_answer=kill_one)
        assert pool.pids == []
        again: list[Answer] = []
        await pool.drive(make_turn(ClosedLoop(concurrency=4), 8), seed=1, on_answer=again.append)
        assert sum(answer.measured for answer in again) == 8

    asyncio.run(with_crew(SCRIPT, 2, work))


def test_cancelling_ends_the_processes_but_keeps_their_answers() -> None:
    async def work(pool: WorkerPool, backend: FakeBackend) -> None:
        answers: list[Answer] = []
        some = asyncio.Event()

        def keep(answer: Answer) -> None:
            answers.append(answer)
            if len(answers) == 6:
                some.set()

        task = asyncio.create_task(pool.drive(make_turn(ClosedLoop(concurrency=4), 400), seed=1, on_answer=keep))
        await some.wait()
        pids = pool.pids
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert pool.pids == []
        assert not any(map(_is_alive, pids))
        assert len(answers) >= 6

    asyncio.run(with_crew(SCRIPT, 2, work))


_PARENT = """
import asyncio, sys
from draftwise.backends import UrlBackend
from draftwise.core import ClosedLoop, Condition, Prompt
from draftwise.measure.load.client import Client
from draftwise.measure.load.workers import WorkerPool
from draftwise.runs.turn_order import Turn

async def main():
    backend = UrlBackend("a", sys.argv[1])
    await backend.start()
    pool = WorkerPool(Client(backend=backend, model="fake"), 2)
    prompts = tuple(Prompt(id=str(i), text="x", max_tokens=100) for i in range(1000))
    condition = Condition(load=ClosedLoop(concurrency=4))
    turn = Turn(number=0, arm="a", workload="w", repeat=1, prompts=prompts, condition=condition)
    def tell(answer):
        print(*pool.pids, flush=True)
    await pool.drive(turn, seed=0, on_answer=tell)

asyncio.run(main())
"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks into /proc")
def test_the_processes_die_with_their_parent_however_it_dies() -> None:
    async def run() -> None:
        backend = FakeBackend("a", SCRIPT, real_time=True)
        await backend.start()
        parent = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _PARENT, backend.url, stdout=asyncio.subprocess.PIPE
        )
        assert parent.stdout is not None
        pids = [int(pid) for pid in (await asyncio.wait_for(parent.stdout.readline(), 60)).split()]
        assert len(pids) == 2
        assert all(map(_is_alive, pids))
        parent.kill()
        await parent.wait()
        assert await _soon(lambda: not any(map(_is_alive, pids)))
        await backend.stop()

    asyncio.run(run())


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("streams", "cores", "expected"), [(1, 8, 1), (1024, 8, 1), (1025, 8, 2), (9000, 4, 3), (9000, 1, 1)]
)
def test_how_many_processes(streams: int, cores: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwise.measure.load.workers.count_cores", lambda: cores)
    assert count_processes(streams) == expected
