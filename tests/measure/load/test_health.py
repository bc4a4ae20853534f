"""What the load generator notices of itself."""

import asyncio
import time
from types import SimpleNamespace

import pytest
from tests.support import virtual_time

from draftwise.core import ClientHealth
from draftwise.measure.load.event_loop import HealthWatch


async def watch(seconds: float) -> ClientHealth:
    health = HealthWatch(asyncio.get_running_loop().time)
    await asyncio.sleep(seconds)
    return health.stop()


def test_an_idle_loop_is_never_late() -> None:
    health = virtual_time.run(watch(10.0))
    assert health.loop_delay_max_s == pytest.approx(0, abs=1e-9)
    assert (health.send_lag_p99_s, health.processes) == (0, 1)


def test_a_loop_that_was_held_up_shows_by_how_much() -> None:
    async def hold_up() -> ClientHealth:
        health = HealthWatch(time.perf_counter)
        await asyncio.sleep(0.05)
        time.sleep(0.2)
        await asyncio.sleep(0.05)
        return health.stop()

    health = asyncio.run(hold_up())
    assert health.loop_delay_max_s > 0.15
    assert health.loop_delay_p99_s <= health.loop_delay_max_s


def test_cpu_time_is_this_processs() -> None:
    async def burn() -> ClientHealth:
        health, until = HealthWatch(time.perf_counter), time.process_time() + 0.1
        while time.process_time() < until:
            pass
        return health.stop()

    assert asyncio.run(burn()).cpu_s >= 0.1


def test_lags_are_summed_up() -> None:
    async def lag() -> ClientHealth:
        health = HealthWatch(asyncio.get_running_loop().time)
        for each in range(1, 101):
            health.note_lag(each / 1000)
        return health.stop()

    health = virtual_time.run(lag())
    assert health.send_lag_max_s == pytest.approx(0.1)
    assert health.send_lag_p99_s == pytest.approx(0.099, abs=0.0005)


@pytest.mark.parametrize("jump", [3600.0, -2.5])
def test_a_clock_that_was_set_is_noticed(jump: float, monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = SimpleNamespace(time=lambda: 1e9, monotonic=lambda: 50.0, process_time=lambda: 1.0)
    monkeypatch.setattr("draftwise.measure.load.event_loop.time", clocks)

    async def set_clock() -> ClientHealth:
        health = HealthWatch(asyncio.get_running_loop().time)
        clocks.time = lambda: 1e9 + jump
        return health.stop()

    assert virtual_time.run(set_clock()).clock_jump_s == pytest.approx(jump)


def test_a_watch_that_was_stopped_leaves_no_timer() -> None:
    async def run() -> None:
        HealthWatch(asyncio.get_running_loop().time).stop()
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="no timer is set"):
        virtual_time.run(run())
