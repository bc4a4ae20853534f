"""Verbs as tools of an agent: schemas of their arguments, the files they may name, and their answers as JSON."""

from __future__ import annotations

import inspect
import json
import os
import re
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime
from difflib import get_close_matches
from enum import Enum
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from draftwise.core import Finding, InvalidRequest, SpecConfig
from draftwise.core.document_schema import field_texts, json_schema
from draftwise.core.progress import Progress
from draftwise.knowledge.messages import fault, refusal
from draftwise.machine.confinement import Confinement
from draftwise.verbs.error_documents import describe_error
from draftwise.verbs.field_types import find_wrong_types
from draftwise.verbs.verb import Result, Verb, load_verb

_SCALARS: Mapping[Any, str] = {
    str: "string", Path: "string", PathLike: "string", bool: "boolean", int: "integer", float: "number",
    type(None): "null", Mapping: "object", SpecConfig: "object",
}  # fmt: skip
_BOUNDS = {"least": "minimum", "most": "maximum", "above": "exclusiveMinimum", "below": "exclusiveMaximum"}


def request_schema(request: Any, *, without: Collection[str] = ()) -> dict[str, Any]:
    """Return the JSON Schema (draft 7) of the fields of a request.

    Values that only Python has, such as functions and results of other verbs, are left out; if a field takes such a
    value or a file, the file is described.
    """
    hints, texts = get_type_hints(request, include_extras=True), field_texts(request)
    properties: dict[str, Any] = {}
    required = []
    for each in fields(request):
        members = _list_members(hints[each.name])
        if each.name in without or not members:
            continue
        schema = members[0] if len(members) == 1 else {"anyOf": members}
        if text := texts.get(each.name):
            schema = {"description": text, **schema}
        if each.default is MISSING and each.default_factory is MISSING:
            required.append(each.name)
        elif isinstance(each.default, str | bool | int | float) and each.default != "":
            schema = {**schema, "default": each.default}
        properties[each.name] = schema
    about = (inspect.getdoc(request) or "").partition("\n\n")[0].replace("\n", " ")
    return {
        "type": "object",
        "description": about,
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _list_members(kind: Any) -> list[dict[str, Any]]:
    """Return the schemas of the JSON values that a type takes, each once. None for a type without JSON."""
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, types.UnionType):
        found = [schema for each in arguments for schema in _list_members(each)]
        return [each for index, each in enumerate(found) if each not in found[:index]]
    if origin is Annotated:
        bounds = {name: getattr(arguments[1], own) for own, name in _BOUNDS.items()}
        limits = {name: bound for name, bound in bounds.items() if bound is not None}
        return [{**each, **limits} for each in _list_members(arguments[0])]
    if origin is Literal:
        return [{"enum": list(arguments)}]
    if origin in (Sequence, Iterable):
        items = _list_members(arguments[0])
        return [{"type": "array", "items": items[0] if len(items) == 1 else {"anyOf": items}}] if items else []
    if origin is Callable or not isinstance(origin, type):
        return []
    if issubclass(origin, Enum):
        return [{"enum": [each.value for each in origin]}]
    return [{"type": _SCALARS[origin]}] if origin in _SCALARS else []


