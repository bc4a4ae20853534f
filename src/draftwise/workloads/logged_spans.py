"""Reads tracing spans into requests: OpenTelemetry's GenAI conventions, OpenInference and OpenLLMetry."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from draftwise.workloads.conversation import from_json_text

Row = Mapping[str, Any]

_ATTRIBUTES = ("attributes", "SpanAttributes", "span_attributes", "tags")
"""OTLP, the SDKs' console exporters and Phoenix; ClickHouse's exporter; Jaeger's JSON."""
_VALUES = ("stringValue", "intValue", "doubleValue", "boolValue", "value")
_OPERATIONS = ("chat", "text_completion", "completion", "generate_content")
"""`gen_ai.operation.name` of requests to a model; an `invoke_agent` span repeats what its children hold."""
_EVENTS = {f"gen_ai.{role}.message": role for role in ("system", "user", "assistant", "tool")}
"""Messages as events of a span, or as log records, in the conventions up to 1.36."""
_CHOICE = "gen_ai.choice"
_OPAQUE = ("arguments", "parameters", "parts", "content", "input", "output")
_DEEPEST = 40


def read_span(row: Row) -> Row | None:
    """Return a span as a request: `body`, `response`, `kind`, `id`, `time` and `failed`; None for another row.

    `body` is None if the span holds no messages, which instrumentations leave out by default.
    """
    attributes = _attributes_of(row)
    if attributes is None:
        return None
    for event in _list(row.get("events")):
        if str(event.get("name")).startswith(("gen_ai.client.inference", "gen_ai.content.")):
            attributes = {**attributes, **(_attributes_of(event) or {})}
    nested = _lists(_nest(attributes))
    tree = nested if isinstance(nested, Mapping) else {}
    context = row.get("context")
    row = {**(context if isinstance(context, Mapping) else {}), **row}
    body, output = _genai(tree, row) if {"gen_ai", "ai"} & tree.keys() else _openinference(tree)
    if body is None:
        body, output = _openinference(tree)
    usage = {
        "completion_tokens": _first(tree, "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens",
                                    "llm.token_count.completion"),
        "prompt_tokens": _first(tree, "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens",
                                "llm.token_count.prompt"),
    }  # fmt: skip
    response = dict(output) if isinstance(output, Mapping) else {"choices": [{"text": output}]} if output else {}
    if any(value is not None for value in usage.values()):
        response["usage"] = {key: _number(value) for key, value in usage.items() if value is not None}
    return {
        "body": body,
        "response": response,
        "kind": _kind(tree),
        "session": _first(tree, "gen_ai.conversation.id", "session.id", "langfuse.session.id"),
        "id": _first(row, "span_id", "spanId", "spanID", "SpanId"),
        "time": _first(
            row,
            "startTimeUnixNano",
            "start_time",
            "startTime",
            "start_timestamp",
            "Timestamp",
            "timeUnixNano",
            "timestamp",
        ),
        "failed": _has_failed(row),
    }


def is_message(row: Any) -> bool:
    """Return whether a row is a log record with one message of a request."""
    return isinstance(row, Mapping) and _event_name(row) in {*_EVENTS, _CHOICE}


def join_messages(rows: Sequence[Any]) -> list[Any]:
    """Return the rows with the messages of each request merged into its first row, as a span with events, and None in
    place of the others. Log records of a request share their span."""
    spans: dict[tuple[Any, Any], dict[str, Any]] = {}
    joined = list(rows)
    for place, row in enumerate(rows):
        if not is_message(row):
            continue
        key = _first(row, "traceId", "trace_id"), _first(row, "spanId", "span_id")
        event = {"name": _event_name(row), "attributes": _any_value(row.get("body"))}
        if key in spans:
            spans[key]["events"].append(event)
            joined[place] = None
        else:
            attributes = {"gen_ai.operation.name": "chat", **(_attributes_of(row) or {})}
            time = _first(row, "timeUnixNano", "timestamp")
            spans[key] = {"spanId": key[1], "startTime": time, "attributes": attributes, "events": [event]}
            joined[place] = spans[key]
    return joined


def _event_name(row: Row) -> Any:
    return _first(row, "eventName", "event_name") or (_attributes_of(row) or {}).get("event.name")


def _attributes_of(row: Row) -> Row | None:
    for key in _ATTRIBUTES:
        given = from_json_text(row.get(key))
        if isinstance(given, Mapping):
            return given
        if isinstance(given, list) and all(isinstance(each, Mapping) and "key" in each for each in given):
            return {str(each["key"]): _any_value(each.get("value")) for each in given}
    own = {key.removeprefix("attributes."): value for key, value in row.items() if _is_attribute(key)}
    return own or None


def _is_attribute(key: str) -> bool:
    return key.startswith(("attributes.", "gen_ai.", "llm.", "openinference."))


