"""Evaluates constant expressions in a wheel to JSON values, across its modules."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator
from typing import Any

from draftwise.extract.tree import Module, NotFound

UNKNOWN = object()
"""Result of `evaluate` for an expression that is not constant."""

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.BitOr: operator.or_,
}
_CONTAINERS: dict[str, Callable[[], Any]] = {"dict": dict, "list": list, "set": list, "tuple": list, "Counter": dict}
_WRAPPERS = frozenset(
    {"list", "tuple", "set", "frozenset", "sorted", "MappingProxyType", "cast", "int", "float", "str"}
)


def evaluate(module: Module, node: ast.expr | None) -> Any:
    """Return the JSON value of an expression (sets and tuples become lists), or `UNKNOWN`."""
    match node:
        case ast.Constant(value=value):
            return value if isinstance(value, (bool, int, float, str, type(None))) else UNKNOWN
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return _sequence(module, parts)
        case ast.Dict(keys=keys, values=values):
            return _mapping(module, keys, values)
        case ast.Name(id=name):
            return _named(module, name)
        case ast.Attribute():
            return _attribute(module, node)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = evaluate(module, operand)
            return -value if isinstance(value, (int, float)) else UNKNOWN
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            value = evaluate(module, operand)
            return UNKNOWN if value is UNKNOWN else not value
        case ast.BinOp(op=op, left=left, right=right):
            return _binary(evaluate(module, left), op, evaluate(module, right))
        case ast.Call():
            return _call(module, node)
        case ast.Subscript(value=ast.Name(id="Literal") | ast.Attribute(attr="Literal")):
            return list(literal(module, node) or ())
    return UNKNOWN


def written(module: Module, node: ast.expr | None) -> Any:
    """Return the value of an expression, or `{"expression": its text}` if it is not constant."""
    value = evaluate(module, node)
    return value if value is not UNKNOWN or node is None else {"expression": ast.unparse(node)}


def literal(module: Module, node: ast.expr) -> list[Any] | None:
    """Return the options of a Literal, including nested ones, in source order; None for any other type."""
    match node:
        case ast.Subscript(value=ast.Name(id="Literal") | ast.Attribute(attr="Literal"), slice=inner):
            parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            return list(dict.fromkeys(option for part in parts for option in _options(module, part)))
        case ast.Name() | ast.Attribute():
            found = module.tree.resolve(module, ast.unparse(node))
            if found and isinstance(found[1], ast.expr):
                return literal(found[0], found[1])
    return None


def _options(module: Module, part: ast.expr) -> list[Any]:
    nested = literal(module, part)
    if nested is not None:
        return nested
    value = evaluate(module, part)
    if value is UNKNOWN:
        raise NotFound(f"vLLM {module.tree.version}: {ast.unparse(part)} in a Literal of {module.path}")
    return [value]


def strings(value: Any) -> list[str]:
    """Return the strings of an evaluated expression: the value itself, or those in a list."""
    parts = value if isinstance(value, list) else [value]
    return [part for part in parts if isinstance(part, str)]


def members(node: ast.ClassDef) -> list[str]:
    """Return the names of an enumeration's members."""
    return [
        target.id
        for statement in node.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name) and not target.id.startswith("_")
    ]


def bases_of(module: Module, node: ast.ClassDef) -> Iterator[tuple[Module, ast.ClassDef]]:
    """Yield the direct base classes that the wheel itself defines."""
    for base in node.bases:
        name = base.value if isinstance(base, ast.Subscript) else base
        found = module.tree.resolve(module, ast.unparse(name))
        if found and isinstance(found[1], ast.ClassDef):
            yield found[0], found[1]


def attribute_of(module: Module, node: ast.ClassDef, name: str) -> tuple[Module, ast.expr] | None:
    """Return the value that a class, or its nearest base, assigns to an attribute."""
    for statement in node.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=found), value=ast.expr() as value) if found == name:
                return module, value
            case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                return module, value
    for inner, base in bases_of(module, node):
        if inherited := attribute_of(inner, base, name):
            return inherited
    return None


def method_of(module: Module, node: ast.ClassDef, name: str) -> tuple[Module, ast.ClassDef, ast.FunctionDef] | None:
    """Return a method from a class or its nearest base, with the defining module and class."""
    if function := module.find_function(name, of=node.name):
        return module, node, function
    return next((found for base in bases_of(module, node) if (found := method_of(*base, name))), None)


def returned(module: Module, function: ast.FunctionDef) -> list[Any]:
    """Return the value of every return statement of a function, or `UNKNOWN`."""
    return [evaluate(module, node.value) for node in ast.walk(function) if isinstance(node, ast.Return)]


