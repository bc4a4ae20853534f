"""Laws of reading logs: one request and its answer, in every shape that a log writes them, is read as the same."""

import bz2
import json
import lzma
import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.combinations import tries
from tests.support.loaded import load_workload

from draftwise.core import InvalidSetup, Workload
from draftwise.workloads.log_formats import FORMATS, find_logged
from draftwise.workloads.wrapped_lines import WRAPPERS

ASKED, SAID = "Why is it so?", "Because, \u2028\n\n“it” is: data"
MESSAGES = [{"role": "system", "content": "Be short."}, {"role": "user", "content": ASKED}]
BODY = {"messages": MESSAGES, "max_tokens": 50, "temperature": 0.5, "model": "m"}
USAGE = {"prompt_tokens": 9, "completion_tokens": 17}
ANSWER = {"object": "chat.completion", "choices": [{"message": {"role": "assistant", "content": SAID}}], "usage": USAGE}


def parts(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


GENAI = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.max_tokens": 50,
    "gen_ai.request.temperature": 0.5,
    "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "Be short."}]),
    "gen_ai.input.messages": json.dumps([parts("user", ASKED)]),
    "gen_ai.output.messages": json.dumps([parts("assistant", SAID)]),
    "gen_ai.usage.input_tokens": 9,
    "gen_ai.usage.output_tokens": 17,
}
OPENINFERENCE = {
    "openinference.span.kind": "LLM",
    "llm.invocation_parameters": json.dumps({"max_tokens": 50, "temperature": 0.5}),
    "llm.input_messages.0.message.role": "system",
    "llm.input_messages.0.message.content": "Be short.",
    "llm.input_messages.1.message.role": "user",
    "llm.input_messages.1.message.contents.0.message_content.type": "text",
    "llm.input_messages.1.message.contents.0.message_content.text": ASKED,
    "llm.output_messages.0.message.role": "assistant",
    "llm.output_messages.0.message.content": SAID,
    "llm.token_count.prompt": 9,
    "llm.token_count.completion": 17,
}
NESTED = {
    "openinference": {"span": {"kind": "LLM"}},
    "llm": {
        "invocation_parameters": json.dumps({"max_tokens": 50, "temperature": 0.5}),
        "input_messages": [{"message": message} for message in MESSAGES],
        "output_messages": [{"message.role": "assistant", "message.content": SAID}],
        "token_count": {"prompt": 9, "completion": 17},
    },
}
OPENLLMETRY = {
    "llm.request.type": "chat",
    "gen_ai.request.max_tokens": 50,
    "gen_ai.request.temperature": 0.5,
    **{f"gen_ai.prompt.{place}.{key}": each[key] for place, each in enumerate(MESSAGES) for key in each},
    "gen_ai.completion.0.role": "assistant",
    "gen_ai.completion.0.content": SAID,
    "gen_ai.usage.prompt_tokens": 9,
    "gen_ai.usage.completion_tokens": 17,
}
EVENTS = [
    {"name": "gen_ai.system.message", "attributes": {"content": "Be short."}},
    {"name": "gen_ai.user.message", "attributes": {"content": ASKED}},
    {"name": "gen_ai.choice", "attributes": {"index": 0, "message": json.dumps({"content": SAID})}},
]
PLAIN = {key: GENAI[key] for key in GENAI if "messages" not in key and "instructions" not in key}
LANGFUSE = {
    "id": "x",
    "traceId": "t",
    "type": "GENERATION",
    "input": MESSAGES,
    "output": {"role": "assistant", "content": SAID},
    "modelParameters": {"max_tokens": 50, "temperature": 0.5},
    "usageDetails": {"input": 9, "output": 17},
}
GEMINI = {"contents": [{"role": "user", "parts": [{"text": ASKED}]}],
          "systemInstruction": {"parts": [{"text": "Be short."}]},
          "generationConfig": {"maxOutputTokens": 50, "temperature": 0.5}}  # fmt: skip


def candidates(text: str, **usage: int) -> dict[str, Any]:
    said = {"content": {"role": "model", "parts": [{"text": text}]}, "finishReason": "STOP"}
    return {"candidates": [said], "usageMetadata": {"promptTokenCount": 9, **usage}}


WRITTEN = candidates(SAID, candidatesTokenCount=17)
SAMPLE = {"logging_time": "2025-09-02 10:14:50.313 UTC", "request_id": "9", "request_payload": [ASKED]}
KONG = {"request": {"uri": "/v1/chat/completions", "method": "POST"}, "response": {"status": 200}, "started_at": 1}
OLLAMA = {"messages": MESSAGES, "options": {"num_predict": 50, "temperature": 0.5}, "model": "m"}
PIECES = [{"message": {"role": "assistant", "content": SAID[at : at + 5]}, "done": False}
          for at in range(0, len(SAID), 5)]  # fmt: skip
LAST = {"message": {"role": "assistant", "content": ""}, "done": True, "eval_count": 17}
SPEND = {"request_id": "x", "call_type": "acompletion", "startTime": "2026-01-01 00:00:00", "messages": "{}"}


def otlp(attributes: dict[str, Any]) -> dict[str, Any]:
    kinds = {str: "stringValue", int: "intValue", float: "doubleValue"}
    values = [
        {"key": key, "value": {kinds[type(value)]: str(value) if type(value) is int else value}}
        for key, value in attributes.items()
    ]
    span = {"traceId": "t", "spanId": "s", "name": "chat m", "startTimeUnixNano": "1544712660000000000",
            "attributes": values}  # fmt: skip
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": [span]}]}]}


