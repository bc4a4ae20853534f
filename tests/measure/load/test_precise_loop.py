"""The event loop with precise timers does what an event loop does."""

import asyncio
import socket
import sys
import threading

import pytest

from draftwise.measure.load.event_loop import precise_loop


def run(coroutine):
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        return runner.run(coroutine)


def test_timers_fire_in_order_and_not_early() -> None:
    async def wait() -> list[int]:
        loop, fired = asyncio.get_running_loop(), list[int]()
        began = loop.time()
        for milliseconds in (3, 1, 2):
            loop.call_at(began + milliseconds / 1000, fired.append, milliseconds)
        await asyncio.sleep(0.0042)
        assert loop.time() - began >= 0.0042
        return fired

    assert run(wait()) == [1, 2, 3]


def test_sockets_threads_and_processes_wake_it() -> None:
    async def wait() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        threading.Timer(0.02, theirs.send, (b"x",)).start()
        assert await asyncio.wait_for(loop.sock_recv(ours, 1), 30) == b"x"
        assert await asyncio.wait_for(asyncio.to_thread(lambda: 5), 30) == 5
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "print(7)", stdout=asyncio.subprocess.PIPE)
        assert (await asyncio.wait_for(process.communicate(), 30))[0].strip() == b"7"
        for each in (ours, theirs):
            each.close()

    run(wait())


@pytest.mark.skipif(sys.platform != "linux", reason="other systems' loops are precise by themselves")
def test_it_waits_as_long_as_asked_to_the_microsecond(monkeypatch: pytest.MonkeyPatch) -> None:
    """epoll_wait would be asked for whole milliseconds; however late we are, what is left of the time is not such."""
    asked: list[float] = []
    sleeping: list[asyncio.Task[None]] = []

    def spy(reads, writes, errors, timeout: float):
        """Note what is asked for, and wait no longer."""
        asked.append(timeout)
        sleeping[0].cancel()
        return [], [], []

    async def wait() -> None:
        sleeping.append(asyncio.create_task(asyncio.sleep(1000.0003)))
        with pytest.raises(asyncio.CancelledError):
            await sleeping[0]

    monkeypatch.setattr("draftwise.measure.load.event_loop.select.select", spy)
    run(wait())
    assert any(0 < timeout <= 1000.0003 and 1e3 * timeout % 1 > 1e-6 for timeout in asked)
