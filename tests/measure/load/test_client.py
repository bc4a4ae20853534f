"""The load generator as an instrument: what a fake is known to do is what it reads."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from tests.support import virtual_time
from tests.support.fake_server import FakeBackend, FakeScript

from draftwise.backends import Exchange, Piece
from draftwise.core import Answer, BackendError, Condition, Prompt
from draftwise.measure.load.client import Client, LoadRequest, to_answer
from draftwise.measure.load.response import ParsedResponse
from draftwise.runs.turn_order import Turn

HELLO = Prompt(id="p", text="hello", max_tokens=9)
CHAT = Prompt(id="p", messages=({"role": "user", "content": "hi"},), max_tokens=5)
TURN = Turn(number=4, arm="a", workload="w", repeat=2, prompts=(HELLO,))


def ask(script: FakeScript, prompt: Prompt = HELLO) -> tuple[Answer, Client]:
    async def talk() -> tuple[Answer, Client]:
        backend = FakeBackend("a", script)
        await backend.start()
        client = await Client.greet(backend, HELLO, salt="s")
        return await client.ask(TURN, prompt, seed=0), client

    return virtual_time.run(talk())


def test_known_latencies_are_read_back_exactly() -> None:
    answer, _ = ask(FakeScript(first_token_s=0.25, step_s=0.125, k=3, accepted=(3, 0)))
    assert [count for _, count in answer.timing.chunks] == [1, 4, 1, 3]
    assert answer.timing.ttft_s == pytest.approx(0.25)
    assert answer.timing.itl_s == pytest.approx((0.125, 0.125, 0.125))
    assert answer.timing.tpot_s == pytest.approx(3 * 0.125 / 8)
    assert answer.timing.e2e_s == pytest.approx(0.25 + 3 * 0.125)
    assert (answer.turn, answer.repeat, answer.workload) == (4, 2, "w")


def test_the_fullest_request_is_sent_and_its_answer_kept() -> None:
    answer, client = ask(FakeScript())
    assert {"return_token_ids", "cache_salt", "stream_options"} <= client.optional.keys()
    assert len(answer.token_ids) == 9
    assert answer.prompt_token_ids == tuple(json.dumps("hello").encode())
    assert (answer.finish_reason, answer.counts_exact, answer.error) == ("length", True, None)
    assert answer.text.split() == [str(token) for token in answer.token_ids]


@pytest.mark.parametrize(
    ("refused", "kept"),
    [
        (("cache_salt",), {"return_token_ids", "stream_options"}),
        (("cache_salt", "return_token_ids"), {"stream_options"}),
        (("cache_salt", "return_token_ids", "stream_options"), set()),
    ],
)
def test_fields_that_a_server_refuses_are_left_out(refused: tuple[str, ...], kept: set[str]) -> None:
    answer, client = ask(FakeScript(refuses=refused))
    assert client.optional.keys() == kept
    assert answer.error is None


def test_a_server_that_counts_no_chunks_is_read_by_its_total_and_marked() -> None:
    answer, _ = ask(FakeScript(reports_tokens=False, k=3, accepted=(3,)))
    assert not answer.counts_exact
    assert answer.timing.num_tokens == 9
    assert answer.token_ids == ()


def test_messages_go_to_the_chat_endpoint() -> None:
    answer, _ = ask(FakeScript(), CHAT)
    assert len(answer.token_ids) == 5
    assert answer.text


def test_a_refusal_becomes_the_answers_error() -> None:
    async def talk() -> Answer:
        backend = FakeBackend("a", FakeScript())
        await backend.start()
        client = await Client.greet(backend, HELLO, salt="s")
        backend.engine.script = replace(backend.engine.script, refuses=("prompt",))
        return await client.ask(TURN, HELLO, seed=0)

    assert virtual_time.run(talk()).error == "unknown field prompt"


def test_a_server_that_refuses_everything_is_named() -> None:
    with pytest.raises(BackendError, match="rejects a plain request: unknown field prompt"):
        ask(FakeScript(refuses=("prompt",)))


def test_a_broken_connection_names_arm_and_prompt() -> None:
    with pytest.raises(BackendError, match=r"On prompt 'p': a: the connection to .* broke"):
        ask(FakeScript(dies_after=1))


class Recorder(FakeBackend):
    """Keeps what it is asked."""

    def __init__(self, script: FakeScript) -> None:
        super().__init__("a", script)
        self.bodies: list[dict[str, Any]] = []

    async def stream(self, path: str, body: bytes, received: list[Piece] | None = None) -> Exchange:
        if body:
            self.bodies.append(json.loads(body))
        return await super().stream(path, body, received)


def bodies_of(*requests: LoadRequest, script: FakeScript = FakeScript(), seed: int = 0) -> list[dict[str, Any]]:  # noqa: B008
    """Return the bodies that a client of this server sends."""

    async def talk() -> list[dict[str, Any]]:
        backend = Recorder(script)
        await backend.start()
        client = await Client.greet(backend, HELLO, salt="s")
        del backend.bodies[:]
        for request in requests:
            await client.send(request, client.encode(request, seed=seed))
        return backend.bodies

    return virtual_time.run(talk())


def test_each_request_has_its_own_seed_that_does_not_depend_on_the_arm() -> None:
    other = replace(HELLO, id="q")
    requests = [
        LoadRequest(turn=TURN, prompt=HELLO),
        LoadRequest(turn=replace(TURN, arm="b", number=7), prompt=HELLO),
        LoadRequest(turn=TURN, prompt=other),
        LoadRequest(turn=TURN, prompt=HELLO, copy=1),
        LoadRequest(turn=replace(TURN, repeat=3), prompt=HELLO),
    ]
    first, on_other_arm, *others = (body["seed"] for body in bodies_of(*requests))
    assert first == on_other_arm
    assert len({first, *others}) == 1 + len(others)
    assert bodies_of(requests[0], seed=1)[0]["seed"] != first
    assert all(0 <= seed < 2**31 for seed in (first, *others))


def test_no_request_finds_its_prompt_in_the_cache_of_another_pass_load_or_copy() -> None:
    hot = Condition(temperature=0.7)
    requests = [
        LoadRequest(turn=TURN, prompt=HELLO),
        LoadRequest(turn=TURN, prompt=HELLO, copy=1),
        LoadRequest(turn=TURN, prompt=HELLO, copy=1, measured=False),
        LoadRequest(turn=replace(TURN, repeat=3), prompt=HELLO),
        LoadRequest(turn=replace(TURN, condition=hot), prompt=HELLO),
        LoadRequest(turn=replace(TURN, workload="a/b@c\\d" * 99), prompt=HELLO),
    ]
    bodies = bodies_of(*requests)
    assert len({body["cache_salt"] for body in bodies}) == len(bodies)
    assert all(re.fullmatch(r"[^@/\\\0]{1,128}", body["cache_salt"]) for body in bodies), "as vLLM 0.33 takes it"
    assert [body["temperature"] for body in bodies] == [0, 0, 0, 0, 0.7, 0]


def test_prompts_that_are_sent_together_may_share_prefixes() -> None:
    requests = [LoadRequest(turn=TURN, prompt=prompt) for prompt in (HELLO, replace(HELLO, id="q"))]
    one, other = bodies_of(*requests)
    assert one["cache_salt"] == other["cache_salt"]


@pytest.mark.parametrize(
    ("refused", "expected"),
    [((), {"ignore_eos": True}), (("ignore_eos",), {"min_tokens": 9}), (("ignore_eos", "min_tokens"), {})],
)
def test_recorded_lengths_are_forced_by_what_the_server_takes(
    refused: tuple[str, ...], expected: dict[str, object]
) -> None:
    forced, free = bodies_of(
        LoadRequest(turn=TURN, prompt=replace(HELLO, ignore_eos=True)),
        LoadRequest(turn=TURN, prompt=HELLO),
        script=FakeScript(refuses=refused),
    )
    assert {name: forced[name] for name in ("ignore_eos", "min_tokens") if name in forced} == expected
    assert not {"ignore_eos", "min_tokens"} & free.keys()


def test_an_answer_says_which_sending_it_is_of() -> None:
    exchange = Exchange(status=200, sent=2.0, received=((3.0, b'data: {"choices": [{"text": "a"}]}\n'),), finished=4.0)
    response = ParsedResponse(exchange)
    assert list(response.steps()) == []
    turn = replace(TURN, condition=Condition(temperature=0.7))
    answer = to_answer(LoadRequest(turn=turn, prompt=HELLO, copy=3, measured=False, intended=1.5), exchange, response)
    assert (answer.condition, answer.copy, answer.measured) == ("c=1 T=0.7", 3, False)
    assert (answer.timing.ttft_s, answer.timing.e2e_s, answer.timing.send_lag_s) == (1.5, 2.5, 0.5)