LARGEST = 1_000_000
"""Maximum bytes of a call's arguments, and of its answer."""
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_OPTION = re.compile(r"'[^']*'|`draftwise mcp [^`]*`|(?<![\w`-])--?[a-z][\w-]*")
"""An option in a message; quotes hold the agent's own text, and a command for who runs the server stays as it is."""
_OTHER_NAMES = {
    "tp": ("tensor_parallel_size", "gpus"), "pp": ("pipeline_parallel_size",), "sc": ("speculative_config",),
    "from": ("before", "from_run"), "to": ("after",), "k": ("lengths", "ks"), "context": ("notes",),
    "api_key_env": ("key_variables",), "vllm_command": ("vllm",), "interval": ("interval_s",), "list": ("list_names",),
    "target": ("model",), "format": ("shape",),
}  # fmt: skip
"""Fields that options stand for under another name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """What the operator of the server allows."""

    files: Confinement
    folder: Path | None = None
    """Folder below which tools write; None for a server that only reads."""
    variables: frozenset[str] = frozenset()
    """Environment variables whose values may be sent to servers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A verb as a tool."""

    verb: str
    without: frozenset[str] = frozenset()
    """Fields of its request that an agent cannot set: those that run a command, and those that only Python has."""
    written: Mapping[str, str] = field(default_factory=dict)
    """Fields that name output, with their default below the folder (`{now}` is the time), or ""."""
    always_writes: bool = False
    is_job: bool = False
    """Whether it takes minutes and has separate calls to start, poll, stop, and get the result."""

    @property
    def request(self) -> Verb[Any, Any, Any]:
        """The verb itself."""
        return load_verb(self.verb)

    def input_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the arguments."""
        return request_schema(self.request.request, without=self.without)

    def output_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the answer."""
        document = json_schema(self.request.result, title=self.verb)
        shared: dict[str, Any] = {key: document.pop(key) for key in ("$schema", "definitions") if key in document}
        result = {key: value for key, value in document.items() if key != "title"}
        return {
            **shared,
            "type": "object",
            "properties": {
                "result": result,
                "exit_code": {"type": "integer", "description": "1 where the answer is bad news, else 0."},
                "notices": {"type": "array", "items": {"type": "object"}},
            },
            "required": ["result", "exit_code"],
        }


_USUAL = frozenset({"usual_vllm", "usual_gpu"})
_COMMANDS = frozenset({"switch", "leave", "vllm", "serve_args", "processes", "began_s"})
TOOLS: Mapping[str, Tool] = {
    tool.verb: tool
    for tool in (
        Tool(verb="check", without=_USUAL),
        Tool(verb="upgrade", without=_USUAL),
        Tool(verb="pick"),
        Tool(verb="size"),
        Tool(verb="inspect"),
        Tool(verb="explain"),
        Tool(verb="forecast", written={"out": ""}),
        Tool(verb="replay", written={"out": "profile"}, always_writes=True),
        Tool(verb="watch", without=frozenset({"once"}), written={"record_baseline": ""}),
        Tool(verb="report", without=frozenset({"exports", "write"}), written={"markdown": ""}),
        Tool(verb="compare"),
        Tool(verb="deploy", without=_USUAL, written={"out": "", "edit": ""}, always_writes=True),
        Tool(verb="decide", without=_COMMANDS, written={"out": "runs/{now}"}, always_writes=True, is_job=True),
        Tool(
            verb="calibrate", without=_COMMANDS, written={"run": "runs/{now}", "out": ""}, always_writes=True,
            is_job=True,
        ),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAnswer:
    """The answer to a call."""

    text: str
    """The result as a terminal shows it."""
    document: dict[str, Any]
    is_error: bool = False


def call(name: str, arguments: Mapping[str, Any], progress: Progress, *, permissions: Permissions) -> ToolAnswer:
    """Run a verb for an agent; errors become answers."""
    tool = TOOLS[name]
    try:
        return answer_of(tool.request.run(make_request(tool, arguments, permissions), progress))
    except Exception as error:
        return refusal_of(error, tool)


def answer_of(result: Result) -> ToolAnswer:
    """Return a result as an answer."""
    document = {
        "result": result.to_dict(),
        "exit_code": int(result.exit_code),
        "notices": [each.to_dict() for each in result.notices],
    }
    if len(json.dumps(document)) > LARGEST:
        return refusal_of(refusal("call-too-large", largest=LARGEST))
    return ToolAnswer(text=str(result), document=document)


def refusal_of(error: BaseException, tool: Tool | None = None) -> ToolAnswer:
    """Return an error as an answer that names the fields of the tool instead of options of the command line."""
    document = describe_error(error)
    text = json.dumps(document)
    if tool is not None:
        text = _OPTION.sub(lambda found: found[0] if found[0][0] in "'`" else _field_of(found[0], tool), text)
    return ToolAnswer(text=text, document=json.loads(text), is_error=True)


def make_request(tool: Tool, arguments: Mapping[str, Any], permissions: Permissions) -> Any:
    """Return the request for the arguments of a call.

    Raises:
        InvalidRequest: fields are unknown, missing or of the wrong type, or name what the server does not allow.
    """
    kind = tool.request.request
    known = tool.input_schema()["properties"]
    wrong = [*_find_unknown(arguments, known), *_find_forbidden(tool, arguments, permissions)]
    if len(json.dumps(arguments)) > LARGEST:
        wrong = [Finding.error("call-too-large", f"The arguments are larger than {LARGEST:,} bytes.")]
    wrong += [
        fault("missing-argument", name=name, known=known[name]["description"])
        for name in tool.input_schema()["required"]
        if arguments.get(name) is None
    ]
    if wrong:
        raise InvalidRequest(wrong)
    given = {name: value for name, value in arguments.items() if value is not None}
    request = kind(**{**given, **_place(tool, given, permissions)})
    if wrong := list(find_wrong_types(request)):
        raise InvalidRequest(wrong)
    return request


def _find_unknown(arguments: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[Finding]:
    for name in arguments:
        if name not in known:
            near = get_close_matches(name[:60], known, n=1)
            fix = f"Did you mean {near[0]}?" if near else f"Give some of {', '.join(known)}."
            yield Finding.error("no-such-option", f"There is no argument {name[:60]!r}.", fix=fix)


def _find_forbidden(tool: Tool, arguments: Mapping[str, Any], permissions: Permissions) -> Iterator[Finding]:
    if permissions.folder is None and (tool.always_writes or any(arguments.get(each) for each in tool.written)):
        text = "This server only reads, and the call would write files."
        yield Finding.error("not-allowed", text, fix="Start it with `draftwise mcp --write DIR`.")
    for name, value in arguments.items():
        for text in _list_texts(value):
            if name in tool.written:
                if permissions.folder is not None and (
                    "\0" in text or not permissions.files.may_write(permissions.folder / text)
                ):
                    yield fault("not-allowed", case="write", text=text[:200], folder=permissions.folder, name=name)
            elif text == "-":
                yield fault("not-allowed", case="stdin", name=name)
            elif any(_is_outside(each, permissions.files) for each in _list_paths(text)):
                yield fault("not-allowed", case="read", text=text[:200], name=name)
            secrets = _VARIABLE.findall(text) if name == "headers" else []
            secrets += [text.rpartition("=")[2]] if name == "key_variables" else []
            for secret in secrets:
                if secret not in permissions.variables:
                    yield fault("not-allowed", case="variable", secret=secret[:60], name=name)


def _list_texts(value: Any) -> Iterator[str]:
    """Yield the texts in an argument, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _list_texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _list_texts(each)


