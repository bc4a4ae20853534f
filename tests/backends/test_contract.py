"""What every backend must do, asked of all of them.

Real vLLM is among them where DRAFTWISE_VLLM names its command, e.g. `~/venv/bin/vllm` (a CPU build will do).
"""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.support import virtual_time
from tests.support.fake_server import FakeBackend, FakeScript

from draftwise.backends import Backend, BrokenStream, EmbeddedBackend, UrlBackend, VllmBackend, child_reaper
from draftwise.backends.child import ChildBackend
from draftwise.core import Prompt, ServerLoad, Setup, SpecConfig
from draftwise.measure.load.client import Client
from draftwise.runs.turn_order import Turn

PROMPT = Prompt(id="p", text="abcabcabcabcabc", max_tokens=24)
CHAT = Prompt(id="q", messages=({"role": "user", "content": "say abcabc"},), max_tokens=8)
TURN = Turn(number=0, arm="b", workload="w", repeat=1, prompts=(PROMPT,))
SCRIPT = FakeScript(k=2, accepted=(2, 0), first_token_s=0.001, step_s=0.01)
NGRAM = SpecConfig(method="ngram", num_speculative_tokens=2, options={"prompt_lookup_min": 1})
VLLM = os.environ.get("DRAFTWISE_VLLM", "")
VLLM_ARGS = ["--enforce-eager", "--dtype", "float32", "--kv-cache-memory-bytes", "67108864", "--max-model-len", "2048"]
BUNDLED = Path(__file__).parents[2] / "bundle/target"
LONG = 1800
"""Output tokens of an answer that is still under way when something happens to it, however late that is."""


@dataclass
class Bench:
    """One started backend, an event loop for it, and a way to kill its server."""

    runner: asyncio.Runner
    backend: Backend
    neighbour: FakeBackend | None = None
    """The server behind a URL."""
    client: Client = field(init=False)

    def run(self, body: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.runner.run(body())

    def kill(self) -> None:
        """End the server without a word."""
        if isinstance(self.backend, ChildBackend):
            assert self.backend._process is not None
            os.kill(child_reaper.find_descendants(self.backend._process.pid)[0], signal.SIGKILL)
        else:
            fake = self.neighbour or self.backend
            assert isinstance(fake, FakeBackend)
            fake.engine.die()


@contextmanager
def started(kind: str, log: Path) -> Iterator[Bench]:
    """Start a backend; stopping is harmless before, after, and twice."""
    loop = virtual_time.VirtualTimeLoop if kind == "virtual fake" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=loop) as runner:
        neighbour = FakeBackend("n", SCRIPT, real_time=True) if kind == "url" else None
        if neighbour is not None:
            runner.run(neighbour.start())
        bench = Bench(runner, make(kind, neighbour, log), neighbour)
        runner.run(bench.backend.stop())
        try:
            runner.run(bench.backend.start())
            bench.client = runner.run(Client.greet(bench.backend, PROMPT, salt=""))
            yield bench
        finally:
            for each in filter(None, (bench.backend, bench.backend, neighbour)):
                runner.run(each.stop())


def make(kind: str, neighbour: FakeBackend | None, log: Path) -> Backend:
    if kind == "embedded":
        return EmbeddedBackend("b", Setup(target=str(BUNDLED), spec=NGRAM), log=log)
    if kind == "vllm":
        setup = Setup(target=str(BUNDLED), engine="vllm", spec=NGRAM, extra_args=tuple(VLLM_ARGS))
        return VllmBackend("b", setup, log=log, vllm=VLLM)
    if neighbour is not None:
        return UrlBackend("b", neighbour.url + "/v1/")
    return FakeBackend("b", SCRIPT, real_time=kind == "fake")


KINDS = [
    "virtual fake",
    "fake",
    "url",
    pytest.param("embedded", marks=pytest.mark.engine),
    pytest.param("vllm", marks=pytest.mark.skipif(not VLLM, reason="DRAFTWISE_VLLM names no vLLM")),
]


