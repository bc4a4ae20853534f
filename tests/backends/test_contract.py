"""What every backend must do, asked of all of them."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from draftwise.backends import Backend, EmbeddedBackend, FakeBackend, FakeScript, UrlBackend
from draftwise.core import Prompt, SpecConfig
from draftwise.measure.client import Client
from draftwise.measure.schedule import Turn

PROMPT = Prompt(id="p", text="abcabcabcabcabc", max_tokens=24)
CHAT = Prompt(id="q", messages=({"role": "user", "content": "say abcabc"},), max_tokens=8)
TURN = Turn(number=0, arm="b", workload="w", repeat=1, prompts=(PROMPT,))
SCRIPT = FakeScript(k=2, accepted=(2, 0), first_token_s=0.001, step_s=0.001)


@pytest.fixture(params=["virtual fake", "fake", "url", "embedded"])
def check(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Callable[[Backend], Awaitable[None]]], None]:
    """Run a check against a backend that is not started; stopping is harmless before, after, and twice."""

    async def run(body: Callable[[Backend], Awaitable[None]]) -> None:
        neighbour = FakeBackend("n", SCRIPT, real_time=True)
        if request.param == "url":
            await neighbour.start()
        backend = make(neighbour)
        await backend.stop()
        try:
            await body(backend)
        finally:
            await backend.stop()
            await backend.stop()
            await neighbour.stop()

    def make(neighbour: FakeBackend) -> Backend:
        if request.param == "embedded":
            target = str(request.getfixturevalue("tiny_target"))
            spec = SpecConfig(method="ngram", num_speculative_tokens=2, options={"prompt_lookup_min": 1})
            return EmbeddedBackend("b", target, spec=spec, log=tmp_path / "b.log")
        if request.param == "url":
            return UrlBackend("b", neighbour.url + "/v1/")
        return FakeBackend("b", SCRIPT, real_time=request.param == "fake")

    return lambda body: asyncio.run(run(body))


def test_a_backend_answers_and_counts_what_it_answered(check) -> None:
    async def body(backend: Backend) -> None:
        await backend.start()
        info = await backend.describe()
        assert info.model
        assert info.version["version"]
        assert (await backend.client.get("/health")).is_success
        client = await Client.greet(backend, PROMPT, temperature=0, salt="")
        await asyncio.sleep(0.1)  # a server may count its last step a moment after it has answered
        before = await backend.counters()
        answers = [await client.ask(TURN, prompt, seed=0) for prompt in (PROMPT, CHAT, PROMPT)]
        await asyncio.sleep(0.1)
        growth = await backend.counters() - before
        assert [answer.error for answer in answers] == [None] * 3
        assert all(answer.counts_exact for answer in answers)
        assert answers[0].token_ids == answers[2].token_ids
        assert len(answers[0].token_ids) == answers[0].timing.num_tokens <= 24
        assert growth.generation_tokens == sum(answer.timing.num_tokens for answer in answers)
        assert growth.spec.num_drafts > 0
        assert growth.spec.num_accepted_tokens == sum(growth.spec.accepted_per_pos)
        assert growth.tokens_per_step >= 1
        view = await client.next_two([1, 2, 3])
        assert view is not None
        assert len(view) == 2
        assert all(value <= 0 for value in view.values())

    check(body)