def _list_paths(text: str) -> Iterator[str]:
    """Yield what a text may name as a path: a file, one with options behind #, or one behind `NAME=` or @."""
    for each in {text, text.partition("#")[0], text.partition("=")[2], text.removeprefix("@")}:
        if each:
            yield each.removeprefix("file://")


def _is_outside(text: str, files: Confinement) -> bool:
    if "\0" in text or len(text) > 4096 or "\n" in text:
        return False
    looks_like_path = text.startswith(("/", "~", "./", "../")) or ".." in Path(text).parts
    is_path = looks_like_path and not any(map(str.isspace, text))
    return (is_path or os.path.lexists(text)) and not files.may_read(os.path.expanduser(text))


def _place(tool: Tool, given: Mapping[str, Any], permissions: Permissions) -> dict[str, Any]:
    """Return the fields that name what is written, below the folder of the server."""
    placed: dict[str, Any] = {}
    if tool.verb == "report":
        run = given.get("run")
        return {"write": permissions.folder is not None and isinstance(run, str) and permissions.files.may_write(run)}
    if permissions.folder is None:
        return placed
    now = datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    for name, default in tool.written.items():
        value = given.get(name)
        if isinstance(value, str) or (default and not given.get("resume") and not given.get("from_run")):
            placed[name] = permissions.folder / (value if isinstance(value, str) else default.format(now=now))
    return placed


def _field_of(option: str, tool: Tool) -> str:
    """Return the field that an option of the command line stands for. The option without one."""
    name = option.lstrip("-").replace("-", "_")
    candidates = (name, f"{name}s", *_OTHER_NAMES.get(name, ()))
    request: Any = tool.request.request
    known = {each.name for each in fields(request)}
    return next((each for each in candidates if each in known), option)
