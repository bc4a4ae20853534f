"""Formats of logs that gateways, observability tools and engines write: one row each, recognized by a few keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from draftwise.knowledge.stored import read_rows
from draftwise.workloads.answer_streams import assemble, find_stream
from draftwise.workloads.conversation import from_json_text, to_messages
from draftwise.workloads.logged_spans import read_span

Line = Mapping[str, Any]

_BODY_KEYS = ("messages", "prompt", "input")
_ANSWERS = ("answer", "response", "completion", "output", "generated_text", "generation", "output_text")
"""Columns in which files of prompts have the answer."""
_NUMBERS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "arrival_s", "output_tokens", "temperature")
_BODIES = {"choices": list, "output": list, "usage": Mapping, "error": Mapping, "status_code": int, "role": str}
"""Keys that the bodies of answers have, and what they hold there."""
_PAGES = ("observations", "resourceSpans", "scopeSpans", "spans", "resourceLogs", "scopeLogs", "logRecords")
"""Lists that hold the rows: a Langfuse trace, OTLP files."""
_LOOSE_PAGES = ("data", "hits", "log", "logs", "entries", "events", "items", "records", "results", "rows", "runs")
"""The same of files of many names: pages of APIs (Langfuse, Phoenix, LangSmith), Jaeger, MLflow, Elasticsearch,
CloudWatch, HAR. Next to a request they are the user's own."""
_OF_A_ROW = (*_BODY_KEYS, "request", "body", "inputs", "attributes", "SpanAttributes", "span_attributes")
_MESSAGE_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id", "from", "value")
_LOST = {
    "litellm_truncated": "cut by LiteLLM",
    "redacted-by-litellm": "redacted",
    "__REDACTED__": "redacted",
}
"""Marks of texts that are not what was sent: LiteLLM (litellm/constants.py), OpenInference (configuration)."""
_MEDIA = ("blob", "file", "uri", "image")
"""Types of parts that spans only refer to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequest:
    """One logged request."""

    body: Mapping[str, Any]
    """The request body: `messages`, `prompt` or `input`, and parameters."""
    bare: bool = False
    """Whether the line is only the body, so its keys are the user's own."""
    response: Any = None
    """The answer: the server's body, one message, or text. Streams are assembled."""
    id: str | None = None
    time: Any = None
    output_tokens: Any = None
    conversation: bool = False
    """Whether `messages` is a whole conversation rather than one request."""
    skipped: str = ""
    """Why it cannot be sent again, e.g. `failed`; empty if it can."""
    lacks: str = ""
    """What the line lacks, as a predicate, if the request is missing; else empty."""
    fix: str = ""
    """How to get the request logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFormat:
    """The format of a line: how to recognize it, and where its parts are. A place is a dotted path of keys."""

    name: str
    source: str
    """Where the format is documented."""
    known_by: tuple[str, ...]
    """Places that a line must have; `a|b` means one of them."""
    request: tuple[str, ...]
    """Places of the request (a body, messages or text); the first one found counts."""
    texts: bool = False
    """Whether a request may be text."""
    parameters: tuple[str, ...] = ()
    response: tuple[str, ...] = ()
    id: tuple[str, ...] = ()
    time: tuple[str, ...] = ()
    output_tokens: tuple[str, ...] = ()
    kind: str = ""
    """Place of the kind of request."""
    kinds: tuple[str, ...] = ()
    """Words, of which a completion's kind contains one."""
    failed: tuple[str, ...] = ()
    """Places of errors (`...error`), whose presence means failure, and of statuses, whose value does."""
    conversation: bool = False
    lacks: str = ""
    """Message about a line without a request, as a predicate; if empty, such a line has another format."""
    fix: str = ""
    is_span: bool = False
    """Whether the places are in the output of `read_span` for the line."""


_TIMES = ("arrival_s", "timestamp", "time", "created_at", "created", "startTime", "start_time", "ts", "@timestamp")
FORMATS: tuple[LogFormat, ...] = tuple(LogFormat(**row) for row in read_rows("log_formats"))
SHAPES = (
    'Accepted: a request body ("messages", "prompt" or "input"), also with its answer; '
    '{"request": ..., "response": ...}; ' + "; ".join(each.name for each in FORMATS if not each.name.startswith("{"))
    + "."
)  # fmt: skip


