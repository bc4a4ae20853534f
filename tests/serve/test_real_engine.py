"""The server over the real engine with a tiny random model: the protocol carries what the engine says."""

import json
import time

import httpx
import openai
import pytest
from tests.support.serving import serving

from draftwise import LLM, SamplingParams
from draftwise.core import SpecConfig
from draftwise.engine.core import Engine
from draftwise.engine.engine_config import EngineConfig

SPEC = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
PROMPT = "abcabcabcabc"
GREEDY = {"model": "m", "prompt": PROMPT, "max_tokens": 24, "temperature": 0}


@pytest.fixture(scope="module")
def server(tiny_target):
    config = EngineConfig(model=str(tiny_target), dtype="float32", device="cpu", max_model_len=200)
    with serving(Engine(config, SpecConfig.parse(SPEC))) as server:
        yield server


@pytest.fixture(scope="module")
def expected(tiny_target):
    llm = LLM(str(tiny_target), dtype="float32", device="cpu")
    return llm.generate([PROMPT], SamplingParams(temperature=0, max_tokens=24))[0].outputs[0]


def test_text_and_tokens_are_the_engines(server, expected):
    choice = server.client.completions.create(**GREEDY, extra_body={"return_token_ids": True}).choices[0]
    assert (choice.token_ids, choice.text) == (expected.token_ids, expected.text)


def test_stream_and_whole_agree(server, expected):
    chunks = list(server.client.completions.create(**GREEDY, stream=True, extra_body={"return_token_ids": True}))
    choices = [chunk.choices[0] for chunk in chunks]
    assert "".join(choice.text for choice in choices) == expected.text
    assert [token for choice in choices for token in choice.token_ids] == expected.token_ids
    assert choices[-1].finish_reason == expected.finish_reason


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_that_the_tokenizer_has_no_text_for_end_their_request_only(tiny_target, tmp_path, stream):
    for file in tiny_target.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["decoder"] = {"type": "Strip", "content": " ", "start": 1, "stop": 1}  # the library panics at " "
    content["model"]["vocab"] = {chr(0x100 + i) if i != 97 else " ": i for i in range(256)}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with serving(Engine(EngineConfig(model=str(tmp_path), dtype="float32", device="cpu"))) as server:
        fields = {"model": "m", "prompt": [1, 2], "max_tokens": 3, "logprobs": 2, "temperature": 0}
        with pytest.raises(openai.APIError, match="tokenizer fails"):
            list(server.client.completions.create(**fields, stream=stream, logit_bias={"97": 100}))
        list(server.client.completions.create(**fields, stream=stream, logit_bias={"98": 100}))


def test_a_stop_string_across_tokens(server, expected):
    plain = "".join(character if character.isascii() else "" for character in expected.text)
    stop = next(plain[i : i + 2] for i in range(2, len(plain)) if plain[i : i + 2] in expected.text[2:])
    answer = server.client.completions.create(**GREEDY, stop=stop)
    assert answer.choices[0].text == expected.text.partition(stop)[0]
    assert answer.choices[0].finish_reason == "stop"


def test_logprobs_of_prompt_and_output(server):
    answer = server.client.completions.create(**GREEDY, logprobs=2, echo=True)
    told = answer.choices[0].logprobs
    assert len(told.tokens) == answer.usage.total_tokens
    assert told.token_logprobs[0] is None
    output = list(zip(told.token_logprobs, told.top_logprobs, strict=True))[len(PROMPT) :]
    assert all(chosen == max(top.values()) for chosen, top in output), "greedy takes the most likely token"


@pytest.mark.parametrize("length", [20, 180])
def test_logprobs_of_a_prompt_are_the_same_in_a_stream(server, length):
    asked = GREEDY | {"prompt": "ab" * (length // 2), "logprobs": 20, "echo": True, "max_tokens": 4}
    whole = server.client.completions.create(**asked).choices[0]
    chunks = [chunk.choices[0] for chunk in server.client.completions.create(**asked, stream=True)]
    assert all(chunk.logprobs.tokens for chunk in chunks), "no event without content"
    told = [chunk.logprobs for chunk in chunks]
    assert [token for each in told for token in each.tokens] == whole.logprobs.tokens
    assert [top for each in told for top in each.top_logprobs] == whole.logprobs.top_logprobs
    assert len(whole.prompt_logprobs) == length
    assert whole.prompt_logprobs[0] is None


def test_chat_with_seed_is_repeatable_and_its_choices_differ(server):
    def ask():
        answer = server.client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Hi"}], n=2, seed=3, max_tokens=8, logprobs=True
        )
        return [[token.bytes for token in choice.logprobs.content] for choice in answer.choices]

    first = ask()
    assert first == ask()
    assert first[0] != first[1]


def test_too_long_prompts_are_refused_with_the_numbers(server):
    with pytest.raises(openai.BadRequestError, match=r"201 tokens.* 200"):
        server.client.completions.create(model="m", prompt=[65] * 201)
    with pytest.raises(openai.BadRequestError, match="Token ids must lie in"):
        server.client.completions.create(model="m", prompt=[10**6])


def test_a_client_that_goes_away_frees_its_pages(server):
    body = GREEDY | {"stream": True, "ignore_eos": True, "max_tokens": 180}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as answer:
        next(answer.iter_lines())
    deadline = time.monotonic() + 60
    while server.worker.stats.kv_cache_usage or server.engine.has_work():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_metrics_count_drafts_and_prefix_hits(server):
    def counters():
        lines = server.http.get("/metrics").text.splitlines()
        return {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines if "_total{" in line}

    before = counters()
    server.client.completions.create(**GREEDY)
    drafted = counters()
    for name in ("num_drafts", "num_draft_tokens"):
        assert drafted[f"vllm:spec_decode_{name}_total"] > before[f"vllm:spec_decode_{name}_total"]
    assert drafted["vllm:generation_tokens_total"] == before["vllm:generation_tokens_total"] + 24
    for _ in range(2):
        server.client.completions.create(**GREEDY | {"prompt": "0123456789" * 9})
    assert counters()["vllm:prefix_cache_hits_total"] >= drafted["vllm:prefix_cache_hits_total"] + 80