@pytest.fixture(scope="module", params=KINDS)
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A backend that all tests share: all but the last leave it whole."""
    with started(request.param, tmp_path_factory.mktemp("logs") / "b.log") as bench:
        yield bench


def body_of(bench: Bench, **settings: Any) -> bytes:
    """Return a request for a long answer."""
    request = {"model": bench.client.model, "prompt": "abcabc", "max_tokens": LONG, "temperature": 0, "stream": True}
    return json.dumps(request | {"ignore_eos": True} | settings).encode()


async def wait_until_idle(backend: Backend) -> ServerLoad:
    for _ in range(600):
        load = await backend.gauges()
        if load.running == 0 and load.waiting == 0:
            break
        await asyncio.sleep(0.1)
    return load


def test_it_says_what_it_is(bench: Bench) -> None:
    async def body() -> None:
        info = await bench.backend.describe()
        assert info.model
        assert info.max_model_len
        assert info.version["version"]
        assert (await bench.backend.client.get("/health")).is_success

    bench.run(body)


def test_it_answers_and_counts_what_it_answered(bench: Bench) -> None:
    async def body() -> None:
        backend, client = bench.backend, bench.client
        await wait_until_idle(backend)  # a server may count its last step a moment after it has answered
        before = await backend.counters()
        answers = [await client.ask(TURN, prompt, seed=0) for prompt in (PROMPT, CHAT, PROMPT)]
        await wait_until_idle(backend)
        growth = await backend.counters() - before
        assert [answer.error for answer in answers] == [None] * 3
        assert all(answer.counts_exact for answer in answers)
        assert answers[0].token_ids == answers[2].token_ids
        assert len(answers[0].token_ids) == answers[0].timing.num_tokens <= 24
        assert growth.generation_tokens == sum(answer.timing.num_tokens for answer in answers)
        assert growth.spec.num_drafts > 0
        assert growth.spec.num_accepted_tokens == sum(growth.spec.accepted_per_pos)
        assert growth.tokens_per_step is not None
        assert growth.tokens_per_step >= 1

    bench.run(body)


def test_its_two_likeliest_tokens_can_be_asked_for(bench: Bench) -> None:
    async def body() -> None:
        view = await bench.client.next_best([1, 2, 3], 2)
        assert view is not None
        assert len(view) == 2
        assert all(value <= 0 for value in view.values())

    bench.run(body)


def test_pieces_arrive_in_order_between_sending_and_end(bench: Bench) -> None:
    async def body() -> None:
        exchange = await bench.backend.stream("/v1/completions", body_of(bench, max_tokens=24))
        times = [time for time, _ in exchange.received]
        assert exchange.status == 200
        assert len(times) > 3
        assert [exchange.sent, *times, exchange.finished] == sorted([exchange.sent, *times, exchange.finished])
        assert b"".join(data for _, data in exchange.received).rstrip().endswith(b"data: [DONE]")

    bench.run(body)


def test_a_bad_request_is_refused_with_words_and_harms_nothing(bench: Bench) -> None:
    async def body() -> None:
        exchange = await bench.backend.stream("/v1/completions", b'{"max_tokens": "many"}')
        assert 400 <= exchange.status < 500
        assert "message" in json.loads(b"".join(data for _, data in exchange.received))["error"]
        assert (await bench.client.ask(TURN, PROMPT, seed=0)).error is None

    bench.run(body)


def test_a_withdrawn_request_leaves_the_server_idle(bench: Bench) -> None:
    async def body() -> None:
        received: list[tuple[float, bytes]] = []
        asking = asyncio.create_task(bench.backend.stream("/v1/completions", body_of(bench), received))
        while not received:
            await asyncio.sleep(0.001)
        load = await bench.backend.gauges()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert load.running == 1
        assert (await wait_until_idle(bench.backend)).running == 0
        assert not any(b"[DONE]" in data for _, data in received)

    bench.run(body)


def test_after_a_rest_it_answers_as_before(bench: Bench) -> None:
    async def body() -> None:
        before = await bench.client.ask(TURN, PROMPT, seed=0)
        await bench.backend.rest()
        await bench.backend.wake()
        await bench.backend.wake()
        assert (await bench.client.ask(TURN, PROMPT, seed=0)).text == before.text

    bench.run(body)


def test_a_killed_server_breaks_the_stream_and_what_came_is_kept(bench: Bench) -> None:
    """The last test in this file, and so the last on each server."""

    async def body() -> None:
        received: list[tuple[float, bytes]] = []
        asking = asyncio.create_task(bench.backend.stream("/v1/completions", body_of(bench), received))
        while not received:
            await asyncio.sleep(0.001)
        bench.kill()
        with pytest.raises(BrokenStream, match=r"^b: ") as caught:
            await asking
        assert caught.value.partial is not None
        assert caught.value.partial.received == tuple(received)
        assert b"data: " in received[0][1]

    bench.run(body)