def _any_value(value: Any, depth: int = 0) -> Any:
    """Return what an OTLP AnyValue holds (opentelemetry-proto, common.proto); any other value as it is."""
    if not isinstance(value, Mapping) or depth > _DEEPEST:
        return value
    for key in _VALUES:
        if key in value:
            return value[key]
    if isinstance(items := value.get("arrayValue"), Mapping):
        return [_any_value(each, depth + 1) for each in _list(items.get("values"))]
    if isinstance(items := value.get("kvlistValue"), Mapping):
        return {str(each.get("key")): _any_value(each.get("value"), depth + 1) for each in _list(items.get("values"))}
    return value


def _nest(value: Any, depth: int = 0) -> Any:
    """Return attributes as a tree: `a.0.b` becomes `{"a": {"0": {"b": ...}}}`, and trees stay what they are."""
    if depth > _DEEPEST:
        return value
    if isinstance(value, list):
        return [_nest(each, depth + 1) for each in value]
    if not isinstance(value, Mapping):
        return value
    tree: dict[str, Any] = {}
    for key, given in value.items():
        *above, last = str(key).split(".")
        node = tree
        for each in above:
            below = node.get(each)
            if not isinstance(below, dict):
                below = node[each] = {}
            node = below
        leaf = given if last in _OPAQUE and depth else _nest(given, depth + 1)
        if isinstance(leaf, dict) and isinstance(node.get(last), dict):
            node[last] |= leaf
        elif not isinstance(node.get(last), dict):
            node[last] = leaf
    return tree


def _lists(tree: Any, depth: int = 0) -> Any:
    """Return a tree with lists where keys are numbers."""
    if isinstance(tree, list) and depth <= _DEEPEST:
        return [_lists(each, depth + 1) for each in tree]
    if not isinstance(tree, dict) or depth > _DEEPEST:
        return tree
    tree = {key: _lists(value, depth + 1) for key, value in tree.items()}
    if tree and all(key.isdecimal() and len(key) < 9 for key in tree):
        return [tree[key] for key in sorted(tree, key=int)]
    return tree


def _first(tree: Any, *paths: str) -> Any:
    for path in paths:
        node = tree
        for key in path.split("."):
            node = node.get(key) if isinstance(node, Mapping) else None
        if node is not None:
            return node
    return None


def _list(value: Any) -> list[Any]:
    value = from_json_text(value)
    if isinstance(value, str) and value.startswith("[{'"):  # a data frame that pandas wrote as CSV
        try:
            value = _lists(_nest(ast.literal_eval(value)))
        except (TypeError, ValueError, SyntaxError, RecursionError, MemoryError):
            return []
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 16 else value


def _kind(tree: Row) -> str:
    kind = _first(tree, "openinference.span.kind")
    if kind is not None:
        return "chat" if kind == "LLM" else str(kind)
    operation = _first(tree, "gen_ai.operation.name")
    if operation is not None:
        return "chat" if operation in _OPERATIONS else str(operation)
    if (kind := _first(tree, "mlflow.spanType")) is not None:
        return "chat" if str(kind).strip('"') in ("CHAT_MODEL", "LLM") else str(kind)
    return "chat" if {"gen_ai", "llm", "ai"} & tree.keys() else "other"


def _has_failed(row: Row) -> bool:
    codes = (_first(row, "status.code"), _first(row, "status.status_code"), row.get("status_code"))
    return any(str(code) in ("2", "ERROR", "STATUS_CODE_ERROR", "StatusCode.ERROR") for code in codes)


def _genai(tree: Row, row: Row) -> tuple[Row | None, Any]:
    """Read GenAI's messages: the conventions of today (parts), those with events, and OpenLLMetry's numbered ones."""
    given = from_json_text(_first(tree, "gen_ai.input.messages", "gen_ai.prompt", "ai.prompt.messages"))
    said = from_json_text(_first(tree, "gen_ai.output.messages", "gen_ai.completion", "ai.response.text"))
    system = from_json_text(_first(tree, "gen_ai.system_instructions"))
    if given is None:
        given, said = _from_events(_list(row.get("events")))
    body: dict[str, Any] = {}
    if isinstance(given, str):
        body["prompt"] = given
    elif messages := [message for each in _list(given) for message in _message(each)]:
        above = _message({"role": "system", "parts": system}) if isinstance(system, list) else []
        body["messages"] = [*above, *messages]
    else:
        return None, None
    for key in ("max_tokens", "temperature"):
        if (value := _first(tree, f"gen_ai.request.{key}")) is not None:
            body[key] = _number(value)
    if tools := [_tool(each) for each in _list(_first(tree, "gen_ai.tool.definitions"))]:
        body["tools"] = tools
    if isinstance(said, str):
        return body, said
    return body, {"choices": [{"message": message} for each in _list(said) for message in _message(each)]}


