"""Assembles logged streams: server-sent events, or lists of chunks, become the body of an answer."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from draftwise.workloads.other_apis import is_piece, to_answer

_BEGIN = re.compile(r"\s*(?:(?::|event:|id:|retry:)[^\r\n]*[\r\n]\s*)*data:\s*(?:\{|\[DONE\])")
_MIDDLE = re.compile(r"\s*data: ?\{.*^data: ?\[DONE\]\s*\Z", re.MULTILINE | re.DOTALL)
"""A stream of which the first event is cut."""
_QUOTED = re.compile(r"""b?["'](?:data: ?[{\[]|event: ?\w)""")
_NEWLINE = re.compile(r"\r\n|\n|\r")
"""Line ends of server-sent events; `splitlines` also cuts at U+2028, which JSON may hold as it is."""
_DONE = "[DONE]"
_CUT = {"cut": True}
"""The body of a stream that was cut off: what is there is no answer."""
_TEXTS = ("content", "text", "reasoning_content", "reasoning", "refusal")
_LISTS = ("token_ids", "prompt_token_ids")

Chunk = Mapping[str, Any]


def find_stream(value: Any) -> str | Sequence[Any] | None:
    """Return the text or chunks of a logged answer that is a stream; None if it is plain text or a body.

    Loggers also store streams as lists of lines, quoted as JSON or as Python bytes, and as one chunk per line.
    """
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        if all(isinstance(each, str) for each in value):
            return find_stream("\n".join(value))
        return value if _is_chunk(value[0]) else None
    if not isinstance(value, str):
        return None
    if _QUOTED.match(value):
        try:
            read = ast.literal_eval(value) if value.startswith("b") else json.loads(value)
        except (TypeError, ValueError, SyntaxError, RecursionError, MemoryError):
            return "data: {"  # cut
        return find_stream(read.decode(errors="replace") if isinstance(read, bytes) else read)
    if _BEGIN.match(value) or _MIDDLE.match(value.partition("\n")[2]):
        return value
    if value.startswith("{") and _is_chunk(_parse(_NEWLINE.split(value, maxsplit=1)[0])):
        return [_parse(line) for line in _NEWLINE.split(value) if line.strip()]
    return None


def assemble(value: Any) -> Chunk:
    """Return the body of the answer in a stream.

    Reads chunks of chat and text completions (choice by choice, usage from the last chunk that has it), events of the
    Responses API, those of Anthropic's Messages API, which vLLM also serves, and pieces of other APIs. A truncated
    stream gives `{"cut": true}`, and one that ended in an error `{"error": ...}`.
    """
    chunks = list(_events(value)) if isinstance(value, str) else list(value)
    done = any(chunk == _DONE for chunk in chunks)
    bodies = [chunk for chunk in chunks if isinstance(chunk, Mapping)]
    if error := next((each["error"] for each in bodies if each.get("error")), None):
        return {"error": error}
    if None in chunks or (isinstance(value, str) and not _BEGIN.match(value)):
        return _CUT
    if (answer := to_answer(bodies)) is not None:
        return answer
    if any(isinstance(each.get("choices"), list) for each in bodies):
        return _completion(bodies, done=done)
    kinds = {each.get("type"): each for each in bodies if isinstance(each.get("type"), str)}
    if "message_start" in kinds:
        return _message(bodies) if "message_stop" in kinds else _CUT
    ends = (kinds.get(f"response.{end}") for end in ("completed", "incomplete", "failed"))
    whole = next((each["response"] for each in ends if each and isinstance(each.get("response"), Mapping)), None)
    return whole if whole is not None else _CUT


