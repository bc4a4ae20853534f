"""Long answers are rendered in slices: other requests go on after a bounded number of values, whatever was asked."""

import asyncio
import json
import math
from types import SimpleNamespace

import pytest

from draftwise.engine.engine_outputs import Delta, Logprob
from draftwise.serve import formats, generation
from draftwise.serve.channel import PackedRequest
from draftwise.serve.formats import ChatFormat, CompletionFormat
from draftwise.serve.generation import Call, Generation, make_answer, stream_events

LENGTH, NUM_RANKED = 600, 20
TOKENIZER = SimpleNamespace(makes_text=True, token_text=chr, token_bytes=lambda token: chr(token).encode())
CANDIDATES = {token: Logprob(-0.1 * token, token, chr(token)) for token in range(65, 65 + NUM_RANKED)}


def make_format(kind, *, streamed):
    asked = {"streamed": streamed, "num_logprobs": NUM_RANKED, "name_by_id": False}
    if kind == "chat":
        return ChatFormat(TOKENIZER, prompt=None, role="assistant", said="", tool_use=None, **asked)
    texts = ["A" * LENGTH] if kind == "echo" else None
    prompts = [[65] * LENGTH] if kind == "echo" else []
    return CompletionFormat(TOKENIZER, prompts=prompts, texts=texts, only_prompt=False, return_token_ids=False, **asked)


def make_deltas(kind):
    """Return increments of a prompt's log-probabilities (for an echo) and of as many tokens."""
    piece = {"request_id": "r", "index": 0}
    if kind == "echo":
        positions = [None, *[CANDIDATES] * (LENGTH - 1)]
        for first in range(0, LENGTH, 50):
            yield Delta(**piece, token_ids=[], text="", prompt_logprobs=positions[first : first + 50])
    for number in range(1, LENGTH + 1):
        reason = "length" if number == LENGTH else None
        yield Delta(**piece, token_ids=[65], text="A", logprobs=[CANDIDATES], finish_reason=reason)


async def render(kind, *, streamed):
    """Return the answer to increments that all wait already, and its longest slice in encoded values."""
    whole = Generation([PackedRequest("r", 1, LENGTH, None, b"")], lambda _: None)
    for delta in make_deltas(kind):
        whole.push(0, delta)
    call = Call(
        call_id="c", model="m", format=make_format(kind, streamed=streamed), prompt_lengths=[LENGTH], n=1, created=0
    )
    slices = [0]

    def count(value):
        slices[-1] += 1
        return encode(value)

    async def others():
        while True:
            slices.append(0)
            await asyncio.sleep(0)

    encode, formats.encode, generation.encode = formats.encode, count, count
    waiting = asyncio.create_task(others())
    try:
        if streamed:
            answer = b"".join([event async for event in stream_events(call, whole)])
        else:
            answer = await make_answer(call, whole)
    finally:
        waiting.cancel()
        formats.encode = generation.encode = encode
    return answer, max(slices)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("kind", ["completion", "chat", "echo"])
def test_no_slice_has_more_than_a_step_has_time_for(kind, streamed, monkeypatch):
    answer, longest = asyncio.run(render(kind, streamed=streamed))
    assert longest <= generation._SLICE
    monkeypatch.setattr(generation, "_SLICE", math.inf)
    same, all_at_once = asyncio.run(render(kind, streamed=streamed))
    assert all_at_once > 2 * longest, "it would have been more"
    told = [json.loads(each.removeprefix("data: ")) for each in answer.decode().split("\n\n") if each[6:7] == "{"]
    told = told if streamed else [json.loads(answer)]
    assert same == answer
    logprobs = [choice["logprobs"] for each in told for choice in each["choices"] if choice["logprobs"]]
    items = [item for each in logprobs for item in each["content" if kind == "chat" else "top_logprobs"]]
    assert len(items) == LENGTH * (2 if kind == "echo" else 1)