def _from_events(events: Sequence[Row]) -> tuple[Any, Any]:
    asked, said = [], []
    for event in events:
        own, name = _lists(_nest(_attributes_of(event) or {})), str(event.get("name"))
        if not isinstance(own, Mapping):
            continue
        if name in _EVENTS:
            asked.append({"role": _EVENTS[name], **own})
        elif name == _CHOICE:
            message = from_json_text(own.get("message"))
            whole = message if isinstance(message, Mapping) else {"content": own.get("content", message)}
            said.append({"role": "assistant", **whole})
    return asked or None, said


def _message(value: Row) -> list[Row]:
    """Return the chat messages that one GenAI message stands for: what tools answered has one each."""
    if not isinstance(value.get("parts"), list):
        return [{"content": None, **value}] if isinstance(value.get("role"), str) else []
    texts: list[str] = []
    reasoning: list[str] = []
    calls, answers, others = list[Row](), list[Row](), list[Row]()
    for part in _list(value["parts"]):
        kind, content = part.get("type"), part.get("content")
        if kind == "text" and isinstance(content, str):
            texts.append(content)
        elif kind == "reasoning":
            reasoning.append(str(content))
        elif kind == "tool_call":
            function = {"name": str(part.get("name")), "arguments": _text(part.get("arguments"))}
            calls.append({"id": str(part.get("id")), "type": "function", "function": function})
        elif kind == "tool_call_response":
            answer = part.get("response", part.get("result"))
            answers.append({"role": "tool", "tool_call_id": str(part.get("id")), "content": _text(answer)})
        else:
            others.append(part)
    message: dict[str, Any] = {
        "role": str(value.get("role")),
        "content": "".join(texts) if texts or not calls else None,
    }
    message |= {"tool_calls": calls} if calls else {}
    message |= {"reasoning_content": "".join(reasoning)} if reasoning else {}
    if others:
        message["content"] = [*({"type": "text", "text": text} for text in texts), *others]
    return answers if answers and not (texts or calls or others) else [message, *answers]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _tool(value: Row) -> Row:
    if "function" in value:
        return value
    return {"type": "function", "function": {key: each for key, each in value.items() if key != "type"}}


def _openinference(tree: Row) -> tuple[Row | None, Any]:
    body = from_json_text(_first(tree, "llm.invocation_parameters"))
    body = dict(body) if isinstance(body, Mapping) else {}
    asked = _openinference_messages(_first(tree, "llm.input_messages"))
    prompts = _list(_first(tree, "llm.prompts"))
    given = from_json_text(_first(tree, "input.value", "mlflow.spanInputs", "request_data"))
    if asked:
        body["messages"] = asked
    elif prompts and isinstance(text := _first(prompts[0], "prompt.text"), str):
        body["prompt"] = text
    elif isinstance(given, Mapping) and any(key in given for key in ("messages", "prompt", "input")):
        body |= given
    elif isinstance(given, str) and given:
        body["prompt"] = given
    else:
        return None, None
    tools = [from_json_text(_first(each, "tool.json_schema")) for each in _list(_first(tree, "llm.tools"))]
    if tools and all(isinstance(each, Mapping) for each in tools):
        body["tools"] = tools
    said = _openinference_messages(_first(tree, "llm.output_messages"))
    if said:
        return body, {"choices": [{"message": message} for message in said]}
    choices = [_first(each, "completion.text") for each in _list(_first(tree, "llm.choices"))]
    output = (
        choices[0]
        if choices
        else from_json_text(_first(tree, "mlflow.spanOutputs", "response_data")) or _first(tree, "output.value")
    )
    return body, output


def _openinference_messages(value: Any) -> list[Row]:
    return [message for each in _list(value) for message in _openinference_message(each.get("message"))]


def _openinference_message(value: Any) -> Iterator[Row]:
    if not isinstance(value, Mapping):
        return
    contents = [_first(each, "message_content") for each in _list(value.get("contents"))]
    content = value.get("content")
    if content is None and contents:
        texts = [each.get("text") if isinstance(each, Mapping) else None for each in contents]
        is_text = all(isinstance(text, str) for text in texts)
        parts = [each for each in contents if isinstance(each, Mapping) and each.get("text") is None]
        if any(each.get("type") == "text" for each in parts):
            content = None
        else:
            content = contents if None in texts else "".join(map(str, texts)) if is_text else None
    calls = [_first(each, "tool_call") for each in _list(value.get("tool_calls"))]
    message = {key: value[key] for key in ("role", "name", "tool_call_id") if key in value} | {"content": content}
    yield message | ({"tool_calls": [{"type": "function", **each} for each in calls if each]} if any(calls) else {})
