"""JSON Schema of the requests of verbs, from the fields of their classes."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from enum import Enum
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from draftwise.core import SpecConfig
from draftwise.core.document_schema import field_texts

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
