"""The types of a request's fields, checked before a verb runs: a program that passes another type gets a finding."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from enum import Enum
from functools import cache
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from draftwise.core.finding import Finding

__all__ = ["find_wrong_types"]

_NAMES: Mapping[Any, str] = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    PathLike: "a path",
    Path: "a path",
    Mapping: "a mapping",
    Callable: "a function",
    type(None): "None",
}
_SCALARS: Mapping[Any, Callable[[Any], bool]] = {
    Any: lambda _: True,
    object: lambda _: True,
    str: lambda value: isinstance(value, str) and "\0" not in value,
    int: lambda value: isinstance(value, Integral) and not isinstance(value, bool),
    float: lambda value: isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value),
    PathLike: lambda value: isinstance(value, PathLike) and "\0" not in str(value),
    Callable: callable,
}
_LONGEST = 60


def find_wrong_types(request: Any) -> Iterator[Finding]:
    """Yield a finding for each field of a request whose value does not have the field's type."""
    kind_of_request: Any = type(request)
    hints = _hints_of(kind_of_request)
    for each in fields(request):
        value = getattr(request, each.name)
        kind = hints[each.name]
        if value is each.default or (_fits(value, kind) and not (value == "" and PathLike in _origins_of(kind))):
            continue
        shown = repr(value)
        shown = shown if len(shown) <= _LONGEST else shown[: _LONGEST - 3] + "..."
        text = f"{each.name} must be {' or '.join(_describe(kind))}, not {shown}."
        yield Finding.error("invalid-request", text, where=each.name)


def _origins_of(kind: Any) -> set[Any]:
    """Return the types that a field accepts, without what they hold; an empty text is no path."""
    return {get_origin(each) or each for each in get_args(kind) or (kind,)}


@cache
def _hints_of(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _fits(value: Any, kind: Any) -> bool:
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, types.UnionType):
        return any(_fits(value, each) for each in arguments)
    if origin is Literal:
        return any(value == each and type(value) is type(each) for each in arguments)
    if (check := _SCALARS.get(origin)) is not None:
        return check(value)
    if origin is Mapping:
        return isinstance(value, Mapping) and all(_fits(each, arguments[1]) for each in value.values())
    if origin in (Sequence, Iterable):
        return _is_array(value) and (not _can_repeat(value) or all(_fits(each, arguments[0]) for each in value))
    return isinstance(value, origin)


def _is_array(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | bytearray | Mapping)


def _can_repeat(value: Any) -> bool:
    """Whether looking at the items leaves them there, as it does not with a generator."""
    return iter(value) is not value


def _describe(kind: Any) -> list[str]:
    """Return the accepted types in words, without repetition."""
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, types.UnionType):
        return list(dict.fromkeys(text for each in arguments for text in _describe(each)))
    if origin is Literal:
        return [f"one of {', '.join(map(str, arguments))}"]
    if origin in (Sequence, Iterable):
        return [f"a sequence ({' or '.join(_describe(arguments[0]))})"]
    if origin is Mapping:
        return [_NAMES[Mapping]]
    if isinstance(origin, type) and issubclass(origin, Enum):
        return [f"one of {', '.join(str(each.value) for each in origin)}"]
    return [_NAMES.get(origin) or f"a {origin.__name__}"]
