"""Structured output over HTTP: every way to ask for it, and grammars that are compiled beside the steps."""

import json
import shutil
import threading
import time
from pathlib import Path

import jsonschema
import openai
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.serving import serving

from draftwise.core import SpecConfig
from draftwise.engine.core import Engine
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.sampling.params import StructuredOutputsParams

SPEC = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "string", "maxLength": 3}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "ab", "schema": SCHEMA, "strict": True}}
MESSAGES = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("f", "g")]
SAMPLING = {"max_tokens": 100, "seed": 3, "extra_body": {"top_k": 30}}


@pytest.fixture(scope="module")
def server(tiny_target):
    config = EngineConfig(model=str(tiny_target), dtype="float32", device="cpu")
    with serving(Engine(config, SpecConfig.parse(SPEC)), tool_call_parser="hermes") as server:
        yield server


@pytest.mark.parametrize("stream", [False, True])
def test_response_format(server, stream):
    answer = server.client.chat.completions.create(
        model="m", messages=MESSAGES, response_format=FORMAT, stream=stream, **SAMPLING
    )
    if stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
    else:
        text = answer.choices[0].message.content
        assert answer.choices[0].finish_reason == "stop"
    jsonschema.validate(json.loads(text), SCHEMA)


def test_structured_outputs_of_completions(server):
    body = {"model": "m", "prompt": ["a", "b"], "n": 2, "structured_outputs": {"choice": ["yes", "no"]}}
    answer = server.http.post("/v1/completions", json=body).json()
    assert {choice["text"] for choice in answer["choices"]} <= {"yes", "no"}
    assert len(answer["choices"]) == 4
    body = {"model": "m", "prompt": "a", "response_format": FORMAT, "max_tokens": 3}
    answer = server.http.post("/v1/completions", json=body).json()
    assert answer["choices"][0]["text"].startswith("{")
    assert answer["choices"][0]["finish_reason"] == "length"


def test_required_and_named_tools(server):
    def ask(**fields):
        answer = server.client.chat.completions.create(model="m", messages=MESSAGES, tools=TOOLS, **fields, **SAMPLING)
        choice = answer.choices[0]
        for call in choice.message.tool_calls:
            jsonschema.validate(json.loads(call.function.arguments), SCHEMA)
        return [call.function.name for call in choice.message.tool_calls], choice.message.content, choice.finish_reason

    names, content, reason = ask(tool_choice="required", parallel_tool_calls=False)
    assert (len(names), content, reason) == (1, "", "tool_calls")
    named = {"type": "function", "function": {"name": "g"}}
    assert ask(tool_choice=named) == (["g"], "", "stop")
    chunks = server.client.chat.completions.create(
        model="m", messages=MESSAGES, tools=TOOLS, tool_choice=named, stream=True, **SAMPLING
    )
    parts = [part for chunk in chunks for part in chunk.choices[0].delta.tool_calls or []]
    assert [part.function.name for part in parts if part.id] == ["g"]
    jsonschema.validate(json.loads("".join(part.function.arguments for part in parts)), SCHEMA)


@pytest.mark.parametrize(
    ("wanted", "words"), [({"regex": "(a"}, "unclosed group"), ({"json": {"type": "thing"}}, "Invalid type: thing")]
)
def test_what_cannot_be_compiled_is_refused(server, wanted, words):
    with pytest.raises(openai.BadRequestError, match=words) as caught:
        server.client.completions.create(model="m", prompt="a", extra_body={"structured_outputs": wanted})
    assert caught.value.body["param"] == "structured_outputs"
    assert not server.engine.has_work()


@pytest.mark.parametrize("number", [3, 2_001])
def test_choices_may_be_many_and_have_any_characters(server, number):
    choices = ["(x|y)*[^z]{2,}~&#-/\\", "a\nb", *(f"option {i}" for i in range(number))]
    for place in (0, 1, number):
        body = {"choice": [choices[place], *choices], "whitespace_pattern": str(number)}
        bias = dict.fromkeys(server.engine.tokenizer.encode(choices[place]), 100)
        answer = server.client.completions.create(
            model="m",
            prompt="a",
            max_tokens=40,
            logit_bias=bias,
            temperature=0,
            extra_body={"structured_outputs": body},
        )
        assert answer.choices[0].text in choices
        assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_no_success_without_the_whole_output(server, stream):
    body = {"structured_outputs": {"regex": "aab"}, "bad_words": ["b"]}
    with pytest.raises(openai.APIError, match="could not be completed"):
        list(server.client.completions.create(model="m", prompt="a", stream=stream, extra_body=body))
    assert not server.engine.has_work()


def test_a_grammar_beyond_the_librarys_limits_is_refused(server):
    doubled = "".join(f"t{i}: t{i - 1} t{i - 1}\n" for i in range(1, 17))
    body = {"structured_outputs": {"grammar": f'start: t16\nt0: "a"\n{doubled}'}}
    with pytest.raises(openai.BadRequestError, match="Too many items"):
        server.client.completions.create(model="m", prompt="a", extra_body=body)


