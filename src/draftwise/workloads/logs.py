"""Finds the request, its answer and its time in a logged line, in the formats that gateways and observers write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from draftwise.workloads.conversation import from_json_text, to_messages

__all__ = ["SHAPES", "Logged", "find_logged"]

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
