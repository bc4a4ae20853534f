"""Handles tool calls in chat answers: allowed tools, constraints on the output, and parsing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from draftwise.engine.sampling.params import StructuredOutputsParams
from draftwise.serve.errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPart:
    """A tool call, or the next piece of its arguments."""

    index: int
    name: str | None = None
    """Name, sent with the first part of a call."""
    arguments: str
    """Arguments as JSON, or a piece of it."""


Found = tuple[str, list[CallPart]]
"""Content text, and calls."""


class ToolParser(Protocol):
    """Finds tool calls in one growing answer."""

    def feed(self, text: str) -> Found:
        """Add text of the answer; return what is certain."""

    def finish(self) -> Found:
        """Return the held-back rest of a complete answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """How a request allows or requires tools."""

    tools: list[Any]
    """Tools for the chat template."""
    make_parser: Callable[[], ToolParser] | None = None
    """Makes a parser per choice. None: the answer is always text."""
    structured_outputs: StructuredOutputsParams | None = None
    """Output format that enforces the required calls."""
    ends_in_calls: bool = True
    """Whether the finish_reason after a call is `tool_calls` (OpenAI uses `stop` if the request names the tool)."""
    parallel: bool = True
    """Whether several calls are allowed."""


def read_tools(fields: Mapping[str, Any], auto_parser: str | None) -> ToolUse | None:
    """Return how a chat request uses tools; None without tools.

    Args:
        fields: validated fields of the request.
        auto_parser: a key of TOOL_CALL_PARSERS. None: the server does not allow calls at the model's choice.

    Raises:
        RequestError: 400, tools or tool_choice are malformed, or the choice is not enabled.
    """
    tools, choice = fields.get("tools"), fields.get("tool_choice")
    if tools == []:
        raise RequestError(400, "tools must not be empty. Give a tool, or leave tools out.", param="tools")
    if not tools:
        if choice in (None, "none"):
            return None
        raise RequestError(400, "tool_choice needs tools.", param="tool_choice")
    parameters = {}
    for place, tool in enumerate(tools):
        function, schema = _read_function(f"tools[{place}]", tool)
        parameters[function] = schema
    parallel = fields.get("parallel_tool_calls", True)
    if choice == "none":
        return ToolUse(tools=tools)
    if choice in (None, "auto"):
        if auto_parser is None:
            flags = "--enable-auto-tool-choice and --tool-call-parser"
            raise RequestError(400, f'tool_choice "auto" needs a server started with {flags}.', param="tool_choice")
        return ToolUse(tools=tools, make_parser=TOOL_CALL_PARSERS[auto_parser], parallel=parallel)
    if choice == "required":
        schema = _schema_of_calls(parameters, parallel=parallel)
        make_parser = partial(_ListedCalls, ending="]")
        return ToolUse(tools=tools, make_parser=make_parser, structured_outputs=_demand(schema), parallel=parallel)
    named = choice.get("function") if isinstance(choice, dict) else None
    name = named.get("name") if isinstance(named, dict) else None
    if not isinstance(name, str):
        message = 'tool_choice must be "none", "auto", "required" or {"type": "function", "function": {"name": ...}}.'
        raise RequestError(400, message, param="tool_choice")
    if name not in parameters:
        raise RequestError(400, f"tool_choice names {name!r}, which is not one of the tools.", param="tool_choice")
    make_named, wanted = partial(_NamedCall, name), _demand(parameters[name])
    return ToolUse(tools=tools, make_parser=make_named, structured_outputs=wanted, ends_in_calls=False)


def _read_function(where: str, tool: Any) -> tuple[str, dict[str, Any]]:
    """Return a tool's name and the schema of its parameters."""
    function = tool.get("function") if isinstance(tool, dict) and tool.get("type", "function") == "function" else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        message = f'{where} must be {{"type": "function", "function": {{"name": ..., "parameters": ...}}}}.'
        raise RequestError(400, message, param="tools")
    schema = function.get("parameters")
    if not isinstance(schema, dict | None) or not isinstance((schema or {}).get("$defs", {}), dict):
        raise RequestError(400, f"{where}.function.parameters must be a JSON schema.", param="tools")
    return function["name"], schema or {"type": "object", "properties": {}}


def _demand(schema: dict[str, Any]) -> StructuredOutputsParams:
    """Return that the output be JSON of a schema, with the spaces that models put into calls and no more."""
    return StructuredOutputsParams(json=schema, whitespace_pattern=" ")


