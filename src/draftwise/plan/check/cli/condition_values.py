"""Evaluates expressions from vLLM's sources over the known facts of a setup; the rest stays unknown."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final


class _Unknown:
    """The value of what cannot be told from the setup."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = _Unknown()

_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
_TYPES: Mapping[str, type] = {
    "int": int, "float": float, "str": str, "bool": bool, "dict": dict, "list": list, "tuple": tuple, "set": set,
}  # fmt: skip


def _is_pattern(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **_TYPES, "len": len, "min": min, "max": max, "any": any, "all": all, "sorted": sorted,
    "matches": lambda pattern, text: re.fullmatch(pattern, text) is not None, "is_pattern": _is_pattern,
}  # fmt: skip
_METHODS = frozenset({"lower", "upper", "strip", "split", "startswith", "endswith"})
_MOST_DIGITS = 10**6
"""Digits beyond which no power is computed, because numbers come from an operator's text."""


def decide(expression: str, names: Mapping[str, Any]) -> Any:
    """Return the value of an expression, or `UNKNOWN` if it depends on something unknown.

    Args:
        expression: from the tables `config_checks`, `config_arguments` and `engine_checks`, where `_` is unknown,
            or from `refusals.json`.
        names: values by name. A mapping represents an object. A text such as `current_platform.is_cuda()` may be a
            name too, for a call with a known result.
    """
    try:
        return _decide(_parse(expression), names)
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError):
        return UNKNOWN


def names_in(expression: str) -> frozenset[str]:
    """Return the plain names of an expression."""
    return _names(expression)


@cache
def reads_in(expression: str) -> tuple[tuple[str, ...], ...]:
    """Return the names of an expression with their attributes: `("flags", "dtype")` for `flags.dtype.lower()`."""
    return tuple(dict.fromkeys(_list_reads(_parse(expression))))


def _list_reads(node: ast.AST) -> Iterator[tuple[str, ...]]:
    match node:
        case ast.Call(func=ast.Attribute(value=owner), args=given):
            parts: list[ast.AST] = [owner, *given]
        case ast.Attribute(value=owner, attr=attr):
            yield from ((*read, attr) for read in _list_reads(owner))
            return
        case ast.Name(id=name):
            yield (name,)
            return
        case _:
            parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr | ast.comprehension)]
    for part in parts:
        yield from _list_reads(part)


@cache
def _names(expression: str) -> frozenset[str]:
    return frozenset(node.id for node in ast.walk(_parse(expression)) if isinstance(node, ast.Name))


@cache
def _parse(expression: str) -> ast.expr:
    return ast.parse(expression, mode="eval").body


def _decide(node: ast.expr, names: Mapping[str, Any]) -> Any:  # noqa: PLR0911  (one return a kind of expression)
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return names.get(name, UNKNOWN)
        case ast.Attribute(value=owner, attr=attr):
            found = _decide(owner, names)
            return found.get(attr, UNKNOWN) if isinstance(found, Mapping) else UNKNOWN
        case ast.BoolOp(op=op, values=parts):
            return _decide_junction(parts, names, wanted=isinstance(op, ast.Or))
        case ast.Compare(left=left, ops=ops, comparators=others):
            return _decide_comparison([_decide(each, names) for each in (left, *others)], ops)
        case ast.Call():
            return _decide_call(node, names)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            value = _decide(operand, names)
            return UNKNOWN if value is UNKNOWN else not value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = _decide(operand, names)
            return UNKNOWN if value is UNKNOWN else -value
        case ast.BinOp(left=left, op=op, right=right):
            return _decide_binary(_decide(left, names), op, _decide(right, names))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            chosen = _decide(test, names)
            return UNKNOWN if chosen is UNKNOWN else _decide(body if chosen else orelse, names)
        case ast.List(elts=parts):
            values = [_decide(part, names) for part in parts]
            return UNKNOWN if any(value is UNKNOWN for value in values) else values
        case ast.Subscript(value=owner, slice=ast.Constant(value=index)):
            value = _decide(owner, names)
            return UNKNOWN if value is UNKNOWN else value[index]
    return UNKNOWN


def _decide_junction(parts: Sequence[ast.expr], names: Mapping[str, Any], *, wanted: bool) -> Any:
    """Return what `and` or `or` gives: the part that decides it may stand behind one that is unknown."""
    value: Any = not wanted
    seen_unknown = False
    for part in parts:
        each = _decide(part, names)
        if each is UNKNOWN:
            seen_unknown = True
        elif bool(each) is wanted:
            return each if not seen_unknown else wanted
        else:
            value = each
    return UNKNOWN if seen_unknown else value


def _decide_binary(left: Any, op: ast.operator, right: Any) -> Any:
    if left is UNKNOWN or right is UNKNOWN or type(op) not in _BINARY:
        return UNKNOWN
    if isinstance(op, ast.Pow) and (abs(left) > _MOST_DIGITS or abs(right) > _MOST_DIGITS):
        return UNKNOWN
    return _BINARY[type(op)](left, right)


def _decide_comparison(values: Sequence[Any], ops: Sequence[ast.cmpop]) -> Any:
    """Return whether a chain of comparisons holds. One that fails decides, whatever the others say."""
    answers = [
        UNKNOWN if left is UNKNOWN or right is UNKNOWN else _COMPARED[type(op)](left, right)
        for left, op, right in zip(values, ops, values[1:], strict=False)
    ]
    if any(answer is False for answer in answers):
        return False
    return UNKNOWN if any(answer is UNKNOWN for answer in answers) else True


def _decide_call(node: ast.Call, names: Mapping[str, Any]) -> Any:
    match node.func:
        case ast.Name(id="isinstance"):
            value = _decide(node.args[0], names)
            kinds = node.args[1].elts if isinstance(node.args[1], ast.Tuple) else [node.args[1]]
            known = tuple(_TYPES[kind.id] for kind in kinds if isinstance(kind, ast.Name))
            return UNKNOWN if value is UNKNOWN else isinstance(value, known)
        case ast.Name(id=name) if name in _FUNCTIONS:
            values = [_decide_items(each, names) for each in node.args]
            return UNKNOWN if any(value is UNKNOWN for value in values) else _FUNCTIONS[name](*values)
        case ast.Attribute(value=owner, attr=attr) if attr in _METHODS:
            value, given = _decide(owner, names), [_decide(each, names) for each in node.args]
            if not isinstance(value, str) or any(each is UNKNOWN for each in given):
                return UNKNOWN
            return getattr(value, attr)(*(tuple(each) if isinstance(each, list) else each for each in given))
        case ast.Attribute(value=owner, attr="keys" | "values" as attr):
            value = _decide(owner, names)
            return list(getattr(value, attr)()) if isinstance(value, Mapping) else UNKNOWN
    return names.get(ast.unparse(node), UNKNOWN)


def _decide_items(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return an argument's value. Of a generator, the list of its values."""
    match node:
        case ast.GeneratorExp(elt=elt, generators=[ast.comprehension(target=ast.Name(id=name), iter=items)]):
            listed = _decide(items, names)
            if listed is UNKNOWN:
                return UNKNOWN
            values = [_decide(elt, {**names, name: item}) for item in listed]
            return UNKNOWN if any(value is UNKNOWN for value in values) else values
    return _decide(node, names)