def default_of(module: Module, value: ast.expr | None) -> Any:
    """Return a dataclass field's default from its right-hand side."""
    match value:
        case ast.Call(func=ast.Name(id="field" | "Field"), args=args, keywords=keywords):
            given = {keyword.arg: keyword.value for keyword in keywords}
            if "default_factory" in given:
                return _factory(module, given["default_factory"])
            return written(module, args[0] if args else given.get("default"))
        case ast.Call(func=ast.Name(id="get_field"), args=[cls, ast.Constant(value=str() as name)]):
            return _attribute(module, ast.Attribute(value=cls, attr=name), _raw=True)
    return written(module, value)


def _factory(module: Module, factory: ast.expr) -> Any:
    match factory:
        case ast.Lambda(body=body):
            return written(module, body)
        case ast.Name(id=name) if name in _CONTAINERS:
            return _CONTAINERS[name]()
    return {"expression": f"{ast.unparse(factory)}()"}


def _sequence(module: Module, parts: list[ast.expr]) -> Any:
    values: list[Any] = []
    for part in parts:
        starred = isinstance(part, ast.Starred)
        value = evaluate(module, part.value if isinstance(part, ast.Starred) else part)
        if value is UNKNOWN or (starred and not isinstance(value, (list, dict))):
            return UNKNOWN
        values.extend(value if starred else [value])
    return values


def _mapping(module: Module, keys: list[ast.expr | None], nodes: list[ast.expr]) -> Any:
    found: dict[Any, Any] = {}
    for key, node in zip(keys, nodes, strict=True):
        value = evaluate(module, node)
        if key is None and isinstance(value, dict):
            found |= value
            continue
        name = UNKNOWN if key is None else evaluate(module, key)
        if value is UNKNOWN or name is UNKNOWN or isinstance(name, list):
            return UNKNOWN
        found[name] = value
    return found


def _named(module: Module, name: str) -> Any:
    found = module.tree.resolve(module, name)
    if found is None or not isinstance(found[1], ast.expr):
        return UNKNOWN
    return evaluate(found[0], found[1])


def _attribute(module: Module, node: ast.Attribute, *, _raw: bool = False) -> Any:
    """Return the value of `Class.attribute` (a dataclass field's default, or an enumeration member's name)."""
    if node.attr == "value" and isinstance(node.value, ast.Attribute):
        return _enum_value(module, node.value)
    found = module.tree.resolve(module, ast.unparse(node.value))
    if found and isinstance(cls := found[1], ast.ClassDef):
        owner = found[0]
        if any("Enum" in ast.unparse(base) for base in cls.bases) and node.attr in members(cls):
            return node.attr
        assigned = attribute_of(owner, cls, node.attr)
        value = default_of(*assigned) if assigned else UNKNOWN
        return value if _raw or not (isinstance(value, dict) and "expression" in value) else UNKNOWN
    whole = module.tree.resolve(module, ast.unparse(node))
    return evaluate(whole[0], whole[1]) if whole and isinstance(whole[1], ast.expr) else UNKNOWN


def _enum_value(module: Module, member: ast.Attribute) -> Any:
    found = module.tree.resolve(module, ast.unparse(member.value))
    if found is None or not isinstance(found[1], ast.ClassDef):
        return UNKNOWN
    assigned = attribute_of(found[0], found[1], member.attr)
    return evaluate(*assigned) if assigned else UNKNOWN


def _binary(left: Any, op: ast.operator, right: Any) -> Any:
    if left is UNKNOWN or right is UNKNOWN or type(op) not in _BINARY:
        return UNKNOWN
    try:
        return _BINARY[type(op)](left, right)
    except TypeError:
        return UNKNOWN


def _call(module: Module, node: ast.Call) -> Any:
    match node:
        case ast.Call(func=ast.Name(id="get_args"), args=[inner]):
            options = literal(module, inner)
            return UNKNOWN if options is None else options
        case ast.Call(func=ast.Name(id="field" | "Field" | "get_field")):
            value = default_of(module, node)
            return UNKNOWN if isinstance(value, dict) and "expression" in value else value
        case ast.Call(func=ast.Name(id=name), args=[], keywords=[]) if name in _CONTAINERS:
            return _CONTAINERS[name]()
        case ast.Call(func=ast.Name(id=name), args=[*_, inner], keywords=[]) if name in _WRAPPERS:
            return evaluate(module, inner)
    return UNKNOWN