def _schema_of_calls(parameters: Mapping[str, dict[str, Any]], *, parallel: bool) -> dict[str, Any]:
    """Return the schema of a list of calls, as vLLM builds it; definitions move to its top, where references look."""
    definitions: dict[str, Any] = {}
    calls = []
    for name, schema in parameters.items():
        for key, definition in schema.get("$defs", {}).items():
            if definitions.setdefault(key, definition) != definition:
                raise RequestError(400, f"Two tools define {key!r} differently in $defs; rename one.", param="tools")
        own = {key: value for key, value in schema.items() if key != "$defs"}
        properties = {"name": {"const": name}, "parameters": own}
        calls.append(
            {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
        )
    schema = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    return schema | ({} if parallel else {"maxItems": 1}) | ({"$defs": definitions} if definitions else {})


class _NamedCall:
    """The whole answer is the arguments of one tool."""

    def __init__(self, name: str) -> None:
        self._name: str | None = name

    def feed(self, text: str) -> Found:
        name, self._name = self._name, None
        return "", [CallPart(index=0, name=name, arguments=text)] if text or name else []

    def finish(self) -> Found:
        return "", []


class _ListedCalls:
    """JSON objects one after another, each a call, with nothing but separators between them.

    Args:
        tag: may stand before the first one.
        ending: may stand behind the last one.
    """

    def __init__(self, tag: str = "", ending: str = "") -> None:
        self._tag, self._ending = tag, ending
        self._held = ""
        self._num_calls = 0
        self._is_text = False

    def feed(self, text: str) -> Found:
        self._held += text
        calls: list[CallPart] = []
        while not self._is_text:
            rest = self._held.lstrip(" \t\r\n,;[" if self._num_calls or self._ending else " \t\r\n")
            if self._tag and not self._num_calls:
                if self._tag.startswith(rest):
                    return "", calls  # perhaps its beginning
                rest = rest.removeprefix(self._tag).lstrip()
            if not rest.startswith("{"):
                self._is_text = bool(rest) and not self._num_calls and not self._ending
                break
            try:
                found, end = json.JSONDecoder().raw_decode(rest)
            except ValueError:
                return "", calls  # not complete
            except RecursionError:
                self._is_text = True
                break
            call = _as_call(found, self._num_calls)
            if call is None:
                self._is_text = True
                break
            calls.append(call)
            self._num_calls += 1
            self._held = rest[end:]
        if not self._is_text:
            return "", calls
        content, self._held = self._held, ""
        return content, calls

    def finish(self) -> Found:
        held, self._held = self._held, ""
        return "" if self._num_calls and not held.strip(f" \t\r\n,;{self._ending}") else held, []


class _TaggedCalls:
    """Text with calls in `<tool_call>` tags, each a JSON object."""

    _BEGIN, _END = "<tool_call>", "</tool_call>"

    def __init__(self) -> None:
        self._held = ""
        self._is_inside = False
        self._num_calls = 0

    def feed(self, text: str) -> Found:
        self._held += text
        content, calls = "", list[CallPart]()
        while True:
            tag = self._END if self._is_inside else self._BEGIN
            before, found, after = self._held.partition(tag)
            if not found:
                break
            self._held, self._is_inside = after, not self._is_inside
            content += self._take(before, calls) if tag == self._END else self._shown(before)
        if not self._is_inside:
            kept = next(n for n in range(len(self._BEGIN) - 1, -1, -1) if self._held.endswith(self._BEGIN[:n]))
            content += self._shown(self._held[: len(self._held) - kept])
            self._held = self._held[len(self._held) - kept :]
        return content, calls

    def finish(self) -> Found:
        held, self._held = self._held, ""
        calls: list[CallPart] = []
        return self._take(held, calls) if self._is_inside else held, calls

    def _shown(self, text: str) -> str:
        """Return text between calls, without what only parts them."""
        return "" if self._num_calls and not text.strip() else text

    def _take(self, block: str, calls: list[CallPart]) -> str:
        """Add the call of a block; return the block as content if it is no call."""
        try:
            call = _as_call(json.loads(block), self._num_calls)
        except (ValueError, RecursionError):
            call = None
        if call is None:
            return self._BEGIN + block
        calls.append(call)
        self._num_calls += 1
        return ""


_HALF = re.compile(r"[\ud800-\udfff]")
"""Half of a surrogate pair: JSON may name one by an escape, but no answer can hold it."""


def _as_call(found: Any, index: int) -> CallPart | None:
    """Return the call that a JSON value describes; None if it describes no call."""
    if not isinstance(found, dict) or not isinstance(name := found.get("name"), str) or _HALF.search(name):
        return None
    try:
        text = json.dumps(found.get("arguments", found.get("parameters", {})), ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    arguments = _HALF.sub(lambda half: f"\\u{ord(half[0]):04x}", text)
    return CallPart(index=index, name=name, arguments=arguments)


TOOL_CALL_PARSERS: dict[str, Callable[[], ToolParser]] = {
    "hermes": _TaggedCalls,
    "llama3_json": partial(_ListedCalls, tag="<|python_tag|>"),
}
"""Parsers by vLLM's name: `<tool_call>` tags (Hermes, Qwen2.5, Qwen3) and bare JSON (Llama 3.1 to 3.3)."""