def chunk(delta: dict[str, Any], end: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": end}
    return {"object": "chat.completion.chunk", "choices": [choice], "usage": None}


def chunks(text: str, size: int = 5) -> list[dict[str, Any]]:
    texts = [text[place : place + size] for place in range(0, len(text), size)]
    return [
        chunk({"role": "assistant", "content": ""}),
        *(chunk({"content": each}) for each in texts),
        chunk({}, "stop"),
        {"object": "chat.completion.chunk", "choices": [], "usage": USAGE},
    ]


def sse(events: list[Any], newline: str = "\n", gap: int = 2) -> str:
    texts = [each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in events]
    return "".join(f"data: {text}{newline * gap}" for text in texts)


STREAM = sse([*chunks(SAID), "[DONE]"])


def langchain(name: str, text: str) -> dict[str, Any]:
    return {
        "lc": 1,
        "type": "constructor",
        "id": ["langchain", "schema", "messages", name],
        "kwargs": {"content": text},
    }


SHAPES: dict[str, Any] = {
    "bare with response": {**BODY, "response": SAID, "output_tokens": 17},
    "pair with a stream": {"request": BODY, "response": STREAM},
    "pair with a stream as body": {"request": {"body": BODY}, "response": {"status": 200, "body": STREAM}},
    "pair with lines without gaps": {"request": BODY, "response": sse([*chunks(SAID), "[DONE]"], gap=1)},
    "pair with CRLF and comments": {"request": BODY, "response": ": ping\r\n\r\n" + sse(chunks(SAID), "\r\n")},
    "pair with chunks": {"request": BODY, "response": chunks(SAID)},
    "pair with lines": {"request": BODY, "response": STREAM.split("\n")},
    "pair with a quoted stream": {"request": BODY, "response": json.dumps(STREAM)},
    "pair with bytes": {"request": BODY, "response": repr(STREAM.encode())},
    "pair with a chunk a line": {"request": BODY, "response": "\n".join(map(json.dumps, chunks(SAID)))},
    "langfuse messages": {**LANGFUSE, "output": [{"role": "assistant", "content": SAID}]},
    "anthropic request": {"request": {**BODY, "system": "Be short.", "messages": MESSAGES[1:]}, "response": ANSWER},
    "pair with chunks as text": {"request": BODY, "response": json.dumps(chunks(SAID))},
    "helicone with a stream": {"request_body": BODY, "response_body": STREAM, "response_status": 200},
    "batch": {"custom_id": "1", "url": "/v1/chat/completions", "body": BODY,
              "response": {"status_code": 200, "body": ANSWER}},
    "spend logs": {**SPEND, "proxy_server_request": json.dumps(BODY), "response": json.dumps(ANSWER)},
    "spend logs with url": {**SPEND, "proxy_server_request": {"url": "u", "body": BODY}, "response": ANSWER},
    "langfuse page": {"data": [LANGFUSE], "meta": {"page": 1, "totalPages": 1}},
    "langfuse trace": {"id": "t", "input": "app", "observations": [{**LANGFUSE, "type": "SPAN"}, LANGFUSE]},
    "otlp genai": otlp(GENAI),
    "otlp openinference": otlp(OPENINFERENCE),
    "console genai": {"name": "chat", "context": {"span_id": "s"}, "attributes": GENAI},
    "genai events": {"name": "chat", "attributes": PLAIN, "events": EVENTS},
    "genai details": {"attributes": PLAIN,
                      "events": [{"name": "gen_ai.client.inference.operation.details", "attributes": GENAI}]},
    "openllmetry": {"attributes": OPENLLMETRY},
    "clickhouse": {"SpanId": "s", "SpanAttributes": GENAI},
    "jaeger": {"data": [{"traceID": "t", "spans": [
        {"spanID": "s", "startTime": 1700000000000000,
         "tags": [{"key": key, "type": "string", "value": value} for key, value in GENAI.items()]}]}]},
    "phoenix page": {"data": [{"context": {"span_id": "s"}, "span_kind": "LLM", "attributes": NESTED}]},
    "phoenix columns": {f"attributes.{key}": value for key, value in OPENINFERENCE.items()},
    "langsmith page": {"runs": [{"id": "a", "run_type": "llm", "inputs": BODY, "outputs": ANSWER, "error": None}]},
    "langsmith of langchain": {
        "run_type": "llm", "extra": {"invocation_params": {"max_tokens": 50, "temperature": 0.5}},
        "inputs": {"messages": [[langchain("SystemMessage", "Be short."), langchain("HumanMessage", ASKED)]]},
        "outputs": {"generations": [[{"text": SAID, "message": langchain("AIMessage", SAID)}]],
                    "llm_output": {"token_usage": USAGE}}},
    "weave": {"op_name": "weave:///a/b/op/openai.chat.completions.create:1", "inputs": BODY, "output": ANSWER},
    "datadog": {"span_id": "s", "ml_app": "x", "metrics": {"output_tokens": 17}, "meta": {
        "kind": "llm", "metadata": {"max_tokens": 50, "temperature": 0.5}, "input": {"messages": MESSAGES},
        "output": {"messages": [{"role": "assistant", "content": SAID}]}}},
    "bedrock": {"operation": "Converse", "requestId": "a", "input": {"inputBodyJson": {
        "system": [{"text": "Be short."}], "messages": [{"role": "user", "content": ASKED}],
        "inferenceConfig": {"maxTokens": 50, "temperature": 0.5}}}, "output": {
            "outputTokenCount": 17,
            "outputBodyJson": {"output": {"message": {"role": "assistant", "content": [{"text": SAID}]}}}}},
    "har": {"log": {"version": "1.2", "entries": [{
        "request": {"url": "http://x/v1/chat/completions", "postData": {"text": json.dumps(BODY)}},
        "response": {"status": 200, "content": {"text": STREAM}}}]}},
    "mlflow": {"info": {}, "data": {"spans": [{"attributes": {
        "mlflow.spanType": '"CHAT_MODEL"', "mlflow.spanInputs": json.dumps(BODY),
        "mlflow.spanOutputs": json.dumps(ANSWER)}}]}},
    "vercel": otlp({"ai.prompt.messages": json.dumps(MESSAGES), "ai.response.text": SAID, **PLAIN}),
    "elasticsearch": {"took": 1, "hits": {"total": {"value": 1}, "hits": [
        {"_index": "x", "_id": "1", "_source": {"request": BODY, "response": ANSWER}}]}},
    "openpipe": {"input": BODY, "output": ANSWER, "tags": {"route": "chat"}},
    "gemini": {"request": GEMINI, "response": WRITTEN},
    "vertex": {**SAMPLE, "full_request": json.dumps(GEMINI), "full_response": json.dumps(WRITTEN)},
    "vertex with a stream": {**SAMPLE, "api_method": "streamGenerateContent", "full_request": GEMINI,
                             "full_response": [candidates(SAID[:9]), candidates(SAID[9:], candidatesTokenCount=17)]},
    "vertex with claude": {**SAMPLE, "api_method": "rawPredict", "full_request": {
        **BODY, "system": "Be short.", "messages": MESSAGES[1:]}, "full_response": {
        "type": "message", "content": [{"type": "text", "text": SAID}], "usage": {"output_tokens": 17}}},
    "api management": {"CorrelationId": "c", "Url": "https://x/chat/completions", "ResponseCode": 200,
                       "BackendRequestBody": json.dumps(BODY), "BackendResponseBody": STREAM},
    "api management's diagnostics": {"records": [{"category": "GatewayLogs", "correlationId": "c", "properties": {
        "url": "https://x/chat/completions", "responseCode": 200, "requestBody": json.dumps(BODY),
        "responseBody": json.dumps(ANSWER)}}]},
    "cloudflare": {"Gateway": "g", "Endpoint": "chat/completions", "RequestBody": BODY, "ResponseBody": STREAM},
    "kong": {**KONG, "ai": {"proxy": {"payload": {"request": json.dumps(BODY), "response": STREAM}}}},
    "kong 3.7": {**KONG, "ai": {"payload": {"request": json.dumps(BODY)}, "ai-proxy": {
        "payload": {"response": json.dumps(ANSWER)}, "usage": {"completion_token": 17}}}},
    "sagemaker": {"captureData": {"endpointInput": {"data": json.dumps(BODY), "encoding": "JSON"},
                                  "endpointOutput": {"data": json.dumps(ANSWER), "encoding": "JSON"}}},
    "ollama": {"request": OLLAMA, "response": {**LAST, "message": {"role": "assistant", "content": SAID}}},
    "ollama with lines": {"request": OLLAMA, "response": "\n".join(map(json.dumps, [*PIECES, LAST]))},
    "braintrust": {"id": "b", "root_span_id": "t", "span_attributes": {"type": "llm"}, "input": MESSAGES,
                   "output": ANSWER["choices"], "metrics": {"completion_tokens": 17},
                   "metadata": {"model": "m", "max_tokens": 50, "temperature": 0.5}},
    "opik": {**LANGFUSE, "type": "llm", "input": BODY, "output": ANSWER},
    "logfire": {"trace_id": "t", "span_id": "s", "start_timestamp": "2026-11-01T10:00:00Z", "attributes": {
        "gen_ai.system": "openai", "request_data": BODY, "response_data": {**ANSWER["choices"][0], "usage": USAGE}}},
    "phoenix data frame": {f"attributes.{key}": value if isinstance(value, str) else str(value) for key, value in {
        "openinference.span.kind": "LLM",
        "llm.invocation_parameters": json.dumps({"max_tokens": 50, "temperature": 0.5}),
        "llm.input_messages": [{f"message.{key}": each[key] for key in each} for each in MESSAGES],
        "llm.output_messages": [{"message.role": "assistant", "message.content": SAID}],
        "llm.token_count.completion": "17"}.items()},
    "cohere": {"request": {"message": ASKED, "preamble": "Be short.", "max_tokens": 50, "temperature": 0.5},
               "response": {"text": SAID, "generation_id": "g", "meta": {"tokens": {"output_tokens": 17}}}},
    "ollama's generate": {"request": {**OLLAMA, "messages": None, "prompt": ASKED, "system": "Be short."},
                          "response": {**LAST, "message": None, "response": SAID}},
    "cloudwatch": {"events": [
        {"timestamp": 1, "eventId": "1", "message": json.dumps({"request": BODY, "response": ANSWER})}]},
}  # fmt: skip


def load(text: str, name: str = "log.jsonl", options: str = "") -> Workload:
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(text, encoding="utf-8", newline="")
        return load_workload(f"log:{path}{options}")


def read(row: Any, **how: Any) -> tuple[Any, ...]:
    (prompt,) = load(json.dumps(row, **how)).prompts
    said = prompt.recorded
    messages = [{key: each[key] for key in ("role", "content")} for each in prompt.messages]
    return messages, prompt.max_tokens, said.temperature, said.answer, said.num_tokens, said.reasoned, said.called_tools


def test_requests_of_a_gateway_and_of_a_batch_are_read_without_what_their_logs_leave_out() -> None:
    said = {"role": "assistant", "content": SAID}
    entry = {"CorrelationId": "c", "RequestMessages": json.dumps(MESSAGES), "ResponseMessages": json.dumps([said])}
    found = read({**entry, "CompletionTokens": 17})
    assert (found[0], *found[3:5]) == (MESSAGES, SAID, 17)
    with pytest.raises(InvalidSetup, match="sequence number"):
        load(json.dumps({**entry, "RequestMessages": entry["RequestMessages"][:40]}))
    assert read({"custom_id": "a", "params": BODY})[:4] == (MESSAGES, 50, 0.5, None)


TGI = {"inputs": ASKED, "parameters": {"max_new_tokens": 50, "temperature": 0.5}}
SGLANG = {"text": ASKED, "sampling_params": {"max_new_tokens": 50, "temperature": 0.5}}
SPOKEN = {"text": SAID, "output_ids": [1], "meta_info": {"completion_tokens": 17}}
TITAN = {"inputText": ASKED, "textGenerationConfig": {"maxTokenCount": 50, "temperature": 0.5}}
LINE = "[2026-11-01 10:00:0{} TP0] {}: obj=GenerateReqInput(rid='a', text={!r}, sampling_params={{'temperature': 0.5, "
LINE += "'max_new_tokens': 50}})"
OUT = f", out={{'text': {SAID!r}, 'meta_info': {{'completion_tokens': 17}}}}"


@pytest.mark.parametrize("log", [
    {"request": TGI, "response": {"generated_text": SAID, "details": {"generated_tokens": 17}}},
    {"request": TGI, "response": [{"generated_text": SAID, "details": {"generated_tokens": 17}}]},
    {"request": TGI, "response": sse([{"token": {"text": "B"}, "generated_text": None},
     {"token": {"text": "e"}, "generated_text": SAID, "details": {"generated_tokens": 17}}], gap=1)},
    {"request": SGLANG, "response": json.dumps(SPOKEN)},
    {"request": {"prompt": ASKED, "max_gen_len": 50, "temperature": 0.5},
     "response": {"generation": SAID, "generation_token_count": 17, "stop_reason": "stop"}},
    {"request": TITAN, "response": {"inputTextTokenCount": 2, "results": [{"outputText": SAID, "tokenCount": 17}]}},
    [{"event": "request.received", "rid": "a", "obj": {**SGLANG, "text": None, "input_ids": [5]}},
     {"event": "request.finished", "rid": "a", "obj": SGLANG, "out": SPOKEN}],
    "\n".join((LINE.format(0, "Receive", ASKED), "[2026-11-01 10:00:01] P.", LINE.format(2, "Finish", ASKED) + OUT)),
])  # fmt: skip
def test_requests_with_a_text_are_read(log: Any) -> None:
    (prompt,) = load(log if isinstance(log, str) else json.dumps(log)).prompts
    said = prompt.recorded
    assert (prompt.text, prompt.max_tokens, said.temperature, said.answer, said.num_tokens) == (
        ASKED,
        50,
        0.5,
        SAID,
        17,
    )


def test_what_gemini_thought_and_called_is_no_answer() -> None:
    parts = [{"text": "hm", "thought": True}, {"functionCall": {"name": "f", "args": {}}}, {"text": SAID}]
    answer = {"candidates": [{"content": {"role": "model", "parts": parts}}],
              "usageMetadata": {"candidatesTokenCount": 17, "thoughtsTokenCount": 3}}  # fmt: skip
    assert read({"request": GEMINI, "response": answer}) == (MESSAGES, 50, 0.5, SAID, 20, True, True)


@pytest.mark.parametrize("order", [1, -1])
def test_a_stream_of_gemini_with_a_file_in_it_has_no_text_as_its_answer(order: int) -> None:
    file = {"candidates": [{"content": {"role": "model", "parts": [{"inlineData": {"data": "eA=="}}]}}]}
    assert read({"request": GEMINI, "response": [candidates("a"), file][::order]})[3] is None


def test_a_conversation_under_items_is_read_and_a_cut_stream_has_no_answer() -> None:
    (prompt,) = load(json.dumps({"items": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]})).prompts
    assert (prompt.messages, prompt.recorded.answer) == (({"role": "user", "content": "q"},), "a")
    assert read({"request": OLLAMA, "response": "\n".join(map(json.dumps, PIECES))})[3:5] == (None, None)


