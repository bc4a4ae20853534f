"""What the server refuses and how it says so; what it does when a client or the engine goes away."""

import json
import math
import socket
import threading
import time

import httpx
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.combinations import tries
from tests.support.fake_engine import FakeEngine
from tests.support.serving import serving

from draftwise.core import InvalidSetup
from draftwise.engine.text.tokenizer import Tokenizer
from draftwise.serve.calls import Defaults, ServedModel, read_chat, read_completion
from draftwise.serve.errors import RequestError
from draftwise.serve.request_fields import CHAT_FIELDS, COMPLETION_FIELDS

CHAT = {"messages": [{"role": "user", "content": "x"}]}
TOOLS = {"tools": [{"type": "function", "function": {"name": "f"}}]}
JSON_TYPE = {"content-type": "application/json"}
REFUSED = {
    "not json": ("completions", '{"prompt": "x"', 400, None, "not valid JSON"),
    "not an object": ("completions", "[1]", 400, None, "JSON object, got list"),
    "deep": ("completions", "[" * 100_000, 400, None, "not valid JSON"),
    "not a number": ("completions", '{"prompt": "x", "temperature": NaN}', 400, None, "NaN"),
    "infinite": ("completions", '{"prompt": "x", "temperature": 1e999}', 400, "temperature", "finite"),
    "half a character": ("completions", '{"prompt": "\\ud800"}', 400, None, "surrogate"),
    "no prompt": ("completions", {}, 400, "prompt", "missing"),
    "empty prompt": ("completions", {"prompt": ""}, 400, "prompt", "empty"),
    "no prompts": ("completions", {"prompt": []}, 400, "prompt", "a list of strings"),
    "mixed prompts": ("completions", {"prompt": ["a", 1]}, 400, "prompt", "a list of strings"),
    "one bad prompt of two": ("completions", {"prompt": ["a", "b" * 64]}, 400, "prompt", "has 64 tokens"),
    "too long": ("completions", {"prompt": "a" * 70}, 400, "prompt", "70 tokens, but prompt and output together may"),
    "other model": (
        "completions",
        {"prompt": "a", "model": "z"},
        404,
        "model",
        "`z` does not exist; this server has `m`",
    ),
    "wrong type": ("completions", {"prompt": "a", "temperature": "hot"}, 400, "temperature", "a finite number"),
    "true is no integer": ("completions", {"prompt": "a", "n": True}, 400, "n", "an integer"),
    "fraction": ("completions", {"prompt": "a", "max_tokens": 1.5}, 400, "max_tokens", "an integer"),
    "two faults": ("completions", {"prompt": "a", "n": "x", "seed": "y"}, 400, "n", "seed must be"),
    "out of range": ("completions", {"prompt": "a", "temperature": -1}, 400, "temperature", "got -1.0"),
    "no tokens": ("completions", {"prompt": "a", "max_tokens": 0}, 400, "max_tokens", "at least 1"),
    "many": ("completions", {"prompt": "a", "n": 1000}, 400, "n", "at most 128"),
    "more than ever fits": ("completions", {"prompt": "a", "n": 50}, 400, None, "at most 12"),
    "logprobs": ("completions", {"prompt": "a", "logprobs": 21}, 400, "logprobs", "at most 20"),
    "stops": ("completions", {"prompt": "a", "stop": ["x"] * 65}, 400, "stop", "at most 64 items, got 65"),
    "not utf-8": ("completions", b'{"prompt": "\xff"}', 400, None, "not valid JSON"),
    "bias": ("completions", {"prompt": "a", "logit_bias": {"a": 1}}, 400, "logit_bias", "are not token ids"),
    "suffix": ("completions", {"prompt": "a", "suffix": "b"}, 400, "suffix", "not supported"),
    "beams": ("completions", {"prompt": "a", "use_beam_search": True}, 400, "use_beam_search", "not supported"),
    "old name": ("completions", {"prompt": "a", "guided_json": {}}, 400, "guided_json", "not supported"),
    "format": ("completions", {"prompt": "a", "response_format": {"type": "xml"}}, 400, "response_format", "'xml'"),
    "no schema": (
        *("chat/completions", CHAT | {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}),
        *(400, "response_format", "json_schema.schema must be an object"),
    ),
    "two formats": (
        *("completions", {"prompt": "a", "response_format": {"type": "json_object"}, "structured_outputs": {}}),
        *(400, "response_format", "not both"),
    ),
    "two grammars": (
        *("completions", {"prompt": "a", "structured_outputs": {"regex": "a", "choice": ["a"]}}),
        *(400, "structured_outputs", "it has regex and choice"),
    ),
    "choices": (
        *("completions", {"prompt": "a", "structured_outputs": {"choice": "yes"}}),
        *(400, "structured_outputs", "a list of strings, not empty"),
    ),
    "no function": ("chat/completions", CHAT | {"tools": [{"type": "function"}]}, 400, "tools", "tools[0] must be"),
    "tools of a completion": ("completions", {"prompt": "a", "tools": [{}]}, 400, "tools", "not supported"),
    "no tools": ("chat/completions", CHAT | {"tool_choice": "required"}, 400, "tool_choice", "needs tools"),
    "choice without tools": ("chat/completions", CHAT | {"tool_choice": "auto"}, 400, "tool_choice", "needs tools"),
    "empty tools": ("chat/completions", CHAT | {"tools": []}, 400, "tools", "must not be empty"),
    "empty tools, no choice": ("chat/completions", CHAT | {"tools": [], "tool_choice": "none"}, 400, "tools", "empty"),
    "a tool and a format": (
        "chat/completions",
        CHAT | TOOLS | {"tool_choice": {"function": {"name": "f"}}, "structured_outputs": {"regex": "a"}},
        *(400, "structured_outputs", "not both"),
    ),
    "a side, nothing to cut": ("completions", {"prompt": "a", "truncation_side": "up"}, 400, "truncation_side", "left"),
    "priority": ("completions", {"prompt": "a", "priority": 5}, 400, "priority", "not supported"),
    "hot": ("completions", {"prompt": "a", "temperature": 2.1}, 400, "temperature", "at most 2"),
    "greedy twice": ("completions", {"prompt": "a", "temperature": 0, "n": 2}, 400, "n", "n must be 1"),
    "more than the context": ("completions", {"prompt": "a", "max_tokens": 65}, 400, "max_tokens", "may have 64"),
    "more than the context of a chat": (
        *("chat/completions", CHAT | {"max_completion_tokens": 65}),
        *(400, "max_completion_tokens", "may have 64"),
    ),
    **{
        f"salt {salt[:9]!r}": ("completions", {"prompt": "a", "cache_salt": salt}, 400, "cache_salt", "1 to 128")
        for salt in ("", "a@b", "a/b", "a\\b", "a\0b", "a" * 129)
    },
    "tools not enabled": ("chat/completions", CHAT | TOOLS, 400, "tool_choice", "--enable-auto-tool-choice"),
    "unknown tool": (
        *("chat/completions", CHAT | TOOLS | {"tool_choice": {"type": "function", "function": {"name": "g"}}}),
        *(400, "tool_choice", "'g'"),
    ),
    "earlier call": (
        *("chat/completions", {"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]}),
        *(400, "messages", "tool_calls[0] must have a function"),
    ),
    "earlier calls": (
        *("chat/completions", {"messages": [{"role": "assistant", "tool_calls": {"id": "1"}}]}),
        *(400, "messages", "tool_calls must be a list"),
    ),
    "stream options": (
        *("completions", {"prompt": "a", "stream_options": {"include_usage": True}}),
        *(400, "stream_options", "stream: true"),
    ),
    "usage as text": (
        *("completions", {"prompt": "a", "stream": True, "stream_options": {"include_usage": "false"}}),
        *(400, "stream_options", "true or false"),
    ),
    "streamed prompt": (
        *("completions", {"prompt": "a", "stream": True, "prompt_logprobs": 1}),
        *(400, "prompt_logprobs", "cannot be streamed"),
    ),
    "long quote": (
        *("completions", {"prompt": "a", "response_format": {"type": "x" * 10**6}}),
        *(400, "response_format", "got 'xxx"),
    ),
    "watermark": ("completions", {"prompt": "a", "watermarking": True}, 400, "watermarking", "not supported"),
    "grammar of each prompt": (
        *("completions", {"prompt": ["a"] * 9, "structured_outputs": {"regex": "a" * 2**19}}),
        *(400, "structured_outputs", "over all prompts"),
    ),
    "definitions": (
        *("chat/completions", CHAT | {"tools": [{"function": {"name": "f", "parameters": {"$defs": [1]}}}]}),
        *(400, "tools", "must be a JSON schema"),
    ),
    "no messages": ("chat/completions", {}, 400, "messages", "at least one"),
    "no role": ("chat/completions", {"messages": [{"content": "x"}]}, 400, "messages", "messages[0]"),
    "content": ("chat/completions", {"messages": [{"role": "user", "content": 1}]}, 400, "messages", "text as content"),
    "image": (
        *("chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
        *(400, "messages", "not text"),
    ),
    "top_logprobs alone": ("chat/completions", CHAT | {"top_logprobs": 1}, 400, "top_logprobs", "logprobs: true"),
    "unknown path": ("embeddings", {}, 404, None, "/v1/embeddings"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(shared, case):
    path, body, status, param, words = REFUSED[case]
    content = body if isinstance(body, str | bytes) else json.dumps(body)
    answer = shared.http.post(f"/v1/{path}", content=content, headers=JSON_TYPE)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["code"], error["param"]) == (status, param)
    assert words in error["message"]
    assert len(error["message"]) < 2100, "nobody is sent a long request back"


def test_harmless_values_of_refused_fields_pass(shared):
    body = {"prompt": "a", "suffix": None, "best_of": 1, "use_beam_search": False, "response_format": {"type": "text"}}
    body |= {"stream_options": {}, "vllm_xargs": {}, "watermarking": False}
    assert shared.http.post("/v1/completions", json=body).status_code == 200


def test_wrong_method(shared):
    answer = shared.http.get("/v1/completions")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert "GET is not allowed" in answer.json()["error"]["message"]


def test_a_body_that_is_too_large_is_not_read(shared):
    def endless():
        while True:
            yield b" " * 2**20

    answer = httpx.post(f"{shared.url}/v1/completions", content=endless(), headers=JSON_TYPE, timeout=60)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, 413)


def test_a_model_without_chat_template(checkpoint, tmp_path):
    directory = tmp_path / "plain"
    directory.mkdir()
    (directory / "tokenizer.json").write_bytes((checkpoint / "tokenizer.json").read_bytes())
    (directory / "config.json").write_text('{"eos_token_id": 256}')
    with serving(FakeEngine(directory)) as server, pytest.raises(openai.BadRequestError, match="no chat template"):
        server.client.chat.completions.create(model="m", **CHAT)


def test_the_api_key_guards_all_but_what_probes_and_scrapers_read(checkpoint):
    with serving(FakeEngine(checkpoint), api_key="schlüssel") as server:

        def ask(authorization, path="/v1/models"):
            return server.http.get(path, headers={"authorization": authorization.encode()})

        assert ask("Bearer schlüssel").json()["data"][0]["id"] == "m"
        for wrong in ("Bearer schlüssel2", "Bearer schl", "Bearer", "Basic schlüssel"):
            assert ask(wrong).status_code == 401
            assert ask(wrong).headers["www-authenticate"] == "Bearer"
        guarded = ["/v1/models", "/v1/models/m", "//v1/models", "/v1%2fmodels", "/nowhere"]
        assert [server.http.get(path).status_code for path in guarded] == [401] * len(guarded)
        assert server.http.post("/tokenize", json={"prompt": "a"}).status_code == 401
        opened = ("/health", "/ping", "/load", "/metrics", "/version")
        assert [server.http.get(path).status_code for path in opened] == [200] * len(opened)
        assert server.http.get("/version").json().keys() == {"version"}
        assert "speculative_config" in ask("Bearer schlüssel", "/version").json()


def wait_until(holds, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.005)


def post_in_thread(server, body, statuses):
    def post():
        statuses.append(httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).status_code)

    thread = threading.Thread(target=post)
    thread.start()
    return thread


def test_the_queue_is_bounded_and_says_when_to_come_back(checkpoint):
    engine = FakeEngine(checkpoint, max_num_seqs=1)
    engine.steps = 0
    with serving(engine, max_waiting=1) as server:
        statuses = []
        threads = [post_in_thread(server, {"prompt": "a"}, statuses) for _ in range(2)]
        wait_until(lambda: len(engine.prompts) == 2)
        answer = server.http.post("/v1/completions", json={"prompt": "a"})
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert "queue is full" in answer.json()["error"]["message"]
        assert (
            'admission_rejections_total{model_name="m",reason="max_num_queued_reqs"} 1.0'
            in server.http.get("/metrics").text
        )
        engine.steps = math.inf
        for thread in threads:
            thread.join()
        assert statuses == [200, 200]
        assert server.http.post("/v1/completions", json={"prompt": "a"}).status_code == 200


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("queued", [False, True], ids=["generating", "before the first token"])
def test_a_client_that_goes_away_aborts_its_request(checkpoint, stream, queued):
    engine = FakeEngine(checkpoint, reply="x" * 60, max_model_len=4096)
    engine.steps = 0 if queued else 2
    with serving(engine) as server:
        body = {"prompt": ["a", "b"], "stream": stream, "max_tokens": 4000, "ignore_eos": True}
        if stream:
            with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as answer:
                if not queued:
                    next(answer.iter_lines())
        else:
            with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port)) as client:
                asked = json.dumps(body).encode()
                client.sendall(
                    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                )
                client.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(asked), asked))
                wait_until(lambda: len(engine.prompts) == 2 and not engine.steps)
        wait_until(lambda: len(engine.aborted) == 2)
        assert not engine.has_work()
        assert 'finished_reason="abort",model_name="m"} 2.0' in server.http.get("/metrics").text


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_when_the_engine_fails_every_request_fails_and_health_says_so(checkpoint, stream, caplog):
    engine = FakeEngine(checkpoint)
    engine.steps = 0
    with serving(engine) as server:
        statuses = []
        thread = post_in_thread(server, {"prompt": "a", "stream": stream}, statuses)
        wait_until(engine.has_work)
        engine.broken = RuntimeError("out of memory")
        thread.join()
        assert statuses == [200 if stream else 500]
        assert server.http.get("/health").status_code == 503
        later = server.http.post("/v1/completions", json={"prompt": "a"})
        assert later.status_code == 500
        assert "out of memory" in later.json()["error"]["message"]
    assert "out of memory" in caplog.text


