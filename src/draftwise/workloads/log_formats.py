"""Formats of logs that gateways, observability tools and engines write: one row each, recognized by a few keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from draftwise.knowledge.stored import read_rows
from draftwise.workloads.answer_streams import assemble, find_stream
from draftwise.workloads.conversation import from_json_text, to_messages
from draftwise.workloads.logged_spans import read_span
from draftwise.workloads.other_apis import to_answer, to_request

Line = Mapping[str, Any]

_BODY_KEYS = ("messages", "prompt", "input")
_ANSWERS = ("answer", "response", "completion", "output", "generated_text", "generation", "output_text", "outputs")
"""Columns in which files of prompts have the answer."""
_NUMBERS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "arrival_s", "output_tokens", "temperature")
_BODIES = {"choices": list, "output": list, "usage": Mapping, "error": Mapping, "status_code": int, "role": str,
           "candidates": list, "generated_text": str}  # fmt: skip
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
_PAIRS = (
    ("custom_id", ("body", "params"), ("response", "error", "result")),
    ("key", ("request",), ("response", "error")),
    ("rid", ("obj",), ("obj", "out")),
)
"""What a request and its answer share in lines of their own, and the keys of either. SGLang repeats the request, with
the text of its prompt, next to the answer (`out`)."""
_PIECES = ("requestmessages", "responsemessages")
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
    session: str | None = None
    """Conversation that it is a turn of, if its format has a place for that."""
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
    session: tuple[str, ...] = ()
    kind: str = ""
    """Place of the kind of request; `a|b` means one of them."""
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
    """Return whether a line holds a request, or is known to lack one."""
    logged = find_logged(row)
    is_lacking = logged is not None and bool(logged.lacks) and not logged.skipped
    return logged is not None and (is_lacking or any(key in logged.body for key in _BODY_KEYS))


def _find(row: Line) -> LoggedRequest | None:
    lines: dict[bool, Line | None] = {False: row}
    for each in FORMATS:
        if each.is_span and True not in lines:
            lines[True] = read_span(row)
        if (line := lines[each.is_span]) is not None and (logged := _read(line, each)) is not None:
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
    lists = [each for each in lists if not each or _is_page(each)]
    if not (lists or nested):
        yield value
    for each in (*lists, nested):
        for row in each:
            yield from open_page(row, depth + 1)


def _is_page(values: list[Any]) -> bool:
    """Whether a list holds rows of a log, not messages."""
    return any(isinstance(each, Mapping) and not {"from", "role", "content", "kwargs"} & each.keys() for each in values)


def join_requests(rows: list[Any]) -> list[Any]:
    """Return the rows with what belongs to one request merged into its first row, and None in place of the others.

    The two files of a batch share `custom_id` or `key`, the two lines of SGLang's log `rid`. API Management cuts a
    request and its answer into numbered entries.
    """
    joined = _join_entries(rows)
    for key, asks, answers in _PAIRS:
        asked: dict[str, int] = {}
        pairs = [(place, row) for place, row in enumerate(joined) if isinstance(row, Mapping) and key in row]
        for place, row in pairs:
            if any(each in row for each in asks) and "out" not in row:
                asked.setdefault(str(row[key]), place)
        for place, row in pairs:
            given = {each: row[each] for each in answers if each in row}
            of = None if any(each in row for each in asks) and "out" not in row else asked.get(str(row[key]))
            if given and of is not None:
                joined[of], joined[place] = {**joined[of], **given}, None
    return joined


def _join_entries(rows: list[Any]) -> list[Any]:
    joined: list[Any] = list(rows)
    groups: dict[str, list[tuple[int, int, dict[str, Any]]]] = {}
    for place, row in enumerate(rows):
        if not isinstance(row, Mapping) or not {"correlationId", "CorrelationId"} & row.keys():
            continue
        inner = row.get("properties")
        whole = {**row, **inner} if isinstance(inner, Mapping) else row
        entry = {str(key).lower(): value for key, value in whole.items()}
        if any(key in entry for key in _PIECES) or {"sequencenumber", "completiontokens"} <= entry.keys():
            number = str(entry.get("sequencenumber"))
            order = int(number) if number.isdecimal() and len(number) < 9 else 0
            groups.setdefault(str(entry["correlationid"]), []).append((order, place, entry))
    for entries in groups.values():
        if any(entry.get(key) for _, _, entry in entries for key in _PIECES):
            for _, place, _ in entries:
                joined[place] = None
            first = min(place for _, place, _ in entries)
            joined[first] = _merge_entries(sorted(entries, key=lambda each: each[:2]))
    return joined


def _merge_entries(entries: list[tuple[int, int, dict[str, Any]]]) -> dict[str, Any]:
    """Return one entry for a whole request; without the question, or with a cut answer, if entries are missing."""
    merged: dict[str, Any] = {}
    lost, seen, before = set[str](), 0, dict[str, Any]()
    for number, _, entry in entries:
        if number > seen + 1:
            lost.add(_PIECES[1 if merged.get(_PIECES[1]) else 0])
        if not (number == seen > 0 and all(entry.get(key) == before.get(key) for key in _PIECES)):
            pieces = {key: _join(merged.get(key), entry.get(key)) for key in _PIECES}
            lost |= {key for key in _PIECES if pieces[key] is None and merged.get(key)}
            merged = {**entry, **{key: value for key, value in merged.items() if value not in (None, "")}, **pieces}
        seen, before = number, entry
    return {**merged, **{key: {"cut": True} if key == _PIECES[1] else None for key in lost}}


def _join(before: Any, after: Any) -> Any:
    """Return two parts of a text, or of messages, of which the last may go on in the next entry; None if they are no
    such parts."""
    before, after = from_json_text(before), from_json_text(after)
    if not (before and after):
        return before or after
    if isinstance(before, str) and isinstance(after, str):
        return before + after
    if not (isinstance(before, list) and isinstance(after, list)):
        return None
    last, first = (each if isinstance(each, Mapping) else {} for each in (before[-1], after[0]))
    if last.get("role") == first.get("role") and all(isinstance(each.get("content"), str) for each in (last, first)):
        return [*before[:-1], {**last, "content": last["content"] + first["content"]}, *after[1:]]
    return before + after


def _read(row: Line, form: LogFormat) -> LoggedRequest | None:
    if any(keys.isdisjoint(row) for keys in _list_first_keys(form.known_by)) or not all(
        any(_at(row, place) is not None for place in group.split("|")) for group in form.known_by
    ):
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
        session=_text(find_first(row, form.session)),
        conversation=form.conversation,
        skipped=skipped,
    )


@cache
def _list_first_keys(known_by: tuple[str, ...]) -> tuple[frozenset[str], ...]:
    """Return the keys of which a row needs one, for each group of places."""
    return tuple(frozenset(place.partition(".")[0] for place in group.split("|")) for group in known_by)


def _request(value: Any, form: LogFormat) -> Any:
    """Return the request where a place holds one."""
    value = from_json_text(value)
    if form.conversation:
        return [_message(each) for each in value] if isinstance(value, list) and not _is_page(value) else None
    if isinstance(value, str):
        return value if form.texts and value else None
    if isinstance(value, Mapping) and value:
        read = to_request(value)
        return read if not form.lacks or any(key in read for key in _BODY_KEYS) or _lost(read) else None
    return value if isinstance(value, list) and value else None


def _message(value: Any) -> Any:
    """Return a message of a data set without the columns that no server takes."""
    return {key: value[key] for key in _MESSAGE_KEYS if key in value} if isinstance(value, Mapping) else value


def _skipped(row: Line, form: LogFormat, given: Any, response: Any) -> str:
    kind = _text(find_first(row, tuple(form.kind.split("|")))) if form.kind else None
    is_embedding = isinstance(response, Mapping) and "embedding" in response
    if is_embedding or (kind and not any(word in kind for word in form.kinds)):
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
        if value.get("type") == "encrypted":
            return "encrypted: decrypt the bodies with your private key first"
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
        is_list = isinstance(read, list) and read and (_is_said(read) or _is_body(read[0]))
        value = read if not read or _is_body(read) or is_list else value
    if (stream := find_stream(value)) is not None:
        return assemble(stream)
    if isinstance(value, list) and _is_said(value) and find_stream(value) is None:
        return value[-1]
    if isinstance(value, list) and value and all(isinstance(each, Mapping) and "message" in each for each in value):
        return {"choices": value}
    if isinstance(value, Mapping) and "body" in value:
        return {**value, "body": _response(value["body"])}
    pieces = value if isinstance(value, list) else [value]
    return (to_answer(pieces) if all(isinstance(each, Mapping) for each in pieces) else None) or value


def _is_said(values: list[Any]) -> bool:
    """Whether a list is of chunks of a stream, or of messages."""
    is_messages = all(isinstance(each, Mapping) and "role" in each for each in values)
    return bool(values) and (is_messages or find_stream(values) is not None)


def _is_body(value: Any) -> bool:
    """Whether JSON is what a server sent, and not an answer that happens to be JSON."""
    return isinstance(value, Mapping) and (
        any(isinstance(value.get(key), kind) and (key != "role" or "content" in value) for key, kind in _BODIES.items())
        or to_answer([value]) is not None
    )


def _read_bare(row: Line) -> LoggedRequest | None:
    """A request body alone, or a line of a file made for this program, which may have the answer too."""
    row = to_request(row)
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
