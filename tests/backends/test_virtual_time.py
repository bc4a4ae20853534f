"""The clock jumps, the order is always the same, and what cannot go on says so."""

import asyncio
import subprocess
import sys
import time

import pytest
from tests.support import virtual_time


def test_hours_pass_at_once_and_to_the_last_bit() -> None:
    async def wait() -> tuple[float, float, float]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(3600)
        hour = loop.time()
        await asyncio.sleep(0.125)
        return began, hour, loop.time()

    assert virtual_time.run(wait()) == (0.0, 3600.0, 3600.125)


def test_sleepers_wake_in_the_order_of_their_times() -> None:
    async def race() -> list[tuple[float, int]]:
        woken = []

        async def sleeper(number: int) -> None:
            await asyncio.sleep((number * 7) % 100)
            woken.append((asyncio.get_running_loop().time(), number))

        await asyncio.gather(*(sleeper(number) for number in range(100)))
        return woken

    woken = virtual_time.run(race())
    assert woken == sorted(woken) == [(float(at), (at * 43) % 100) for at in range(100)]


def test_what_runs_takes_no_time() -> None:
    async def work() -> float:
        await asyncio.gather(asyncio.sleep(1), asyncio.to_thread(time.sleep, 0.01))
        return asyncio.get_running_loop().time()

    assert virtual_time.run(work()) == 1.0


def test_a_failure_in_a_thread_is_raised_where_it_is_awaited() -> None:
    async def fail() -> None:
        await asyncio.to_thread(int, "x")

    with pytest.raises(ValueError, match="invalid literal"):
        virtual_time.run(fail())


def test_timeouts_are_virtual_too() -> None:
    async def wait() -> float:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 1000)
        return asyncio.get_running_loop().time()

    assert virtual_time.run(wait()) == pytest.approx(1000)


def test_a_deadlock_is_an_error_and_the_tasks_are_cleaned_up() -> None:
    cleaned = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(5)
            cleaned.append(asyncio.get_running_loop().time())

    with pytest.raises(RuntimeError, match="no timer is set: this would wait for ever"):
        virtual_time.run(wait())
    assert cleaned == [5.0]


def test_waking_up_for_ever_ends_at_the_limit() -> None:
    async def tick() -> None:
        while True:
            await asyncio.sleep(1)

    with pytest.raises(RuntimeError, match="100 virtual seconds have passed"):
        virtual_time.run(tick(), limit_s=100)


async def _listen() -> None:
    await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)


async def _spawn() -> None:
    await asyncio.create_subprocess_exec(sys.executable, "-c", "", stdin=subprocess.PIPE)


async def _connect() -> None:
    await asyncio.open_connection("127.0.0.1", 9)


@pytest.mark.parametrize("use", [_listen, _spawn, _connect])
def test_the_outside_world_belongs_to_the_other_loop(use) -> None:
    with pytest.raises(RuntimeError, match=r"run this with asyncio\.run"):
        virtual_time.run(use())
