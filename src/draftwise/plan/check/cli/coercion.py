"""The speculative JSON as the release's fields read it: unknown keys, wrong types, values out of range, repeats."""

from __future__ import annotations

import ast
import json
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any

from draftwise.core import Ruling
from draftwise.knowledge.flag_types import SPEC_FLAGS
from draftwise.knowledge.methods import find_method, methods_where
from draftwise.knowledge.vllm import Span, history
from draftwise.plan.check.stages import Context, Step

_LIMITS: Mapping[str, tuple[str, Callable[[float, float], bool]]] = {
    "gt": ("greater than", operator.gt),
    "ge": ("at least", operator.ge),
    "lt": ("less than", operator.lt),
    "le": ("at most", operator.le),
}
_SHOWN_CHOICES = 14
_INTEGER = re.compile(r"[+-]?[0-9]+(_[0-9]+)*(\.0+)?")
_TRUE = frozenset({"1", "on", "t", "true", "y", "yes"})
_FALSE = frozenset({"0", "off", "f", "false", "n", "no"})
_INT_RANGE = 2**63
_UNCHECKED = frozenset({"SkipValidation", "Any", "object"})
_OPTIONAL = "Optional"


@dataclass(frozen=True, slots=True)
class Fields:
    """The typed values of one speculative JSON."""

    values: Mapping[str, Any]
    """Every field of the release: given values as vLLM reads them, else defaults. Faulty keys are absent."""
    given: frozenset[str]
    """Fields that the JSON or a `--spec-*` flag sets."""
    faulty: frozenset[str]
    """Fields whose value the release rejects."""


def read_fields(context: Context) -> Step[Fields]:
    """Read a speculative JSON into the release's fields, and yield what is wrong with it."""
    table = context.release.table("spec_fields")
    values = {name: row.get("default") for name, row in table.items()}
    yield from _find_doubled(context)
    raw = context.keys if context.rules.holds("dashed-key") else context.spec or {}
    for key, value in raw.items():
        if key not in table:
            since = _tell_history(history("spec_fields", key))
            fix = _suggest_key(key, table)
            yield from context.rules.ruling("unknown-key", key=key, since=since, fix=fix)
            yield from context.rules.ruling("ignored-key", key=key, since=since, fix=fix)
            continue
        try:
            values[key] = _read_value(context, key, value, table[key])
        except _OutOfRange as limit:
            del values[key]
            yield from context.rules.ruling("value-out-of-range", key=key, limit=limit, value=json.dumps(value))
        except Mismatch as mismatch:
            del values[key]
            yield from _find_mismatch(context, key, value, table[key].get("choices"), mismatch)
    faulty = frozenset(table) - frozenset(values)
    return Fields(values=values, given=frozenset(raw) & frozenset(table), faulty=faulty)


def _find_doubled(context: Context) -> Iterator[Ruling]:
    for flag in context.doubled:
        option, key = "--" + flag.replace("_", "-"), SPEC_FLAGS[flag]
        texts = {}
        if context.verifier is not None:
            text = f"{option} is also the key {key!r} in the settings of the checkpoint that is served"
            texts = {"message": f"{text}; vLLM rejects both together.", "fix": f"Remove {option}."}
        yield from context.rules.ruling("spec-flag-repeats-key", option=option, key=key, **texts)


def _tell_history(spans: Sequence[Span]) -> str:
    if not spans:
        return ""
    first, last = spans[0], spans[-1]
    until = f" to {last.until}" if last.until is not None else " on"
    return f"; it exists from {first.since}{until}"


def _suggest_key(key: str, table: Mapping[str, Any]) -> str:
    near = get_close_matches(key.replace("-", "_"), table, n=1, cutoff=0.7)
    if near:
        return f"Did you mean {near[0]!r}?"
    return "Remove it from the JSON."


def _read_value(context: Context, key: str, value: Any, row: Mapping[str, Any]) -> Any:
    """Return a value as vLLM reads it. Mismatch or _OutOfRange where it is refused."""
    if key == "num_speculative_tokens" and context.rules.holds("tokens-unvalidated"):
        return value
    if key == "attention_backend" and isinstance(value, str):
        value = None if value.lower() == "auto" else value.upper()
    return coerce_field(row, value)


def coerce_field(row: Mapping[str, Any], value: Any) -> Any:
    """Return a value as its field stores it; raises Mismatch for another type, _OutOfRange beyond its limits."""
    value = coerce(value, row["type"], row.get("choices"))
    for name, (words, is_within) in _LIMITS.items():
        limit = row.get(name)
        if limit is not None and isinstance(value, (int, float)) and not is_within(value, limit):
            raise _OutOfRange(f"{words} {limit}")
    if isinstance(value, (list, dict)) and len(value) < row.get("min_length", 0):
        raise _OutOfRange(f"of {row['min_length']} entries or more")
    return value


def _find_mismatch(
    context: Context, key: str, value: Any, choices: Sequence[Any] | None, mismatch: Mismatch
) -> Iterator[Ruling]:
    written = json.dumps(value)
    if not choices or not (isinstance(value, str) or key == "method"):
        yield from context.rules.ruling("wrong-type", key=key, mismatch=mismatch, written=written)
        return
    near = get_close_matches(str(value).lower(), [str(each) for each in choices], n=1, cutoff=0.6)
    fix = f'Did you mean "{near[0]}"?' if near else "Use one of " + _shorten(choices) + "."
    if key == "method":
        value = str(value)
        since = _tell_history(history("methods", value))
        if not near and not since:
            fix = _tell_method(value, fix)
        if (found := find_method(value)) is not None and found.distribution:
            fix = f"{found.distribution} adds it to the embedded engine: `draftwise serve` runs it. {fix}"
        yield from context.rules.ruling("unknown-method", written=written, since=since, where=key, fix=fix)
    else:
        yield from context.rules.ruling("unknown-choice", key=key, written=written, fix=fix)