def test_entries_of_one_request_are_joined_by_their_numbers() -> None:
    said = [{"role": "assistant", "content": SAID}]
    asked = json.dumps(MESSAGES)
    parts = [{"ResponseMessages": json.dumps(said), "CompletionTokens": 17}, {"RequestMessages": asked[30:]},
             {"RequestMessages": asked[:30]}]  # fmt: skip
    rows = [{"CorrelationId": "c", "SequenceNumber": 2 - at, **part} for at, part in enumerate(parts)]
    (prompt,) = load("".join(json.dumps(row) + "\n" for row in rows)).prompts
    assert ([*prompt.messages], prompt.recorded.answer, prompt.recorded.num_tokens) == (MESSAGES, SAID, 17)


ENTRIES = [
    {"SequenceNumber": 0, "CompletionTokens": 17},
    {"SequenceNumber": 1, "RequestMessages": [MESSAGES[0], {"role": "user", "content": ASKED[:4]}]},
    {"SequenceNumber": 2, "RequestMessages": [{"role": "user", "content": ASKED[4:]}]},
    *(
        {"SequenceNumber": 3 + n, "ResponseMessages": json.dumps([{"role": "assistant", "content": SAID[4 * n :][:4]}])}
        for n in range(-(-len(SAID) // 4))
    ),
]
"""Of API Management: tokens, the question in two entries, the answer in several, each with messages of its own."""


@pytest.mark.parametrize(
    ("without", "answer"), [((), SAID), ((0,), SAID), ((4,), None), ((2,), ""), ((1,), ""), ((0, 1), "")]
)
def test_messages_cut_into_entries_are_joined_and_what_misses_an_entry_is_not_made_up(
    without: tuple[int, ...], answer: str | None
) -> None:
    kept = [{"CorrelationId": c, **each} for each in ENTRIES for c in "ab" if each["SequenceNumber"] not in without]
    text = "".join(json.dumps(row) + "\n" for row in (*kept[::-1], kept[-1]))
    if answer == "":
        with pytest.raises(InvalidSetup, match="part of a request only"):
            load(text)
        return
    found = [([*each.messages], each.recorded.answer) for each in load(text).prompts]
    assert found == [(MESSAGES, answer)] * 2


@pytest.mark.parametrize("text", [{}, None])
def test_a_part_of_a_message_that_is_no_text_is_no_question(text: Any) -> None:
    key = "attributes.llm.input_messages.1.message.contents.0.message_content.text"
    rest = {"attributes.openinference.span.kind": "LLM", "attributes.llm.input_messages.1.message.role": "user"}
    with pytest.raises(InvalidSetup):
        load(json.dumps({**rest, key.replace(".text", ".type"): "text", key: text}))


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_holds_the_same_request_and_answer(shape: str) -> None:
    row = SHAPES[shape]
    assert read(row) == (MESSAGES, 50, 0.5, SAID, 17, False, False)
    assert read(row, indent=2) == read([row]) == read(row)


@pytest.mark.parametrize("column", ["answer", "response", "completion", "output", "generated_text"])
def test_a_csv_file_of_prompts_and_answers_is_read(column: str) -> None:
    text = f'prompt,{column},max_tokens,route\n"Why, ""then""?","It, is.\nSo.",7,a\nb,,,\n'
    first, second = load(text, "own.csv").prompts
    assert (first.text, first.max_tokens) == ('Why, "then"?', 7)
    assert (first.recorded.answer, first.recorded.route) == ("It, is.\nSo.", "a")
    assert (second.text, second.max_tokens, second.recorded.answer) == ("b", 128, None)


def test_a_file_of_tab_separated_columns_is_read() -> None:
    (prompt,) = load("prompt\tresponse\nWhy, then?\tSo.\n", "own.tsv").prompts
    assert (prompt.text, prompt.recorded.answer) == ("Why, then?", "So.")


@pytest.mark.parametrize(
    ("begin", "what"),
    [(b"PAR1\x15", "a Parquet file"), (b"\x28\xb5\x2f\xfd\x04", "packed with zstd"),
     (b"PK\x03\x04\x14", "a ZIP archive")],
)  # fmt: skip
def test_a_file_that_holds_no_text_is_named_once(begin: bytes, what: str, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_bytes(begin + b"\n\xff\n" * 40)
    with pytest.raises(InvalidSetup) as caught:
        load_workload(f"log:{tmp_path / 'log.jsonl'}")
    (finding,) = caught.value.findings
    assert what in finding.message


def test_chats_of_open_webui_are_conversations() -> None:
    row = {"id": "c", "chat": {"models": ["m"], "messages": [*MESSAGES, {"role": "assistant", "content": SAID}]}}
    (prompt,) = load(json.dumps([row]), "chats.json").prompts
    assert ([*prompt.messages], prompt.recorded.answer) == (MESSAGES, SAID)


def test_a_page_key_next_to_a_request_is_the_users_own() -> None:
    rows = [{"prompt": "a", "items": [{"prompt": "x"}]}, {"request": BODY, "data": [{"request": BODY}] * 3}]
    assert len(load("".join(json.dumps(row) + "\n" for row in rows)).prompts) == 2


@pytest.mark.parametrize(
    ("row", "what"),
    [("a, b,c", "3 cells where the header has 2"), ("a", "1 cells where"), ('"a', "a quote out of place")],
)
def test_a_csv_row_that_cannot_be_split_is_named(row: str, what: str) -> None:
    with pytest.raises(InvalidSetup, match=rf"own\.csv:2 has {what}"):
        load(f"prompt,response\n{row}\n", "own.csv")


TEXT = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=30)


@settings(max_examples=tries(120))
@given(
    text=TEXT,
    thought=TEXT | st.none(),
    arguments=TEXT | st.none(),
    size=st.integers(1, 9),
    newline=st.sampled_from(["\n", "\r\n", "\r"]),
    gap=st.integers(1, 2),
    kept=st.floats(0, 1),
)
def test_a_stream_is_its_answer_or_none_when_cut(
    text: str, thought: str | None, arguments: str | None, size: int, newline: str, gap: int, kept: float
) -> None:
    deltas = chunks(text, size)
    for place, each in enumerate(thought or ""):
        deltas.insert(1 + place, chunk({"reasoning_content": each}))
    for each in (arguments and [arguments[:size], arguments[size:]]) or ():
        call = {"index": 0, "function": {"arguments": each}}
        deltas.insert(-2, chunk({"tool_calls": [call]}))
    whole = sse([*deltas, "[DONE]"], newline, gap)
    logged = find_logged({"request": BODY, "response": whole})
    assert logged is not None
    assert logged.response["choices"][0]["message"]["content"] == text
    assert logged.response["choices"][0]["message"].get("reasoning_content") == thought
    if arguments:
        assert logged.response["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == arguments
    (prompt,) = load(json.dumps({"request": BODY, "response": whole[: int(kept * len(whole))]})).prompts
    assert prompt.recorded.answer in (None, text) or not whole[: int(kept * len(whole))].startswith("data: {")


def test_streams_of_other_apis_and_errors() -> None:
    done = {"type": "response.completed", "response": {"output": [
        {"type": "reasoning"}, {"type": "message", "content": [{"type": "output_text", "text": "b"}]}]}}  # fmt: skip
    events = [{"type": "response.created", "response": {}}, {"type": "response.output_text.delta", "delta": "b"}]
    message = [
        {"type": "message_start", "message": {"usage": {"input_tokens": 3}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "b"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}},
    ]
    text = [{"choices": [{"index": 0, "text": each, "token_ids": [ord(each)]}]} for each in "ab"]
    streams = [sse([*events, done]), sse([*message, {"type": "message_stop"}]), sse([*text, "[DONE]"]),
               sse(events), sse(message), sse(text), sse([*text, {"error": {"message": "m"}}, "[DONE]"])]  # fmt: skip
    rows = [{"request": {**BODY, "n": n}, "response": each} for n, each in enumerate(streams)]
    workload = load("".join(json.dumps(row) + "\n" for row in rows))
    said = [prompt.recorded for prompt in workload.prompts]
    assert [each.answer for each in said] == ["b", "b", "ab", None, None, None]
    assert [each.reasoned for each in said[:3]] == [True, True, False]
    assert (said[1].num_tokens, said[2].token_ids) == (5, (97, 98))
    assert "1 of 7 rows failed: line 7" in workload.description


def test_answers_that_look_like_json_or_streams_stay_text() -> None:
    for text in ('{"name": "x"}', "[1, 2]", "data: the new oil", "data: none\n\ndata: more", ": " * 99):
        assert read({"request": BODY, "response": text})[3] == text


BATCH = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": BODY}
OUTPUT = {"id": "b", "custom_id": "a", "response": {"status_code": 200, "body": ANSWER}, "error": None}


def test_a_batch_input_and_output_in_one_file_are_joined() -> None:
    failed = [{**BATCH, "custom_id": "f"}, {**OUTPUT, "custom_id": "f", "response": None, "error": {"code": "x"}}]
    workload = load("".join(json.dumps(row) + "\n" for row in (OUTPUT, BATCH, *failed, {**OUTPUT, "custom_id": "z"})))
    (prompt,) = workload.prompts
    assert (prompt.id, prompt.recorded.answer, prompt.recorded.num_tokens) == ("a", SAID, 17)
    assert "1 of 5 rows failed: line 3; 1 of 5 rows without a request: line 5" in workload.description


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (OUTPUT, "a batch's output, which holds answers without their requests"),
        ({**SPEND, "proxy_server_request": "{}", "response": "{}"}, "LiteLLM logged without its messages"),
        ({**LANGFUSE, "input": None}, "Langfuse exported without its input"),
        ({"name": "llm_request", "attributes": PLAIN}, "a span without its messages"),
        (SAMPLE, "a row of a Vertex AI log without its request"),
        (
            {"event": "request.finished", "rid": "a", "obj": {"sampling_params": {}}},
            "SGLang's log, which holds no prompt",
        ),
        (
            {"event": "request.received", "rid": "a", "obj": {**SGLANG, "text": "a" * 1024 + "..." + "b" * 1024}},
            "a part of it",
        ),
        ({"custom_id": "a", "result": {"type": "succeeded", "message": {}}}, "answers without their requests"),
        ({**KONG, "ai": {"proxy": {"usage": {}}}}, "Kong logged without its payload"),
        ({"CorrelationId": "c", "RequestBody": json.dumps(BODY)[:40]}, "whose body API Management cut"),
        ({"captureData": {"endpointInput": {"data": "e30=", "encoding": "BASE64"}}}, "whose data is no JSON text"),
        ({"instruction": "Translate.", "input": "Hello", "output": "Hallo"}, "an instruction and its input apart"),
    ],
)
def test_a_log_without_its_requests_is_refused_with_what_is_missing(row: Any, words: str) -> None:
    with pytest.raises(InvalidSetup) as caught:
        load(json.dumps(row) + "\n")
    (finding,) = caught.value.findings
    assert words in finding.message
    assert finding.code == "no-request"
    assert finding.fix


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({**SPEND, "proxy_server_request": {"litellm_truncated": True}}, "1 of 1 rows cut by LiteLLM"),
        ({**SPEND, "messages": [{"role": "user", "content": "redacted-by-litellm"}]}, "1 of 1 rows redacted"),
        ({"attributes": {**GENAI, "gen_ai.operation.name": "execute_tool"}}, "1 of 1 rows no completion"),
        ({"attributes": {"http.method": "GET"}, "name": "GET", "spanId": "s"}, "1 of 1 rows no completion"),
        ({"attributes": GENAI, "status": {"code": 2}}, "1 of 1 rows failed"),
        ({"Gateway": "g", "RequestBody": {"type": "encrypted", "data": "eA=="}}, "1 of 1 rows encrypted: decrypt"),
        ({"attributes": {**GENAI, "gen_ai.input.messages": [{"role": "user", "parts": [{"type": "blob"}]}]}},
         "1 of 1 rows with images or files that are not in the log"),
    ],
)  # fmt: skip
def test_what_is_not_what_was_sent_is_passed_over(row: Any, words: str) -> None:
    with pytest.raises(InvalidSetup) as caught:
        load(json.dumps(row) + "\n")
    assert words in str(caught.value)


