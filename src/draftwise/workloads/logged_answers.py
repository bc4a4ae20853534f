"""Finds the request, its answer and its time in a logged line, in the formats that gateways and engines write."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftwise.core import Recorded
from draftwise.workloads.conversation import from_json_text, plain_text, to_messages

__all__ = ["LIMITS", "SHAPES", "Logged", "find_logged", "read_answer_tokens", "read_recorded", "token_ids_of"]

_BODY_KEYS = ("messages", "prompt", "input")
SHAPES = (
    'Accepted: a request body ("messages", "prompt" or "input"); OpenAI batch lines ("body"); '
    '{"request": ..., "response": ...}; exports of LiteLLM, Helicone and Langfuse; ShareGPT ("conversations").'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """One logged request."""

    body: Mapping[str, Any]
    """As it was sent to the server: `messages`, `prompt` or `input`, and parameters."""
    bare: bool = False
    """Whether the line is nothing but the body, so that its keys are the user's own."""
    response: Any = None
    """What was answered: as the server sent it, one message, or text."""
    id: str | None = None
    time: Any = None
    output_tokens: Any = None
    conversation: bool = False
    """Whether `messages` is a whole conversation rather than what was sent at once."""
    skipped: str = ""
    """Why it is no prompt to send again, e.g. `failed`; empty where it is one."""


Line = Mapping[str, Any]


def find_logged(row: Line) -> Logged | None:
    """Return the request in a line of a log; None in a shape that is not known."""
    return next((logged for read in _READERS if (logged := read(row)) is not None), None)


def _read_sharegpt(row: Line) -> Logged | None:
    """ShareGPT's, as vLLM's `bench serve --dataset-name sharegpt` reads it."""
    said = row.get("conversations")
    if not isinstance(said, list):
        return None
    messages = to_messages(said)
    # Real dumps hold conversations that are empty, or of which only an answer is left.
    asked = messages is None or any(message["role"] != "assistant" for message in messages)
    skipped = "" if said and asked else "without a question"
    return Logged(body={"messages": said}, id=_text(row.get("id")), conversation=True, skipped=skipped)


def _read_batch(row: Line) -> Logged | None:
    """OpenAI's batch input files, which vLLM's `run-batch` takes: {"custom_id", "method", "url", "body"}."""
    body = row.get("body")
    if not isinstance(body, Mapping):
        return None
    url = str(row.get("url", ""))
    skipped = "" if not url or "completions" in url or "responses" in url else "no completion"
    return Logged(
        body=body,
        response=row.get("response"),
        id=_text(row.get("custom_id")),
        time=_time(row, body),
        skipped=skipped,
    )


def _read_pair(row: Line) -> Logged | None:
    """{"request": ..., "response": ...}, either with its body in `body`, as access logs of proxies have it."""
    request = from_json_text(row.get("request"))
    if not isinstance(request, Mapping):
        return None
    body = from_json_text(request.get("body"))
    body = body if isinstance(body, Mapping) else request
    response = from_json_text(row.get("response"))
    return Logged(body=body, response=response, id=_id(row), time=_time(row, request), skipped=_failure(row, response))


def _read_helicone(row: Line) -> Logged | None:
    """Helicone's export (docs.helicone.ai/tools/export): CSV columns and JSON alike."""
    body = from_json_text(row.get("request_body"))
    if not isinstance(body, Mapping):
        return None
    response = from_json_text(row.get("response_body"))
    return Logged(
        body=body,
        response=response,
        id=_text(row.get("request_id") or row.get("response_id")),
        time=row.get("request_created_at"),
        output_tokens=row.get("completion_tokens"),
        skipped=_failure({"status": row.get("response_status")}, response),
    )


def _read_litellm(row: Line) -> Logged | None:
    """LiteLLM's StandardLoggingPayload (docs.litellm.ai/docs/proxy/logging_spec)."""
    if "call_type" not in row or "messages" not in row:
        return None
    given = from_json_text(row["messages"])
    body = given if isinstance(given, Mapping) else {"prompt" if isinstance(given, str) else "messages": given}
    skipped = "" if "completion" in str(row["call_type"]) else "no completion"
    return Logged(
        body={**_mapping(row.get("model_parameters")), **body},
        response=from_json_text(row.get("response")),
        id=_text(row.get("id")),
        time=row.get("startTime"),
        output_tokens=row.get("completion_tokens"),
        skipped=skipped or _failure(row, None),
    )