def test_a_stream_that_fails_ends_with_the_error(checkpoint):
    engine = FakeEngine(checkpoint)
    engine.steps = 1
    with serving(engine) as server:
        stream = server.client.completions.create(model="m", prompt="a", stream=True)
        engine.broken = RuntimeError("out of memory")
        with pytest.raises(openai.APIError, match="out of memory"):
            list(stream)


def test_a_bug_is_an_error_in_the_same_envelope(checkpoint, monkeypatch, caplog):
    with serving(FakeEngine(checkpoint)) as server:
        monkeypatch.setattr(server.engine.tokenizer, "encode", None)
        answer = server.http.post("/v1/completions", json={"prompt": "a"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "InternalServerError")
    assert "TypeError" in caplog.text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize(("read", "known"), [(read_completion, COMPLETION_FIELDS), (read_chat, CHAT_FIELDS)])
@given(data=st.data())
@settings(max_examples=tries(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_json_is_read_or_refused(checkpoint, read, known, data):
    body = data.draw(st.dictionaries(st.sampled_from(sorted(known)), JSON, max_size=5))
    body = data.draw(st.sampled_from([{}, {"prompt": "a"}, CHAT])) | body
    model = ServedModel(
        name="m", tokenizer=Tokenizer.from_pretrained(checkpoint), max_model_len=64, defaults=Defaults()
    )
    try:
        _, requests = read(body, model)
    except (RequestError, InvalidSetup):
        return
    assert all(isinstance(request.prompt_token_ids, list) for request in requests)