def find_logged(row: Line) -> LoggedRequest | None:
    """Return the request in a line of a log; None for an unknown format."""
    try:
        return _find(row)
    except RecursionError:
        return None


def has_request(row: Line) -> bool:
    """Return whether a line holds a request."""
    logged = find_logged(row)
    return logged is not None and any(key in logged.body for key in _BODY_KEYS)


def _find(row: Line) -> LoggedRequest | None:
    for each in FORMATS:
        line = read_span(row) if each.is_span else row
        if line is not None and (logged := _read(line, each)) is not None:
            return logged
    return _read_bare(row)


def open_page(value: Any, depth: int = 0) -> Iterator[Any]:
    """Yield the rows of a page from an API or a tracer; any other value as it is."""
    is_own = isinstance(value, Mapping) and not any(key in value for key in _OF_A_ROW)
    keys = (*_PAGES, *_LOOSE_PAGES) if is_own else _PAGES
    pages = [value.get(key) for key in keys] if isinstance(value, Mapping) and depth < 8 else []
    nested = [
        each for each in pages if isinstance(each, Mapping) and any(isinstance(each.get(key), list) for key in keys)
    ]
    lists = [each for each in pages if isinstance(each, list) and all(isinstance(one, Mapping) for one in each)]
    if not (lists or nested):
        yield value
    for each in (*lists, nested):
        for row in each:
            yield from open_page(row, depth + 1)


def join_batches(rows: list[Any]) -> list[Any]:
    """Return the rows with each output line of a batch merged into its input line, and None in its place.

    The two files of a batch share `custom_id`.
    """
    asked: dict[str, int] = {}
    for place, row in enumerate(rows):
        if isinstance(row, Mapping) and "body" in row and row.get("custom_id") is not None:
            asked.setdefault(str(row["custom_id"]), place)
    joined = list(rows)
    for place, row in enumerate(rows):
        if isinstance(row, Mapping) and "body" not in row and ("response" in row or "error" in row):
            of = asked.get(str(row.get("custom_id")))
            if of is not None:
                answer = {key: row[key] for key in ("response", "error") if key in row}
                joined[of], joined[place] = {**joined[of], **answer}, None
    return joined


def _read(row: Line, form: LogFormat) -> LoggedRequest | None:
    if not all(any(_at(row, place) is not None for place in group.split("|")) for group in form.known_by):
        return None
    given = next((each for place in form.request if (each := _request(_at(row, place), form)) is not None), None)
    if given is None and not form.lacks:
        return None
    response = _response(find_first(row, form.response))
    skipped = _skipped(row, form, given, response)
    if given is None:
        return LoggedRequest(
            body={}, skipped=skipped, id=_text(find_first(row, form.id)), lacks=form.lacks, fix=form.fix
        )
    body = given if isinstance(given, Mapping) else {"prompt" if isinstance(given, str) else "messages": given}
    parameters = [each for place in form.parameters if isinstance(each := from_json_text(_at(row, place)), Mapping)]
    return LoggedRequest(
        body={key: value for each in (*parameters, body) for key, value in each.items()},
        response=response,
        id=_text(find_first(row, form.id)),
        time=find_first(row, form.time),
        output_tokens=find_first(row, form.output_tokens),
        conversation=form.conversation,
        skipped=skipped,
    )


def _request(value: Any, form: LogFormat) -> Any:
    """Return the request where a place holds one."""
    value = from_json_text(value)
    if form.conversation:
        return [_message(each) for each in value] if isinstance(value, list) else None
    if isinstance(value, str):
        return value if form.texts and value else None
    return value if isinstance(value, Mapping | list) and value else None


def _message(value: Any) -> Any:
    """Return a message of a data set without the columns that no server takes."""
    return {key: value[key] for key in _MESSAGE_KEYS if key in value} if isinstance(value, Mapping) else value


def _skipped(row: Line, form: LogFormat, given: Any, response: Any) -> str:
    kind = _text(_at(row, form.kind)) if form.kind else None
    if kind and not any(word in kind for word in form.kinds):
        return "no completion"
    places = ((place, _at(row, place)) for place in form.failed)
    if any(_says_failed(place, value) for place, value in (*places, *_statuses(response))):
        return "failed"
    if form.conversation:
        # Real dumps hold conversations that are empty, or of which only an answer is left.
        messages = to_messages(given)
        asked = messages is None or any(message["role"] != "assistant" for message in messages)
        return "" if given and asked else "without a question"
    if row.get("cut") is True:
        return "cut by --max-log-len"
    return _lost(given)


