"""The fake behind real sockets, in this process and in its own."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest
from tests.support.fake_server import FakeBackend, FakeScript

from draftwise.backends import BrokenStream, UrlBackend

FAST = FakeScript(first_token_s=0.002, step_s=0.001)


def request(prompt: str, tokens: int = 5) -> bytes:
    return json.dumps({"prompt": prompt, "max_tokens": tokens, "stream": True, "temperature": 0}).encode()


def with_fake(script: FakeScript, use: Callable[[FakeBackend], Awaitable[None]]) -> None:
    async def talk() -> None:
        backend = FakeBackend("a", script, real_time=True)
        await backend.start()
        try:
            await use(backend)
        finally:
            await backend.stop()

    asyncio.run(talk())


@contextmanager
def fake_process(*arguments: str) -> Iterator[str]:
    command = [sys.executable, "-m", "tests.support.fake_server", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def test_hundreds_of_streams_arrive_whole_and_never_before_they_were_sent() -> None:
    async def use(backend: FakeBackend) -> None:
        asking = (backend.stream("/v1/completions", request(str(i), tokens=20)) for i in range(200))
        exchanges = await asyncio.gather(*asking)
        bodies = [b"".join(data for _, data in exchange.received) for exchange in exchanges]
        assert all(body.count(b"data: {") == 20 and body.endswith(b"data: [DONE]\n\n") for body in bodies)
        assert len(set(bodies)) == 200
        served = sorted(backend.engine.served, key=lambda each: each.number)
        assert all(sum(count for _, count in each.chunks) == 20 for each in served)
        for each in served:
            times = [time for time, _ in each.chunks]
            assert times == sorted(times)
            # Plans count from the start of the request, so that no piece can go out before its time.
            assert all(time >= each.started + 0.002 + i * 0.001 - 1e-6 for i, time in enumerate(times))

    with_fake(FAST, use)


def test_the_truth_and_the_clients_readings_are_on_one_clock() -> None:
    async def use(backend: FakeBackend) -> None:
        exchange = await backend.stream("/v1/completions", request("a"))
        (served,) = backend.engine.served
        assert exchange.sent <= served.arrived + 1e-3
        assert served.chunks[0][0] <= exchange.received[0][0] + 1e-3
        assert served.chunks[-1][0] <= exchange.finished + 1e-3

    with_fake(FAST, use)


def test_as_fast_as_it_can_it_waits_for_a_slow_reader_and_loses_nothing() -> None:
    async def use(backend: FakeBackend) -> None:
        host, port = backend.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
        body = request("a", tokens=200_000)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        while not (held := backend.engine.served and backend.engine.batch._running) or not next(iter(held)).parked:
            await asyncio.sleep(0.001)
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            received += await reader.read(1 << 20)
        assert received.count(b'"text"') == 200_000
        writer.close()

    with_fake(FakeScript(first_token_s=0, step_s=0), use)


def test_requests_that_come_in_pieces_or_together_are_answered_one_by_one() -> None:
    async def use(backend: FakeBackend) -> None:
        host, port = backend.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = request("a", tokens=2)
        whole = b"POST /v1/completions HTTP/1.1\r\nX-Request-Id: r7\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        for part in (whole[:30], whole[30:], whole + b"GET /health HTTP/1.1\r\n\r\n"):
            writer.write(part)
            await asyncio.sleep(0.01)
        received = await reader.readuntil(b"{}")
        assert received.count(b"[DONE]") == 2
        assert [served.request_id for served in backend.engine.served] == ["r7", "r7"]
        writer.close()

    with_fake(FAST, use)


def test_a_client_that_goes_is_noticed() -> None:
    async def use(backend: FakeBackend) -> None:
        asking = asyncio.ensure_future(backend.stream("/v1/completions", request("a", tokens=10_000)))
        while not backend.engine.served or not backend.engine.served[0].chunks:
            await asyncio.sleep(0.001)
        asking.cancel()
        while not backend.engine.served[0].outcome:
            await asyncio.sleep(0.001)
        assert backend.engine.served[0].outcome == "abort"
        assert backend.engine.batch.load.running == 0

    with_fake(FAST, use)


def test_a_death_breaks_the_connection_in_the_middle() -> None:
    async def use(backend: FakeBackend) -> None:
        received: list[tuple[float, bytes]] = []
        asking = asyncio.create_task(backend.stream("/v1/completions", request("a", tokens=10_000), received))
        while not received:
            await asyncio.sleep(0.001)
        backend.engine.die()
        with pytest.raises(BrokenStream) as broken:
            await asking
        assert broken.value.partial is not None
        assert broken.value.partial.received == tuple(received)
        with pytest.raises(BrokenStream):
            await backend.stream("/v1/completions", request("b"))

    with_fake(FAST, use)


def test_a_fake_of_its_own_tells_its_url_and_what_it_served() -> None:
    with fake_process("--script", json.dumps({"step_s": 0.001, "k": 1, "accepted": [1], "model": "m"})) as url:

        async def talk() -> None:
            backend = UrlBackend("a", url)
            await backend.start()
            try:
                assert (await backend.describe()).model == "m"
                await backend.stream("/v1/completions", request("a", tokens=5))
                assert (await backend.counters()).generation_tokens == 5
                (served,) = (await backend.client.get("/served")).json()
                assert [count for _, count in served["chunks"]] == [1, 2, 2]
                assert served["outcome"] == "length"
            finally:
                await backend.stop()

        asyncio.run(talk())


@pytest.mark.parametrize(("script", "words"), [("{", "is no JSON"), ('{"spede": 1}', "unknown spede; there are")])
def test_a_wrong_script_is_a_usage_error(script: str, words: str) -> None:
    command = [sys.executable, "-m", "tests.support.fake_server", "--script", script]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert words in done.stderr


def test_an_openai_client_can_chat_with_it() -> None:
    with fake_process() as url:
        body = {"messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 3}
        with httpx.Client(base_url=url, trust_env=False) as client:
            whole = client.post("/v1/chat/completions", json=body).json()
            streamed = client.post("/v1/chat/completions", json={**body, "stream": True}).text
        text = whole["choices"][0]["message"]["content"]
        assert len(text.split()) == 3
        assert whole["object"] == "chat.completion"
        deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in streamed.splitlines() if line[6:7] == "{"]
        assert deltas[0]["role"] == "assistant"
        assert "".join(delta["content"] for delta in deltas) == text