def _tell_method(name: str, choices: str) -> str:
    """Return what to write for a method by another name, for a misspelled one of other releases. Else the choices."""
    from draftwise.knowledge.terms import find_term  # read only for such a name

    if (term := find_term(name)) is not None:
        return term.text
    known = {each: [*history("methods", each)] for each in methods_where()}
    near = get_close_matches(name.lower(), [each for each in known if known[each]], n=1, cutoff=0.6)
    return f'Did you mean "{near[0]}"? {_tell_history(known[near[0]])[2:].capitalize()}. {choices}' if near else choices


def _shorten(choices: Sequence[Any]) -> str:
    """Return the choices as text, without the old names of mtp and cut after a dozen or so."""
    shown = [str(each) for each in choices if not str(each).endswith("_mtp")]
    return ", ".join(shown[:_SHOWN_CHOICES]) + (", ..." if len(shown) > _SHOWN_CHOICES else "")


class Mismatch(ValueError):  # noqa: N818  (it is what coerce finds, not a failure of the program)
    """The value cannot be read as the type; the message says what can."""

    inside: tuple[Any, ...] = ()
    """Keys that lead to a refused value inside of the value, and that value; empty for the value as a whole."""


class _OutOfRange(Mismatch):
    """The value is of the right type and beyond a limit, which the message says."""


def coerce(value: Any, declared: str, choices: Sequence[Any] | None = None) -> Any:
    """Return a JSON value as a pydantic field of this type stores it.

    Args:
        value: a value from `json.loads`.
        declared: annotation as written in the source, e.g. `int | None` or `list[tuple[int, int, int]] | None`.
        choices: values that the literal types in `declared` allow.

    Raises:
        Mismatch: pydantic would reject it.
    """
    return _read_as(value, _parse_type(declared), choices)


@cache
def _parse_type(declared: str) -> ast.expr:
    return ast.parse(declared, mode="eval").body


def _read_as(value: Any, node: ast.expr, choices: Sequence[Any] | None) -> Any:
    members = _union_members(node)
    if len(members) > 1:
        return _read_union(value, members, choices)
    name = _type_name(node)
    if name in _UNCHECKED:
        return value
    if name == "Literal" and isinstance(node, ast.Subscript):
        return _read_choice(value, [ast.literal_eval(each) for each in _type_arguments(node)])
    if isinstance(node, ast.Subscript) and name in _GENERIC:
        return _GENERIC[name](value, _type_arguments(node), choices)
    reader = _PLAIN.get(name)
    if reader is not None:
        return reader(value)
    return _read_choice(value, choices)


def _read_union(value: Any, members: Sequence[ast.expr], choices: Sequence[Any] | None) -> Any:
    wanted = []
    for member in members:
        try:
            return _read_as(value, member, choices)
        except Mismatch as mismatch:
            wanted.append(mismatch)
    raise next((each for each in wanted if each.inside), Mismatch(" or ".join(map(str, wanted))))


def _union_members(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp):
        return [*_union_members(node.left), *_union_members(node.right)]
    if isinstance(node, ast.Subscript) and _type_name(node) in ("Union", _OPTIONAL):
        inner = [member for argument in _type_arguments(node) for member in _union_members(argument)]
        return [*inner, ast.Constant(None)] if _type_name(node) == _OPTIONAL else inner
    return [node]


def _type_name(node: ast.expr) -> str:
    if isinstance(node, ast.Subscript):
        return _type_name(node.value)
    if isinstance(node, ast.Constant):
        return "None" if node.value is None else ""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _type_arguments(node: ast.Subscript) -> list[ast.expr]:
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
    if choices is None or any(value == choice and type(value) is type(choice) for choice in choices):
        return value
    raise Mismatch("one of " + ", ".join(map(str, choices)))


def _read_list(value: Any, arguments: Sequence[ast.expr], choices: Sequence[Any] | None) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise Mismatch("a list")
    return [_read_as(each, arguments[0], choices) for each in value]


def _read_tuple(value: Any, arguments: Sequence[ast.expr], choices: Sequence[Any] | None) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)) or len(value) != len(arguments):
        raise Mismatch(f"a list of {len(arguments)}")
    return tuple(_read_as(each, argument, choices) for each, argument in zip(value, arguments, strict=True))


def _read_dict(value: Any, arguments: Sequence[ast.expr], choices: Sequence[Any] | None) -> dict[Any, Any]:
    taken = {}
    for key, each in _read_object(value).items():
        name = _read_as(key, arguments[0], None)
        try:
            taken[name] = _read_as(each, arguments[1], choices)
        except Mismatch as mismatch:
            mismatch.inside = (key, *(mismatch.inside or (each,)))
            raise
    return taken


def _read_class(_value: Any, _arguments: Sequence[ast.expr], _choices: Sequence[Any] | None) -> Any:
    """Refuse everything: nothing that is written stands for a class."""
    raise Mismatch("a class")


_PLAIN: Mapping[str, Callable[[Any], Any]] = {
    "int": _read_int,
    "float": _read_float,
    "bool": _read_bool,
    "str": _read_str,
    "None": _read_none,
    "dict": _read_object,
    "Path": _read_str,
    "LoadConfig": _read_object,
}


_GENERIC: Mapping[str, Callable[[Any, Sequence[ast.expr], Sequence[Any] | None], Any]] = {
    "list": _read_list,
    "set": _read_list,
    "tuple": _read_tuple,
    "dict": _read_dict,
    "type": _read_class,
}