def _lost(value: Any, depth: int = 0) -> str:
    """Return why a request is not what was sent, where marks in it say so."""
    if isinstance(value, str):
        return next((why for mark, why in _LOST.items() if mark in value), "")
    if depth > 6 or not isinstance(value, Mapping | list):
        return ""
    if isinstance(value, Mapping):
        if "litellm_truncated" in value:
            return _LOST["litellm_truncated"]
        if value.get("type") in _MEDIA and "image_url" not in value:
            return "with images or files that are not in the log"
    below = value.values() if isinstance(value, Mapping) else value
    return next(filter(None, (_lost(each, depth + 1) for each in below)), "")


def _statuses(response: Any) -> Iterator[tuple[str, Any]]:
    for key in ("error", "status_code", "body.error"):
        if isinstance(response, Mapping):
            yield key, _at(response, key)


def _says_failed(place: str, value: Any) -> bool:
    text = str(value).strip().lower()
    if place.endswith("error") or isinstance(value, bool):
        return bool(value) and text not in ("none", "null", "false", "{}")
    number = text.partition(" ")[0]
    if number.isdecimal():
        return len(number) == 3 and int(number) >= 400
    return text in ("failure", "error", "failed")


def _response(value: Any) -> Any:
    """Return an answer with streams put together and bodies that are kept as text read; other text as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        read = from_json_text(value)
        value = read if not read or _is_body(read) or (isinstance(read, list) and _is_said(read)) else value
    if (stream := find_stream(value)) is not None:
        return assemble(stream)
    if isinstance(value, list) and _is_said(value) and find_stream(value) is None:
        return value[-1]
    if isinstance(value, Mapping) and "body" in value:
        return {**value, "body": _response(value["body"])}
    return value


def _is_said(values: list[Any]) -> bool:
    """Whether a list is of chunks of a stream, or of messages."""
    is_messages = all(isinstance(each, Mapping) and "role" in each for each in values)
    return bool(values) and (is_messages or find_stream(values) is not None)


def _is_body(value: Any) -> bool:
    """Whether JSON is what a server sent, and not an answer that happens to be JSON."""
    return isinstance(value, Mapping) and any(
        isinstance(value.get(key), kind) and (key != "role" or "content" in value) for key, kind in _BODIES.items()
    )


def _read_bare(row: Line) -> LoggedRequest | None:
    """A request body alone, or a line of a file made for this program, which may have the answer too."""
    if not any(key in row for key in _BODY_KEYS):
        return None
    if all(isinstance(value, str) for value in row.values()):
        row = _typed(row)
    return LoggedRequest(
        body=row,
        bare=True,
        response=_response(next((row[key] for key in _ANSWERS if row.get(key)), None)),
        id=_text(row.get("id")),
        time=find_first(row, _TIMES),
        output_tokens=row.get("output_tokens"),
    )


def _typed(row: Line) -> Line:
    """Return a row of a CSV file with empty cells left out, and numbers and messages read."""
    typed: dict[str, Any] = {key: value for key, value in row.items() if value or key == "prompt"}
    if "messages" in typed or "input" in typed:
        typed = {key: value for key, value in typed.items() if value}
    for key in _NUMBERS:
        if key in typed:
            typed[key] = _number(typed[key])
    return typed | {key: from_json_text(typed[key]) for key in ("messages",) if key in typed}


def _number(text: str) -> Any:
    try:
        return int(text) if text.isdecimal() and len(text) < 16 else float(text)
    except ValueError:
        return text


def _at(row: Line, place: str) -> Any:
    """Return what is at a dotted path; structured values may be kept as JSON texts."""
    node: Any = row
    for number, key in enumerate(place.split(".")):
        node = from_json_text(node) if number else node
        node = node.get(key) if isinstance(node, Mapping) else None
    return node


def find_first(row: Line, places: tuple[str, ...]) -> Any:
    """Return the value at the first place that has one; None if none has."""
    return next((each for place in places if (each := _at(row, place)) is not None), None)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