@pytest.mark.parametrize(("asked", "answered"), [
    ({"custom_id": "a", "params": BODY}, {"custom_id": "a", "result": {"message": ANSWER["choices"][0]["message"]}}),
    ({"key": "a", "request": GEMINI}, {"key": "a", "response": WRITTEN}),
])  # fmt: skip
def test_the_files_of_a_batch_are_joined(asked: Any, answered: Any) -> None:
    (prompt,) = load(json.dumps([answered, asked])).prompts
    assert (prompt.id, [*prompt.messages], prompt.recorded.answer) == ("a", MESSAGES, SAID)


@pytest.mark.parametrize("row", [
    {"attributes": {**GENAI, "gen_ai.conversation.id": "c"}, "trace_id": "t"},
    {"run_type": "llm", "inputs": BODY, "session_id": "a project", "extra": {"metadata": {"thread_id": "c"}}},
    {"run_type": "llm", "inputs": BODY, "session_id": "a project", "trace_id": "c"},
])  # fmt: skip
def test_the_conversation_is_where_a_format_has_it(row: Any) -> None:
    assert load(json.dumps(row)).prompts[0].recorded.conversation == "c"


def test_conversations_of_chat_ui_are_read() -> None:
    said = [{"from": "system", "content": "Be short."}, {"from": "user", "content": ASKED}]
    (prompt,) = load(
        json.dumps({"_id": {"$oid": "1"}, "messages": [*said, {"from": "assistant", "content": SAID}]})
    ).prompts
    assert ([*prompt.messages], prompt.recorded.answer) == (MESSAGES, SAID)