def _is_chunk(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    choices = value.get("choices")
    if not isinstance(choices, list):
        return value.get("type") in ("message_start", "response.created") or "delta" in value or is_piece(value)
    return str(value.get("object", "")).endswith(".chunk") or any("delta" in each for each in _mappings(choices))


def _events(text: str) -> Iterator[Any]:
    """Yield what the events of a stream hold: bodies, `[DONE]`; None for one that cannot be read."""
    data: list[str] = []
    for line in (*_NEWLINE.split(text), ""):
        if line.startswith("data:"):
            data.append(line.removeprefix("data:").removeprefix(" "))
            # Loggers that drop the empty lines between events leave one event a line.
            if (event := _parse("\n".join(data))) is None:
                continue
        elif line.strip() or not data:
            continue
        else:
            event = _parse("\n".join(data))
        data = []
        yield event


def _parse(text: str) -> Any:
    if text.strip() == _DONE:
        return _DONE
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, Mapping) else None


def _completion(chunks: Sequence[Chunk], *, done: bool) -> Chunk:
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for part in _mappings(chunk.get("choices")):
            index = part.get("index")
            choice = choices.setdefault(index if isinstance(index, int) else 0, {})
            _add(choice, part)
            if isinstance(delta := part.get("delta") or part.get("message"), Mapping):
                _add(choice.setdefault("message", {}), delta)
    if not done and not any(choice.get("finish_reason") for choice in choices.values()):
        return _CUT
    usage = next((chunk["usage"] for chunk in reversed(chunks) if isinstance(chunk.get("usage"), Mapping)), None)
    prompt = next((chunk["prompt_token_ids"] for chunk in chunks if chunk.get("prompt_token_ids")), None)
    return {
        "choices": [choices[index] for index in sorted(choices)],
        **({"usage": usage} if usage else {}),
        **({"prompt_token_ids": prompt} if prompt else {}),
    }


def _add(whole: dict[str, Any], part: Chunk) -> None:
    """Add a piece of a choice or message: texts and lists grow, calls by their index, the last of anything else."""
    for key in _TEXTS:
        if isinstance(part.get(key), str):
            whole[key] = whole.get(key, "") + part[key]
    for key in _LISTS:
        if isinstance(part.get(key), list):
            whole[key] = whole.get(key, []) + part[key]
    if isinstance(logprobs := part.get("logprobs"), Mapping):
        known = whole.setdefault("logprobs", {})
        for key, values in logprobs.items():
            if isinstance(values, list):
                known[key] = known.get(key, []) + values
    if part.get("finish_reason") is not None:
        whole["finish_reason"] = part["finish_reason"]
    if calls := _mappings(part.get("tool_calls")):
        _add_calls(whole.setdefault("tool_calls", []), calls)
    if part.get("function_call"):
        whole["function_call"] = part["function_call"]


def _add_calls(whole: list[dict[str, Any]], parts: Iterable[Chunk]) -> None:
    for part in parts:
        index = part.get("index", 0)
        known = next((each for each in whole if each["index"] == index), None)
        if known is None:
            known = {"index": index, "type": "function", "function": {"name": "", "arguments": ""}}
            whole.append(known)
        if part.get("id"):
            known["id"] = part["id"]
        function = part.get("function")
        for key in ("name", "arguments"):
            if isinstance(function, Mapping) and isinstance(function.get(key), str):
                known["function"][key] += function[key]


def _message(chunks: Sequence[Chunk]) -> Chunk:
    """Return the message of a stream of Anthropic's Messages API (docs.anthropic.com, Streaming Messages)."""
    blocks: dict[Any, dict[str, Any]] = {}
    usage: dict[str, Any] = {}
    for chunk in chunks:
        start = chunk.get("message")
        for place in (start if isinstance(start, Mapping) else {}, chunk):
            if isinstance(place.get("usage"), Mapping):
                usage |= place["usage"]
        if isinstance(block := chunk.get("content_block"), Mapping):
            blocks[str(chunk.get("index"))] = dict(block)
        delta = chunk.get("delta")
        if isinstance(delta, Mapping) and isinstance(delta.get("text"), str):
            block = blocks.setdefault(str(chunk.get("index")), {"type": "text"})
            text = block.get("text")
            block["text"] = (text if isinstance(text, str) else "") + delta["text"]
    return {"type": "message", "role": "assistant", "content": list(blocks.values()), "usage": usage}


def _mappings(values: Any) -> list[Chunk]:
    return [each for each in values if isinstance(each, Mapping)] if isinstance(values, list) else []
