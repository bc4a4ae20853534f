"""Reads vLLM's own log (`--enable-log-requests`, `--enable-log-outputs`) and SGLang's: lines become requests."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Any

# vllm/entrypoints/logger.py (0.9.2 to 0.22.1) and vllm/entrypoints/serve/utils/request_logger.py (0.23.0 to 0.33.0).
_TEXT = r"""(?:'(?:[^'\\]++|\\.)*+'|"(?:[^"\\]++|\\.)*+"|None)"""
_IDS = r"(?:\[[\d, ]*\]|\([\d, ]*\)|None)"
_ANSWER = r"Generated response (?P<id>\S+?)(?: \(streaming (?P<stream>delta|complete)\))?"
_HEAD = re.compile(r"\b(?:DEBUG|INFO|WARNING|ERROR) (\d\d-\d\d \d\d:\d\d:\d\d) ")
_RECEIVED = re.compile(
    rf"Received request (?P<id>\S+): (?:prompt: (?P<prompt>{_TEXT}), )?(?:sampling_)?params: (?P<params>.*)"
)
_RECEIVED_IDS = re.compile(rf", prompt_token_ids: (?P<prompt_ids>{_IDS}), ")
_DETAILS = re.compile(
    rf"Request (?P<id>\S+) details: prompt: (?P<prompt>{_TEXT}), prompt_token_ids: (?P<prompt_ids>{_IDS})"
)
_BODY = re.compile(r"Request (?P<id>\S+) JSON body: (?P<body>\{.*)")
_GENERATED = re.compile(
    rf"{_ANSWER}: output: (?P<text>{_TEXT})"
    rf"(?:, output_token_ids: (?P<ids>{_IDS}))?, finish_reason: (?P<end>\w+)"
)
_GENERATED_IDS = re.compile(rf"{_ANSWER} details: output_token_ids: (?P<ids>{_IDS})")
_CUT_AT = re.compile(r"max_log_len(?:'|\")?\s*[:=]\s*(\d{1,9})\b")
_MAX_TOKENS = re.compile(r"\bmax_tokens=(\d{1,9})\b")
_TEMPERATURE = re.compile(r"\btemperature=(\d+(?:\.\d+)?)\b")
_SGLANG = re.compile(
    r"\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[^\]]*\] (?:Receive|Finish): obj=GenerateReqInput\((?P<obj>.*?)"
    r"(?:\), out=(?P<out>\{.*))?\Z",
    re.DOTALL,
)
"""sgl-project/sglang, python/sglang/srt/utils/request_logger.py."""
_SGLANG_TEXT = re.compile(rf"(?:\A\{{?|, )'?text'?[=:] ?(?P<text>{_TEXT})(?P<cut> \.\.\. )?")
_SAME = 3
"""So many different prompts of one longest length look cut there."""


def is_engine_log(begin: str) -> bool:
    """Return whether a file with this beginning is vLLM's log or SGLang's."""
    return any(pattern.search(begin) for pattern in (_HEAD, _RECEIVED, _GENERATED, _SGLANG))


class EngineLog:
    """Assembles the lines of a log, in their order, into requests.

    A request has `vllm_request` (its id), `time` (seconds from an arbitrary start, because the log has no year), `body`
    (None if the log has no prompt), `prompt_token_ids`, `response`, and `cut` if `--max-log-len` cut a text.
    """

    def __init__(self) -> None:
        self._requests: dict[str, _Request] = {}
        self._lines: list[tuple[int, dict[str, Any]]] = []
        """Those of SGLang's log: the request, and the request with its answer."""
        self._cut_at: int | None = None
        self._time: float | None = None
        self._last: float | None = None
        self._years = 0.0

    def add(self, number: int, line: str, time: Any = None) -> None:
        """Add a line.

        Args:
            number: number of the line in its file.
            line: text of the line.
            time: time from the wrapper around the line, which has a year; None for the line's own.
        """
        if found := _SGLANG.search(line):
            self._lines.append((number, _read_sglang(found, time)))
            return
        if head := _HEAD.search(line):
            self._time = _seconds(head[1])
            if self._last is not None and self._time is not None and self._time < self._last - 180 * 86400:
                self._years += 366 * 86400
            self._last = self._time if self._time is not None else self._last
        if found := _CUT_AT.search(line):
            self._cut_at = int(found[1])
        for pattern in (_RECEIVED, _DETAILS, _BODY, _GENERATED, _GENERATED_IDS):
            if found := pattern.search(line):
                known = self._requests.get(_key(found["id"]))
                if known is None:
                    if pattern in (_GENERATED, _GENERATED_IDS):
                        break  # received before this log begins
                    known = self._requests[_key(found["id"])] = _Request(number, found["id"])
                if pattern is _RECEIVED:
                    known.time = time if time is not None or self._time is None else self._time + self._years
                known.add(found)
                break

    def rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield (number of the line, request) in the order in which requests were received."""
        yield from self._lines
        texts = {each.prompt for each in self._requests.values() if each.prompt}
        longest, count = max(Counter(map(len, texts)).items(), default=(0, 0))
        limit = self._cut_at or (longest if count >= _SAME else None)
        for each in self._requests.values():
            yield each.number, each.to_row(limit)


def _read_sglang(found: re.Match[str], time: Any) -> dict[str, Any]:
    """Return the row that SGLang's own JSON log has for a line (`--log-requests-format json`)."""
    asked, rest = _take_text(found["obj"])
    row: dict[str, Any] = {"timestamp": found["time"] if time is None else time, "event": "request.received"}
    row["rid"] = next(iter(re.findall(r"\brid='([^']*)'", rest)), None)
    ids = re.search(rf"\binput_ids=({_IDS})(?! \.\.\.)", rest)
    settings = {
        key: float(value) for key, value in re.findall(r"'(max_new_tokens|temperature)': (\d{1,9}(?:\.\d+)?)\b", rest)
    }
    if "max_new_tokens" in settings:
        settings["max_new_tokens"] = int(settings["max_new_tokens"])
    row["obj"] = {"text": asked, "input_ids": list(_ids(ids and ids[1])) or None, "sampling_params": settings}
    if found["out"] is not None:
        said, rest = _take_text(found["out"])
        count = re.search(r"'completion_tokens': (\d{1,9})\b", rest)
        row |= {"event": "request.finished", "out": {"text": said, "meta_info": {}}}
        row["out"]["meta_info"] = {"completion_tokens": int(count[1])} if count else {}
    return row