@pytest.mark.parametrize("pack", [bz2.compress, lzma.compress, lambda text: text.decode().encode("utf-16")])
def test_packed_files_and_utf_16_are_read(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_bytes(pack(b"prompt;response\r\nWhy, then?;So.\r\n"))
    (prompt,) = load_workload(f"log:{tmp_path / 'log.csv'}").prompts
    assert (prompt.text, prompt.recorded.answer) == ("Why, then?", "So.")


def test_conversations_of_wildchat_are_read_without_its_columns() -> None:
    turns = [{"role": role, "content": role, "toxic": False, "hashed_ip": "x"} for role in ("user", "assistant")] * 2
    row = {"conversation_hash": "h", "model": "m", "timestamp": "2023-04-09T00:00:00", "conversation": turns}
    prompts = load(json.dumps(row), options="#turns=all").prompts
    assert [len(prompt.messages) for prompt in prompts] == [1, 3]
    assert (prompts[0].messages, prompts[0].recorded.answer) == (({"role": "user", "content": "user"},), "assistant")
    assert prompts[0].arrival_s is None


def test_tool_calls_of_spans_become_chat_messages() -> None:
    call = {"type": "tool_call", "id": "1", "name": "f", "arguments": {"a.b": 1}}
    asked = [parts("user", "q"), {"role": "assistant", "parts": [call]},
             {"role": "tool", "parts": [{"type": "tool_call_response", "id": "1", "response": {"c": 2}}]}]  # fmt: skip
    said = [{"role": "assistant", "parts": [{"type": "reasoning", "content": "r"}, call]}]
    row = {"attributes": {"gen_ai.input.messages": asked, "gen_ai.output.messages": said}}
    (prompt,) = load(json.dumps(row)).prompts
    assert prompt.messages[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a.b": 1}'}
    assert prompt.messages[2] == {"role": "tool", "tool_call_id": "1", "content": '{"c": 2}'}
    assert prompt.recorded.reasoned
    assert prompt.recorded.called_tools


def engine_log(release: str, prompt: str, said: str) -> str:
    head = "(APIServer pid=7) {} 02-13 11:33:{} [logger.py:49] "
    params = "SamplingParams(n=1, temperature=0.5, stop=[], max_tokens=50, min_tokens=0)"
    if release < "0.12":
        asked = f"Received request cmpl-a-0: prompt: {prompt!r}, params: {params}, prompt_token_ids: [5, 7], "
        asked += "prompt_embeds shape: None, lora_request: None."
        done = f"Generated response cmpl-a: output: {said!r}, output_token_ids: [8, 9], finish_reason: stop"
        return "\n".join((head.format("INFO", 33) + asked, head.format("INFO", 35) + done, ""))
    lines = [
        (
            "DEBUG",
            f"Request chatcmpl-a details: prompt: {prompt!r}, prompt_token_ids: [5, 7], prompt_embeds shape: None.",
        ),
        ("INFO", f"Received request chatcmpl-a: params: {params}, lora_request: None."),
        ("DEBUG", "Generated response chatcmpl-a details: output_token_ids: (8, 9)"),
        ("INFO", f"Generated response chatcmpl-a: output: {said!r}, finish_reason: stop"),
    ]
    return "\n".join(head.format(level, 33) + line for level, line in lines) + "\n"


@settings(max_examples=tries(90))
@given(prompt=TEXT, said=TEXT, release=st.sampled_from(["0.11", "0.33"]), gone=st.booleans())
def test_vllms_log_is_read(prompt: str, said: str, release: str, gone: bool) -> None:
    text = "INFO 02-13 11:33:30 [api_server.py:1] vLLM API server version\n" + engine_log(release, prompt, said)
    if gone:
        text = "".join(line for line in text.splitlines(keepends=True) if "Generated" not in line)
    (read_back,) = load(text, "vllm.log").prompts
    assert (read_back.text, read_back.max_tokens, read_back.recorded.temperature) == (prompt, 50, 0.5)
    assert read_back.recorded.prompt_token_ids == (5, 7)
    answer = (None, ()) if gone else (said, (8, 9))
    assert (read_back.recorded.answer, read_back.recorded.token_ids) == answer


def test_vllms_log_without_prompts_or_with_cut_ones_is_refused() -> None:
    lines = [line for line in engine_log("0.33", "p", "s").splitlines() if " DEBUG " not in line]
    with pytest.raises(InvalidSetup, match="vLLM's log, which holds no prompts"):
        load("\n".join(lines), "vllm.log")
    with pytest.raises(InvalidSetup, match="1 of 1 rows cut by --max-log-len"):
        load("INFO 02-13 11:33:30 args: {'max_log_len': 4}\n" + engine_log("0.33", "What", "s"), "vllm.log")


@pytest.mark.parametrize("text", ['{"attributes":' + '{"a":' * 900 + "1" + "}" * 901,
                                  json.dumps({"request": BODY, "response": "[" * 99_999})])  # fmt: skip
def test_deep_rows_are_no_traceback(text: str) -> None:
    try:
        assert load(text).prompts
    except InvalidSetup as error:
        assert "log.jsonl" in str(error)  # noqa: PT017


def test_a_csv_file_with_semicolons_is_read_and_one_with_a_column_twice_refused() -> None:
    assert load("prompt;response\na;b, c\n", "own.csv").prompts[0].recorded.answer == "b, c"
    with pytest.raises(InvalidSetup, match="the column 'prompt' more than once"):
        load("prompt,prompt\na,b\n", "own.csv")


def test_prompts_about_logs_do_not_make_a_file_a_log() -> None:
    text = "INFO 02-13 11:33:33 [x] Received request a: prompt: 'x', params: S(), lora_request: None.\n" * 3
    for rows in (
        json.dumps([{"prompt": text}]),
        json.dumps([{"prompt": text}], indent=1),
        json.dumps({"prompt": text}),
    ):
        assert [prompt.text for prompt in load(rows).prompts] == [text]


SMALL = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "{}", "[", "data: {", "²", "x"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["role", "content", "0", "a.b"]), inner)
    ),
    max_leaves=3,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, each in below for found in ((*path, key), *places(each, (*path, key)))]