@pytest.mark.parametrize("more", [-3, 1])
def test_a_tokenizer_may_have_fewer_tokens_than_its_model_or_more(tiny_target, tmp_path, more):
    """Gemma 3's has one more."""
    path = Path(shutil.copytree(tiny_target, tmp_path / "m"))
    config, tensors = json.loads((path / "config.json").read_text()), load_file(path / "model.safetensors")
    config["vocab_size"] -= more
    (path / "config.json").write_text(json.dumps(config))
    rows = tensors["model.embed_tokens.weight"]
    tensors["model.embed_tokens.weight"] = torch.cat((rows, rows))[: config["vocab_size"]].contiguous()
    save_file(tensors, path / "model.safetensors")
    engine = Engine(EngineConfig(model=str(path), dtype="float32", device="cpu"), SpecConfig.parse(SPEC))
    with serving(engine) as server:
        create = server.client.chat.completions.create
        assert create(model="m", messages=MESSAGES, max_tokens=8).usage.completion_tokens
        text = create(model="m", messages=MESSAGES, response_format=FORMAT, **SAMPLING).choices[0].message.content
        jsonschema.validate(json.loads(text), SCHEMA)
        last = engine.tokenizer.piece(engine.tokenizer.vocab_size - 1)
        answer = server.http.post("/v1/completions", json={"model": "m", "prompt": last, "max_tokens": 1})
        assert answer.status_code == (400 if more > 0 else 200)


def test_while_a_grammar_is_compiled_others_are_answered(server, monkeypatch):
    """And a client that goes away meanwhile leaves nothing behind."""
    compile_one, may_go_on, begun = server.engine.grammars._compile, threading.Event(), list[str]()

    def compile_slowly(params: StructuredOutputsParams):
        begun.append(params.choice[0])
        may_go_on.wait(30)
        return compile_one(params)

    monkeypatch.setattr(server.engine.grammars, "_compile", compile_slowly)
    answers = []

    def ask(text):
        body = {"prompt": "a", "structured_outputs": {"choice": [text]}}
        answers.append(server.http.post("/v1/completions", json=body).json()["choices"][0]["text"])

    threads = [threading.Thread(target=ask, args=(text,)) for text in ("late", "later")]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 30
    while len(begun) < 2 and time.monotonic() < deadline:  # which are all that compile
        time.sleep(0.01)
    with pytest.raises(openai.APITimeoutError):
        server.client.with_options(timeout=0.3).completions.create(
            model="m", prompt="a", extra_body={"structured_outputs": {"choice": ["gone"]}}
        )
    other = server.client.completions.create(model="m", prompt="a", max_tokens=4, extra_body={"ignore_eos": True})
    assert other.usage.completion_tokens == 4
    assert not answers
    may_go_on.set()
    for thread in threads:
        thread.join()
    assert sorted(answers) == ["late", "later"]
    deadline = time.monotonic() + 30
    while server.engine.has_work() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.engine.stats().num_running == 0
    assert sorted(begun) == ["late", "later"], "what nobody waits for any more is not compiled"
    assert not server.worker._unanswered


def test_a_grammar_that_is_forgotten_before_its_turn_is_not_compiled_by_the_loop(server, monkeypatch):
    grammars, threads, forgotten = server.engine.grammars, list[str](), list[bool]()
    compile_one, compile_new = grammars.compile, grammars._compile

    def compile_and_forget(params):
        grammar = compile_one(params)
        if not forgotten:
            forgotten.append(True)
            grammars._compiled.clear()
        return grammar

    def note_thread(params):
        threads.append(threading.current_thread().name)
        return compile_new(params)

    monkeypatch.setattr(grammars, "compile", compile_and_forget)
    monkeypatch.setattr(grammars, "_compile", note_thread)
    body = {"prompt": ["a", "b"], "structured_outputs": {"choice": ["forgotten"]}}
    answer = server.http.post("/v1/completions", json=body).json()
    assert [choice["text"] for choice in answer["choices"]] == ["forgotten"] * 2
    assert len(threads) == 2
    assert all(name.startswith("draftwise-grammar") for name in threads)


def test_the_completions_of_a_request_share_its_grammar(server, monkeypatch):
    compile_one, kinds = server.engine.grammars.compile, list[str]()

    def note(params):
        kinds.append(params.kind)
        return compile_one(params)

    monkeypatch.setattr(server.engine.grammars, "compile", note)
    body = {"prompt": "a", "n": 8, "structured_outputs": {"choice": ["shared"]}}
    answer = server.http.post("/v1/completions", json=body).json()
    assert [choice["text"] for choice in answer["choices"]] == ["shared"] * 8
    assert len(kinds) == 2, "it is compiled, and then found once for all"


def test_a_library_that_fails_refuses_one_request(server, monkeypatch):
    def fail(_):
        raise RuntimeError("bug")

    monkeypatch.setattr(server.engine.grammars, "_compile", fail)
    with pytest.raises(openai.BadRequestError, match="the server's log"):
        server.client.completions.create(model="m", prompt="a", extra_body={"structured_outputs": {"regex": "new"}})
    other = server.client.completions.create(model="m", prompt="a", max_tokens=4, extra_body={"ignore_eos": True})
    assert other.usage.completion_tokens == 4