def _read_langfuse(row: Line) -> Logged | None:
    """Langfuse's observations: API (`startTime`) and blob-storage export (`start_time`, JSON kept as text)."""
    kind = row.get("type")
    if not isinstance(kind, str) or "input" not in row or not ({"traceId", "trace_id"} & row.keys()):
        return None
    given = from_json_text(row["input"])
    body = given if isinstance(given, Mapping) else {"prompt" if isinstance(given, str) else "messages": given}
    usage = _mapping(row.get("usageDetails") or row.get("usage_details") or row.get("usage"))
    parameters = _mapping(row.get("modelParameters") or row.get("model_parameters"))
    return Logged(
        body={**parameters, **body},
        response=from_json_text(row.get("output")),
        id=_text(row.get("id")),
        time=row.get("startTime") or row.get("start_time"),
        output_tokens=usage.get("output") or usage.get("output_tokens") or usage.get("completion_tokens"),
        skipped="" if kind == "GENERATION" else "no completion",
    )


def _read_bare(row: Line) -> Logged | None:
    """A request body alone, or a line of a file made for this program, which may have an `answer` beside it."""
    if not any(key in row for key in _BODY_KEYS):
        return None
    return Logged(
        body=row,
        bare=True,
        response=row.get("answer"),
        id=_text(row.get("id")),
        time=_time(row),
        output_tokens=row.get("output_tokens"),
    )


_READERS: tuple[Callable[[Line], Logged | None], ...] = (
    _read_sharegpt,
    _read_batch,
    _read_pair,
    _read_helicone,
    _read_litellm,
    _read_langfuse,
    _read_bare,
)


def _failure(row: Line, response: Any) -> str:
    """Return `failed` where a log says so by a status or an error."""
    if row.get("error") or _mapping(response).get("error"):
        return "failed"
    status = row.get("status", row.get("status_code"))
    if status is None:
        status = _mapping(response).get("status_code")
    if str(status).lower() in ("failure", "error", "failed"):
        return "failed"
    return "failed" if str(status).isdigit() and int(status) >= 400 else ""


_TIMES = ("arrival_s", "timestamp", "time", "created_at", "created", "startTime", "start_time", "ts", "@timestamp")


def _time(*rows: Line) -> Any:
    return next((row[key] for row in rows for key in _TIMES if row.get(key) is not None), None)


def _id(row: Line) -> str | None:
    return _text(row.get("id", row.get("request_id")))


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _mapping(value: Any) -> Mapping[str, Any]:
    value = from_json_text(value)
    return value if isinstance(value, Mapping) else {}


LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""Keys of a request for the longest answer."""
_BY_ID = "token_id:"
"""How vLLM writes a token with `return_tokens_as_token_ids`."""
_HIDDEN = ("reasoning_content", "reasoning")


def read_recorded(row: Line, logged: Logged, said: str | None) -> Recorded:
    """Return what a line says of a request and its answer.

    Args:
        row: the whole line.
        logged: the request in it.
        said: how a recorded conversation goes on, where the answer is a turn of it.
    """
    body, response = logged.body, _body_of(logged.response)
    choice = _first_choice(response) or {}
    message = _mapping(choice.get("message"))
    usage = _mapping(response.get("usage"))
    items = {_mapping(each).get("type") for each in _output_items(response)}
    limit = next((body[key] for key in LIMITS if _is_count(body.get(key))), None)
    return Recorded(
        answer=said or _answer_text(logged.response) or None,
        token_ids=() if said is not None else _answer_ids(row, choice),
        prompt_token_ids=_prompt_ids(row, body, response, choice),
        num_tokens=read_answer_tokens(logged) if said is None else None,
        num_prompt_tokens=_to_count(usage.get("prompt_tokens", usage.get("input_tokens"))),
        temperature=_to_temperature(body.get("temperature")),
        max_tokens=limit,
        route=_find_name(_ROUTES, row, body),
        tenant=_find_name(_TENANTS, row, body),
        conversation=_find_name(_CONVERSATIONS, row, body),
        reasoned=any(map(message.get, _HIDDEN)) or "reasoning" in items or _reasoning_tokens(usage) > 0,
        called_tools=bool(message.get("tool_calls")) or "function_call" in items,
        template_variables=_template_variables(body),
    )


def read_answer_tokens(logged: Logged) -> int | None:
    """Return how many tokens the logged answer had, as its server counted; None where the log does not say."""
    usage = _mapping(_body_of(logged.response).get("usage")) or _mapping(_mapping(logged.response).get("usage"))
    values = (logged.output_tokens, usage.get("completion_tokens"), usage.get("output_tokens"))
    return next((count for value in values if (count := _to_count(value)) is not None), None)


def token_ids_of(value: Any) -> tuple[int, ...]:
    """Return a list of token ids; empty where it is none."""
    is_ids = isinstance(value, Sequence) and not isinstance(value, str) and all(type(each) is int for each in value)
    return tuple(value) if is_ids else ()


def _answer_text(response: Any) -> str:
    """Return the text of a logged answer: a completion, a chat completion, a response, a message or plain text."""
    if isinstance(response, str):
        return response
    body = _body_of(response)
    choice = _first_choice(body)
    if choice is not None:
        return _answer_text(choice.get("message") or choice.get("text"))
    return plain_text(body.get("content")) or plain_text(body.get("output_text")) or _output_text(_output_items(body))


def _answer_ids(row: Line, choice: Line) -> tuple[int, ...]:
    """Return the answer's token ids: vLLM's `return_token_ids`, else its log-probabilities by token id."""
    return (
        token_ids_of(choice.get("token_ids"))
        or token_ids_of(row.get("answer_token_ids"))
        or _ids_of_logprobs(_mapping(choice.get("logprobs")))
    )


def _ids_of_logprobs(logprobs: Line) -> tuple[int, ...]:
    content = logprobs.get("content")
    tokens = [_mapping(each).get("token") for each in content] if isinstance(content, list) else logprobs.get("tokens")
    if not isinstance(tokens, list) or not all(isinstance(each, str) and each.startswith(_BY_ID) for each in tokens):
        return ()
    digits = [each.removeprefix(_BY_ID) for each in tokens]
    return tuple(map(int, digits)) if all(map(str.isdigit, digits)) else ()


def _prompt_ids(row: Line, body: Line, response: Line, choice: Line) -> tuple[int, ...]:
    given = (response.get("prompt_token_ids"), choice.get("prompt_token_ids"), row.get("prompt_token_ids"))
    return next((ids for each in (*given, body.get("prompt")) if (ids := token_ids_of(each))), ())


_ROUTES = ("route",)
_TENANTS = (
    *("tenant", "tenant_id", "organization", "organization_id", "org_id", "team_id", "team", "customer_id", "customer"),
    *("user_id", "userId", "user", "end_user", "api_key_hash", "user_api_key_hash"),
)
_CONVERSATIONS = (
    *("conversation_id", "conversationId", "conversation", "session_id", "sessionId", "thread_id", "chat_id"),
    *("traceId", "trace_id"),
)


def _find_name(keys: Sequence[str], row: Line, body: Line) -> str | None:
    """Return what a gateway or an application wrote under a key, beside the request or in its metadata."""
    places = (row, _mapping(row.get("metadata")), body, _mapping(body.get("metadata")))
    values = (place.get(key) for key in keys for place in places)
    return next((str(each) for each in values if isinstance(each, str | int) and each != ""), None)


def _template_variables(body: Line) -> dict[str, Any]:
    """Return what vLLM hands to a chat template beside the messages."""
    tools = {"tools": body["tools"]} if body.get("tools") else {}
    return tools | dict(_mapping(body.get("chat_template_kwargs")))


def _reasoning_tokens(usage: Line) -> int:
    details = _mapping(usage.get("completion_tokens_details")) or _mapping(usage.get("output_tokens_details"))
    return _to_count(details.get("reasoning_tokens")) or 0


def _body_of(response: Any) -> Line:
    """Return the answer itself, where a log has it beside a status."""
    whole = _mapping(response)
    return _mapping(whole.get("body")) or whole


def _first_choice(body: Line) -> Line | None:
    choices = body.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, Mapping) else None


def _output_text(output: Sequence[Any]) -> str:
    """Return the text of the messages that the Responses API puts out."""
    return "".join(plain_text(each.get("content")) for each in output if isinstance(each, Mapping))


def _output_items(body: Line) -> Sequence[Any]:
    output = body.get("output")
    return output if isinstance(output, list) else ()


def _to_count(value: Any) -> int | None:
    is_number = isinstance(value, int | float | str) and re.fullmatch(r"\d+(\.0)?", str(value))
    return int(float(value)) if is_number else None


def _to_temperature(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
    return float(value) if is_number else None


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0
