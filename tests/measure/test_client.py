"""The load generator as an instrument: what a fake is known to do is what it reads."""

import json
from dataclasses import replace

import httpx
import pytest

from draftwise.backends import FakeBackend, FakeScript, virtual_time
from draftwise.core import Answer, BackendError, Prompt
from draftwise.measure.client import Client
from draftwise.measure.schedule import Turn

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
    with pytest.raises(BackendError, match="refuses a plain request: unknown field prompt"):
        ask(FakeScript(refuses=("prompt",)))


def test_a_broken_connection_names_arm_and_prompt() -> None:
    with pytest.raises(BackendError, match=r"a: the connection to .* broke \(ConnectError\) at prompt 'p'"):
        ask(FakeScript(dies_after=1))


def serve_bytes(*pieces: bytes) -> Answer:
    """Return the answer read from a stream that arrives in these pieces."""

    async def body():
        for piece in pieces:
            yield piece

    async def talk() -> Answer:
        backend = FakeBackend("a", FakeScript())
        backend._open(httpx.MockTransport(lambda request: httpx.Response(200, content=body())))
        return await Client(backend=backend, model="m").ask(TURN, HELLO, seed=0)

    return virtual_time.run(talk())


def test_events_cut_anywhere_and_line_separators_inside_text_survive() -> None:
    event = {"choices": [{"text": "a\u2028b\x85c", "token_ids": [1, 2], "finish_reason": "stop"}]}
    raw = f"data: {json.dumps(event, ensure_ascii=False)}\r\n\r\ndata: [DONE]\r\n\r\n".encode()
    for cut in range(1, len(raw), 5):
        answer = serve_bytes(raw[:cut], raw[cut:])
        assert (answer.text, answer.token_ids, answer.error) == ("a\u2028b\x85c", (1, 2), None)


def test_an_error_in_the_middle_of_a_stream_is_the_answers_error() -> None:
    answer = serve_bytes(b'data: {"choices": [{"text": "a"}]}\n\n', b'data: {"error": {"message": "out of pages"}}\n\n')
    assert answer.error == "out of pages"


def test_an_answer_without_a_token_is_an_error() -> None:
    assert serve_bytes(b"data: [DONE]\n\n").error == "the answer holds no token"