def put(value: Any, path: tuple[Any, ...], new: Callable[[Any], Any]) -> Any:
    if not path:
        return new(value)
    copied = value.copy()
    copied[path[0]] = put(copied[path[0]], path[1:], new)
    return copied


def get(value: Any, path: tuple[Any, ...]) -> Any:
    return get(value[path[0]], path[1:]) if path else value


@pytest.mark.parametrize("shape", [*SHAPES, "batch output"])
@settings(max_examples=tries(30))
@given(data=st.data())
def test_no_damage_to_a_row_is_a_traceback(shape: str, data: st.DataObject) -> None:
    row = {**SHAPES, "batch output": OUTPUT}[shape]
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(places(row)))
        new = data.draw(SMALL | st.just("cut"))
        row = put(row, path, lambda old, new=new: str(old)[:9] if new == "cut" else new)  # type: ignore[misc]
    try:
        workload = load(json.dumps(row) + "\n")
    except InvalidSetup:
        return  # said, as it should be
    assert all(prompt.text or prompt.messages for prompt in workload.prompts)


@pytest.mark.parametrize("shape", SHAPES)
def test_bad_rows_are_counted_and_stop_no_other(shape: str) -> None:
    row, good = SHAPES[shape], json.dumps(SHAPES[shape])
    changed = {json.dumps(put(row, path, lambda _, new=new: new)) for path in places(row) for new in (None, "x")}  # type: ignore[misc]
    lines = [good, good[: len(good) // 2], "{}", *changed, good]
    workload = load("\n".join(lines))
    assert sum([*prompt.messages] == MESSAGES for prompt in workload.prompts) >= 2
    left_out = sum(map(int, re.findall(r"(\d+) of \d+ rows", workload.left_out)))
    texts = shape in ("elasticsearch", "cloudwatch")  # in which a line may be any text, such as "x"
    assert len(workload.prompts) + left_out >= len(lines) - texts


@pytest.mark.parametrize(
    "shape", [shape for shape, row in SHAPES.items() if json.dumps(row).count(f'"content": "{ASKED}"') == 1]
)
@pytest.mark.parametrize("content", [None, 5, True, {}, [], [None], {"x": 1}], ids=str)
def test_what_no_user_can_have_asked_is_no_request(shape: str, content: Any) -> None:
    row = SHAPES[shape]
    (path,) = (path for path in places(row) if path[-1] == "content" and get(row, path) == ASKED)
    with pytest.raises(InvalidSetup):
        load(json.dumps(put(row, path, lambda _: content)))


def test_every_format_names_its_source() -> None:
    assert all(each.source and each.name for each in (*FORMATS, *WRAPPERS))
    assert all(bool(each.lacks) == bool(each.fix) for each in FORMATS)
