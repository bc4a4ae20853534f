"""Reads the answer of a logged line: text, tokens, reasoning and calls, and the request's settings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from draftwise.core import RecordedAnswer
from draftwise.workloads.conversation import from_json_text, plain_text
from draftwise.workloads.log_formats import Line, LoggedRequest

LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "maxTokens")
"""Keys of a request's maximum answer length."""
_BY_ID = "token_id:"
"""How vLLM writes a token with `return_tokens_as_token_ids`."""
_HIDDEN = ("reasoning_content", "reasoning")
_REASONED = ("reasoning", "thinking")
_CALLED = ("function_call", "custom_tool_call", "tool_use")
"""Types of what an answer is made of: Responses API, Anthropic's Messages API."""


def read_recorded(row: Line, logged: LoggedRequest, said: str | None) -> RecordedAnswer:
    """Return the recorded data of a request and its answer.

    Args:
        row: the whole line.
        logged: the request in it.
        said: the recorded next turn, if the answer is a turn of a conversation.
    """
    body, response = logged.body, _body_of(logged.response)
    choice = _first_choice(response) or {}
    message = _mapping(choice.get("message"))
    usage = _mapping(response.get("usage"))
    parts = (*_output_items(response), *_items(response.get("content")))
    items = {str(_mapping(each).get("type")) for each in parts}
    limit = next((body[key] for key in LIMITS if _is_count(body.get(key))), None)
    return RecordedAnswer(
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
        reasoned=any(map(message.get, _HIDDEN)) or bool(items & {*_REASONED}) or _reasoning_tokens(usage) > 0,
        called_tools=any(map(message.get, ("tool_calls", "function_call"))) or bool(items & {*_CALLED}),
        template_variables=_template_variables(body),
    )


def read_answer_tokens(logged: LoggedRequest) -> int | None:
    """Return the server's token count of the logged answer; None if the log does not have it."""
    body = _body_of(logged.response)
    if len(_items(body.get("choices"))) > 1:
        return None  # the count is that of all answers together
    usage = _mapping(body.get("usage")) or _mapping(_mapping(logged.response).get("usage"))
    values = (logged.output_tokens, usage.get("completion_tokens"), usage.get("output_tokens"))
    return next((count for value in values if (count := _to_count(value)) is not None), None)


def token_ids_of(value: Any) -> tuple[int, ...]:
    """Return a list of token ids; empty for any other value."""
    is_ids = isinstance(value, Sequence) and not isinstance(value, str) and all(type(each) is int for each in value)
    return tuple(value) if is_ids else ()


def _answer_text(response: Any) -> str:
    """Return the text of a logged answer: a completion, a chat completion, a response, a message or plain text."""
    if isinstance(response, str):
        return response
    body = _body_of(response)
    generations = body.get("generations")  # LangChain: a list for each prompt
    while isinstance(generations, list) and generations:
        generations = generations[0]
    if isinstance(generations, Mapping):
        return plain_text(generations.get("text"))
    choice = _first_choice(body)
    said = choice.get("message") or choice.get("text") if choice is not None else body.get("message")
    if choice is not None or isinstance(said, Mapping):
        return said if isinstance(said, str) else plain_text(_mapping(said).get("content"))
    texts = (plain_text(body.get(key)) for key in ("content", "output_text", "generated_text"))
    return next(filter(None, texts), "") or _output_text(_output_items(body))


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
    return tuple(map(int, digits)) if all(map(str.isdecimal, digits)) else ()


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
    """Return the value that a gateway or an application wrote under a key, next to the request or in its metadata."""
    places = (row, _mapping(row.get("metadata")), body, _mapping(body.get("metadata")))
    values = (place.get(key) for key in keys for place in places)
    return next((str(each) for each in values if isinstance(each, str | int) and each != ""), None)


def _template_variables(body: Line) -> dict[str, Any]:
    """Return vLLM's arguments to a chat template besides the messages."""
    tools = {"tools": body["tools"]} if body.get("tools") else {}
    return tools | dict(_mapping(body.get("chat_template_kwargs")))


def _mapping(value: Any) -> Line:
    value = from_json_text(value)
    return value if isinstance(value, Mapping) else {}


def _reasoning_tokens(usage: Line) -> int:
    details = _mapping(usage.get("completion_tokens_details")) or _mapping(usage.get("output_tokens_details"))
    return _to_count(details.get("reasoning_tokens")) or 0


def _body_of(response: Any) -> Line:
    """Return the answer itself, where a log has it next to a status."""
    whole = response if isinstance(response, Mapping) else {}
    return _mapping(whole.get("body")) or whole


def _first_choice(body: Line) -> Line | None:
    choices = body.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, Mapping) else None


def _output_text(output: Sequence[Any]) -> str:
    """Return the text of the messages that the Responses API puts out."""
    return "".join(plain_text(each.get("content")) for each in output if isinstance(each, Mapping))


def _output_items(body: Line) -> Sequence[Any]:
    return _items(body.get("output"))


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _to_count(value: Any) -> int | None:
    is_number = isinstance(value, int | float | str) and re.fullmatch(r"\d{1,15}(\.0)?", str(value))
    return int(float(value)) if is_number else None


def _to_temperature(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
    return float(value) if is_number else None


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0
