"""The types and ranges of a request's fields, checked before a verb runs: any other value is a finding."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from draftwise.core.finding import Finding


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers that a field accepts: `Annotated[int, Range(1)]`."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    """Exclusive lower bound."""
    below: float | None = None
    """Exclusive upper bound."""

    def __contains__(self, value: float) -> bool:
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        if self.least is not None and self.most is not None:
            return f"from {self.least:g} to {self.most:g}"
        said = {
            "{:g} or more": self.least, "above {:g}": self.above, "{:g} or less": self.most, "below {:g}": self.below,
        }  # fmt: skip
        return " and ".join(words.format(bound) for words, bound in said.items() if bound is not None)


_NAMES: Mapping[Any, str] = {
    str: "text", bool: "true or false", int: "a whole number", float: "a finite number", PathLike: "a path",
    Path: "a path", Mapping: "a mapping", Callable: "a function", type(None): "None",
}  # fmt: skip
_SCALARS: Mapping[Any, Callable[[Any], bool]] = {
    Any: lambda _: True,
    object: lambda _: True,
    str: lambda value: isinstance(value, str) and "\0" not in value,
    int: lambda value: isinstance(value, Integral) and _is_number(value),
    float: lambda value: isinstance(value, Real) and _is_number(value),
    PathLike: lambda value: isinstance(value, PathLike) and "\0" not in str(value),
    Callable: callable,
}
_LONGEST = 60
_LARGEST = 10**15
"""Largest number: beyond it nothing is counted here, and not every integer is a float."""


def find_wrong_types(request: Any, *, of: Any = None) -> Iterator[Finding]:
    """Yield a finding for each field of a request whose value does not have the field's type.

    Args:
        request: holds the values.
        of: class with the fields, if the values cannot form a request; None for the request's own class.
    """
    kind_of_request: Any = of or type(request)
    hints = _hints_of(kind_of_request)
    for each in fields(of or request):
        value = getattr(request, each.name, each.default)
        kind = hints[each.name]
        if value is each.default or (_fits(value, kind) and not (value == "" and PathLike in _origins_of(kind))):
            continue
        shown = _show(value)
        text = f"{each.name} must be {' or '.join(_find_range(value, kind) or _describe(kind))}, not {shown}."
        yield Finding.error("invalid-request", text, where=each.name)


def _show(value: Any) -> str:
    try:
        shown = repr(value)
    except ValueError:  # an integer of more digits than Python writes
        return "a longer number"
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 3] + "..."


def _origins_of(kind: Any) -> set[Any]:
    """Return the types that a field accepts, without what they hold. An empty text is no path."""
    return {get_origin(each) or each for each in get_args(kind) or (kind,)}


@cache
def _hints_of(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _fits(value: Any, kind: Any) -> bool:
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, types.UnionType):
        return any(_fits(value, each) for each in arguments)
    if origin is Annotated:
        return _fits(value, arguments[0]) and value in arguments[1]
    if origin is Literal:
        return any(value == each and type(value) is type(each) for each in arguments)
    if (check := _SCALARS.get(origin)) is not None:
        return check(value)
    if origin is Mapping:
        return isinstance(value, Mapping) and all(_fits(each, arguments[1]) for each in value.values())
    if origin in (Sequence, Iterable):
        return _is_array(value) and (not _can_repeat(value) or all(_fits(each, arguments[0]) for each in value))
    return isinstance(value, origin)


def _is_number(value: Any) -> bool:
    """Whether a real value is a number that counts or measures something: finite, not too large, not a truth value."""
    return not isinstance(value, bool) and bool(abs(value) <= _LARGEST)


def _is_array(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | bytearray | Mapping)


def _can_repeat(value: Any) -> bool:
    """Whether looking at the items leaves them there, as it does not with a generator."""
    return iter(value) is not value


def _find_range(value: Any, kind: Any) -> list[str]:
    """Return the range that a value of the right type lies out of, in words. Empty for another fault."""
    if get_origin(kind) is Annotated:
        of, within = get_args(kind)
        return [str(within)] if _fits(value, of) else []
    if get_origin(kind) in (Union, types.UnionType):
        return [text for each in get_args(kind) for text in _find_range(value, each)]
    return []


def _describe(kind: Any) -> list[str]:
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, types.UnionType):
        return list(dict.fromkeys(text for each in arguments for text in _describe(each)))
    if origin is Annotated:
        return _describe(arguments[0])
    if origin is Literal:
        return [f"one of {', '.join(map(str, arguments))}"]
    if origin in (Sequence, Iterable):
        return [f"a sequence ({' or '.join(_describe(arguments[0]))})"]
    if origin is Mapping:
        return [_NAMES[Mapping]]
    if isinstance(origin, type) and issubclass(origin, Enum):
        return [f"one of {', '.join(str(each.value) for each in origin)}"]
    return [_NAMES.get(origin) or f"a {origin.__name__}"]