def _take_text(fields: str) -> tuple[str | None, str]:
    """Return the text among a line's fields, or None without one or for a cut one, and the other fields."""
    if (found := _SGLANG_TEXT.search(fields)) is None:
        return None, fields
    return None if found["cut"] else _literal(found["text"]), fields[: found.start()] + fields[found.end() :]


def _key(request: str) -> str:
    """Return what the lines of one request share: `chatcmpl-` is put before the body's id, `-0` after a prompt's."""
    return re.sub(r"-0$", "", re.sub(r"^(?:chatcmpl|cmpl|resp)[-_]", "", request))


class _Request:
    def __init__(self, number: int, request: str) -> None:
        self.number, self.id = number, request
        self.time: Any = None
        self.prompt: str | None = None
        self._prompt_ids: tuple[int, ...] = ()
        self._params = ""
        self._body: Any = None
        self._texts: dict[str, str] = {}
        self._ids: dict[str, tuple[int, ...]] = {}
        self._whole: set[str] = set()

    def add(self, found: re.Match[str]) -> None:
        given = found.groupdict()
        if given.get("prompt"):
            self.prompt = _literal(given["prompt"]) or self.prompt
        if params := given.get("params"):
            ids = _RECEIVED_IDS.search(params)
            self._params = params[: ids.start()] if ids else params
            given |= ids.groupdict() if ids else {}
        self._prompt_ids = _ids(given.get("prompt_ids")) or self._prompt_ids
        if body := given.get("body"):
            try:
                self._body = json.loads(body)
            except (ValueError, RecursionError):
                self._body = None  # cut by --max-log-len
        kind = given.get("stream") or "whole"
        if (text := given.get("text")) is not None:
            self._texts[kind] = self._texts.get(kind, "") + (_literal(text) or "")
            self._whole |= set() if given["end"] == "None" else {kind}
        if given.get("ids"):
            self._ids[kind] = self._ids.get(kind, ()) + _ids(given["ids"])

    def to_row(self, limit: int | None) -> dict[str, Any]:
        is_cut = limit is not None and not isinstance(self._body, dict) and len(self.prompt or "") == limit
        return {
            "vllm_request": self.id,
            "time": self.time,
            "kind": "pooling" if "PoolingParams" in self._params else "completion",
            "body": self._request(),
            "prompt_token_ids": list(self._prompt_ids),
            "response": self._response(limit),
            "cut": is_cut,
        }

    def _request(self) -> dict[str, Any] | None:
        if isinstance(self._body, dict):
            return self._body
        if self.prompt is None and not self._prompt_ids:
            return None
        body: dict[str, Any] = {"prompt": self.prompt or list(self._prompt_ids)}
        if found := _MAX_TOKENS.search(self._params):
            body["max_tokens"] = int(found[1])
        if found := _TEMPERATURE.search(self._params):
            body["temperature"] = float(found[1])
        return body

    def _response(self, limit: int | None) -> dict[str, Any] | None:
        kind = next((each for each in ("whole", "complete", "delta") if each in self._whole), None)
        if kind is None:
            return None
        text = self._texts[kind]
        if limit is not None and len(text) >= limit:
            return None
        ids = self._ids.get(kind) or (self._ids.get("delta", ()) if kind == "complete" else ())
        # vllm/entrypoints/openai/chat_completion/serving.py writes calls so.
        calls: dict[str, Any] = {"tool_calls": [{}]} if text.startswith("[tool_calls: ") else {}
        return {"choices": [{"message": {"content": None if calls else text, **calls}, "token_ids": list(ids)}]}


def _literal(text: str | None) -> str | None:
    try:
        value = ast.literal_eval(text or "None")
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return value if isinstance(value, str) else None


def _ids(text: str | None) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d{1,9}", text or ""))


def _seconds(text: str) -> float | None:
    try:
        return (datetime.strptime(f"2000-{text}", "%Y-%m-%d %H:%M:%S") - datetime(2000, 1, 1)).total_seconds()
    except ValueError:
        return None
