"""How pydantic reads a JSON value into a declared type in its lax mode: what it converts and what it refuses."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

__all__ = ["Mismatch", "coerce"]

_INTEGER = re.compile(r"[+-]?[0-9]+(_[0-9]+)*(\.0+)?")
_TRUE = frozenset({"1", "on", "t", "true", "y", "yes"})
_FALSE = frozenset({"0", "off", "f", "false", "n", "no"})
_INT_RANGE = 2**63
_UNCHECKED = frozenset({"SkipValidation", "Any"})
_OPTIONAL = "Optional"


class Mismatch(ValueError):  # noqa: N818  (it is what coerce finds, not a failure of the program)
    """The value cannot be read as the type; the message says what would be."""


def coerce(value: Any, declared: str, choices: Sequence[Any] | None = None) -> Any:
    """Return a JSON value as a pydantic field of this type would hold it.

    Args:
        value: what `json.loads` gives.
        declared: the annotation as written in the source, e.g. `int | None` or `list[tuple[int, int, int]] | None`.
        choices: what the literal types named in `declared` allow.

    Raises:
        Mismatch: pydantic would refuse it.
    """
    return _read(value, _parse(declared), choices)


@cache
def _parse(declared: str) -> ast.expr:
    return ast.parse(declared, mode="eval").body


def _read(value: Any, node: ast.expr, choices: Sequence[Any] | None) -> Any:
    members = _members(node)
    if len(members) > 1:
        return _read_union(value, members, choices)
    name = _name(node)
    if name in _UNCHECKED:
        return value
    if name == "Literal" and isinstance(node, ast.Subscript):
        return _read_choice(value, [ast.literal_eval(each) for each in _arguments(node)])
    if isinstance(node, ast.Subscript) and name in _GENERIC:
        return _GENERIC[name](value, _arguments(node), choices)
    reader = _PLAIN.get(name)
    if reader is not None:
        return reader(value)
    return _read_choice(value, choices)


def _read_union(value: Any, members: Sequence[ast.expr], choices: Sequence[Any] | None) -> Any:
    wanted = []
    for member in members:
        try:
            return _read(value, member, choices)
        except Mismatch as mismatch:
            wanted.append(str(mismatch))
    raise Mismatch(" or ".join(wanted))


def _members(node: ast.expr) -> list[ast.expr]:
    """Return the members of a union, however it is spelled."""
    if isinstance(node, ast.BinOp):
        return [*_members(node.left), *_members(node.right)]
    if isinstance(node, ast.Subscript) and _name(node) in ("Union", _OPTIONAL):
        inner = [member for argument in _arguments(node) for member in _members(argument)]
        return [*inner, ast.Constant(None)] if _name(node) == _OPTIONAL else inner
    return [node]


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Subscript):
        return _name(node.value)
    if isinstance(node, ast.Constant):
        return "None" if node.value is None else ""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _arguments(node: ast.Subscript) -> list[ast.expr]:
    return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]


def _read_int(value: Any) -> int:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return value
    if isinstance(value, float) and math.isfinite(value) and value.is_integer() and abs(value) < _INT_RANGE:
        return int(value)
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        return int(value.strip().partition(".")[0])
    raise Mismatch("an integer")


def _read_float(value: Any) -> float:
    if isinstance(value, (bool, int, float, str)):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise Mismatch("a number")


def _read_bool(value: Any) -> bool:
    if isinstance(value, str):
        if value.lower() in _TRUE | _FALSE:
            return value.lower() in _TRUE
    elif isinstance(value, (bool, int, float)) and value in (0, 1):
        return bool(value)
    raise Mismatch("true or false")


def _read_str(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise Mismatch("a string")


def _read_none(value: Any) -> None:
    if value is not None:
        raise Mismatch("null")


def _read_object(value: Any) -> Any:
    if isinstance(value, Mapping):
        return value
    raise Mismatch("an object")


def _read_choice(value: Any, choices: Sequence[Any] | None) -> Any:
    if choices is None or (isinstance(value, str) and value in choices):
        return value
    raise Mismatch("one of " + ", ".join(map(str, choices)))


def _read_list(value: Any, arguments: Sequence[ast.expr], choices: Sequence[Any] | None) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise Mismatch("a list")
    return [_read(each, arguments[0], choices) for each in value]


def _read_tuple(value: Any, arguments: Sequence[ast.expr], choices: Sequence[Any] | None) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)) or len(value) != len(arguments):
        raise Mismatch(f"a list of {len(arguments)}")
    return tuple(_read(each, argument, choices) for each, argument in zip(value, arguments, strict=True))


_PLAIN: Mapping[str, Callable[[Any], Any]] = {
    "int": _read_int,
    "float": _read_float,
    "bool": _read_bool,
    "str": _read_str,
    "None": _read_none,
    "LoadConfig": _read_object,
}
_GENERIC: Mapping[str, Callable[[Any, Sequence[ast.expr], Sequence[Any] | None], Any]] = {
    "list": _read_list,
    "tuple": _read_tuple,
}
