"""Extracts the MTP remap: how `hf_config_override` rewrites a target's config to draft with its MTP modules.

The function is a list of `if`s over `model_type` and `architectures[0]`. The extraction walks it once for every name
that it tests, with a made-up config of that name, and records what it writes. Values that it reads from the config stay
symbols.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from draftwise.extract.expressions import UNKNOWN, evaluate, strings
from draftwise.extract.model_registry import find_classes, read_registry
from draftwise.extract.speculative import Facts, get_config
from draftwise.extract.tree import Module, NotFound, Tree

_FUNCTION = "hf_config_override"
_PLACES = {"after the layers": re.compile(r"get_spec_layer\w*\("), "mtp": re.compile(r"""["'.]mtp[._]|model\.mtp\b""")}
"""Where a drafting class finds its modules in the target's checkpoint, by what its file says."""
_INNER = frozenset({"text_config", "get_text_config"})


@dataclass(frozen=True, slots=True)
class _Read:
    """A value that the function would read from the config; taken to be there, positive and not None."""

    name: str
    default: Any = None


@dataclass(slots=True, eq=False)
class _Config:
    """A config of which only the name is known."""

    written: dict[str, Any]
    without: str
    """Field assumed to be absent."""
    tested: set[str] = field(default_factory=set)
    """Fields whose presence the code tests."""

    def has(self, name: str) -> bool:
        self.tested.add(name)
        return name != self.without


class _Return(Exception):  # noqa: N818  (control flow, not an error)
    pass


def mtp_remap(tree: Tree) -> Facts:
    """Names in the remap: model_type, part of one, or architecture -> the draft's config.

    `by` gives the kind of key. `n_predict` names the field with the count, or is the count itself. `n_predict_default`
    applies to a config without the field. `requires` lists fields that must be present and nonzero.
    """
    module, _ = get_config(tree)
    function = module.get_function(_FUNCTION, of="SpeculativeConfig")
    source = module.source(f"SpeculativeConfig.{_FUNCTION}")
    found: Facts = {}
    for name, kind in dict.fromkeys(_tested(module, function)):
        row = _walk(module, function, name, kind)
        if row:
            found[name] = ({"by": kind, **row}, source)
    if not found:
        raise NotFound(f"vLLM {tree.version}: no remap in {module.path}")
    return found


def mtp_places(tree: Tree) -> Facts:
    """Class that drafts with a target's modules -> where it finds them in the checkpoint; left out if unclear."""
    registry = read_registry(tree)
    names = {name for row, _ in mtp_remap(tree).values() for name in row.get("architectures", ())}
    found: Facts = {}
    for name in sorted(names & registry.keys()):
        classes = find_classes(tree, *registry[name][:2])
        where, loads = next((each for each in classes if "def load_weights" in ast.unparse(each[1])), classes[0])
        if places := [place for place, pattern in _PLACES.items() if pattern.search(where.text)]:
            found[name] = (places, where.source(f"{loads.name}.load_weights"))
    return found


def _tested(module: Module, function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Yield the names that a test of the function speaks of, and what each is."""
    for node in ast.walk(function):
        match node:
            case ast.Compare(left=left, ops=[ast.Eq() | ast.In()], comparators=[right]):
                text = f"{ast.unparse(left)} {ast.unparse(right)}"
                for side in (left, right):
                    value = evaluate(module, side)
                    part = isinstance(value, str) and side is left and isinstance(node.ops[0], ast.In)
                    yield from ((name, _kind(text, part)) for name in strings(value))
            case ast.Call(func=ast.Attribute(value=ast.Set() as names, attr="intersection")):
                yield from ((name, "architecture") for name in strings(evaluate(module, names)))


def _kind(text: str, part: bool) -> str:
    if "arch" in text:
        return "architecture"
    return "part_of_model_type" if part else "model_type"


def _walk(module: Module, function: ast.FunctionDef, name: str, kind: str) -> dict[str, Any]:
    row, tested = _result(module, function, name, kind)
    needed = [field for field in sorted(tested) if _result(module, function, name, kind, without=field)[0] != row]
    return row | ({"requires": needed} if row and needed else {})


def _result(
    module: Module, function: ast.FunctionDef, name: str, kind: str, without: str = ""
) -> tuple[dict[str, Any], set[str]]:
    """Return what a config of this name becomes, and the fields whose presence was tested on the way."""
    by_architecture = kind == "architecture"
    start = {"model_type": "" if by_architecture else name, "architectures": [name if by_architecture else ""]}
    config = _Config(written=dict(start), without=without)
    with suppress(_Return):
        _Interpreter(module, config).run(function.body)
    row = {key: config.written[key] for key in start if config.written[key] != start[key]}
    count = config.written.get("n_predict", UNKNOWN)
    if isinstance(count, _Read):
        row |= {"n_predict": count.name, "n_predict_default": count.default}
    elif count is not UNKNOWN:
        row["n_predict"] = count
    return row, config.tested


class _Interpreter:
    """Runs the function's statements over symbols. What it does not know it treats as unknown and untrue."""

    def __init__(self, module: Module, config: _Config) -> None:
        self.module, self.config = module, config
        self.names: dict[str, Any] = {"hf_config": config, "transformers_mtp_overrides": None}

    def run(self, body: list[ast.stmt]) -> None:
        for statement in body:
            match statement:
                case ast.If(test=test, body=inner, orelse=orelse):
                    self.run(inner if self.holds(test) else orelse)
                case ast.Assign(targets=[target], value=value):
                    self.assign(target, self.value(value))
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    self.assign(target, self.value(value))
                case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr="update"), args=[given])):
                    changes = self.value(given)
                    if self.value(owner) is self.config and isinstance(changes, dict):
                        self.config.written |= changes
                case ast.ImportFrom(module=str() as dotted, names=aliases):
                    self.bind(dotted, aliases)
                case ast.Return() | ast.Raise():
                    raise _Return

    def bind(self, dotted: str, aliases: list[ast.alias]) -> None:
        target = self.module.tree.module(dotted)
        for alias in aliases:
            self.names[alias.name] = evaluate(target, ast.Name(alias.name)) if target else UNKNOWN

    def assign(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name(id=name):
                self.names[name] = value
            case ast.Attribute(value=owner, attr=name) if self.value(owner) is self.config:
                self.config.written[name] = value
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=key)):
                if isinstance(self.names.get(name), dict):
                    self.names[name][key] = value

    def holds(self, test: ast.expr) -> bool:
        match test:
            case ast.BoolOp(op=ast.And(), values=parts):
                return all(self.holds(part) for part in parts)
            case ast.BoolOp(op=ast.Or(), values=parts):
                return any(self.holds(part) for part in parts)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self.holds(operand)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self.compare(self.value(left), op, self.value(right))
            case ast.Call(func=ast.Name(id="hasattr"), args=[_, ast.Constant(value=str() as name)]):
                return self.config.has(name)
            case ast.Call(func=ast.Attribute(value=ast.Set() as names, attr="intersection")):
                return bool(set(strings(self.value(names))) & set(self.config.written["architectures"]))
        value = self.value(test)
        if isinstance(value, _Read):
            return self.config.has(value.name)
        return value is not UNKNOWN and bool(value)

    def compare(self, left: Any, op: ast.cmpop, right: Any) -> bool:
        symbol = next((side for side in (left, right) if isinstance(side, _Read)), None)
        if symbol:
            return self.config.has(symbol.name) if isinstance(op, ast.Gt) else isinstance(op, ast.IsNot)
        if UNKNOWN in (left, right) or not isinstance(right, (str, list, int, type(None))):
            return isinstance(op, ast.IsNot)
        match op:
            case ast.Eq():
                return bool(left == right)
            case ast.NotEq():
                return bool(left != right)
            case ast.In():
                return bool(left) and isinstance(right, (str, list)) and left in right
            case ast.Is():
                return left is right
        return False

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Name(id=name) if name in self.names:
                return self.names[name]
            case ast.NamedExpr(target=ast.Name(id=name), value=inner):
                self.names[name] = self.value(inner)
                return self.names[name]
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self.value(body if self.holds(test) else orelse)
            case ast.BoolOp(op=ast.Or(), values=[first, *_]):
                return self.value(first)
            case ast.Compare() | ast.BoolOp():
                return self.holds(node)
            case ast.Attribute(value=owner, attr=name):
                return self.read(self.value(owner), name)
            case ast.Subscript(value=owner, slice=key):
                return self.item(self.value(owner), self.value(key))
            case ast.List(elts=parts) | ast.Set(elts=parts) | ast.Tuple(elts=parts):
                return [self.value(part) for part in parts]
            case ast.Dict(keys=keys, values=values):
                return {self.value(k): self.value(v) for k, v in zip(keys, values, strict=True) if k is not None}
            case ast.Call():
                return self.call(node)
        return evaluate(self.module, node)

    def item(self, owner: Any, key: Any) -> Any:
        try:
            return owner[key]
        except (LookupError, TypeError):
            return UNKNOWN

    def read(self, owner: Any, name: str, default: Any = UNKNOWN) -> Any:
        if owner is not self.config:
            return _Read(f"{owner.name}.{name}") if isinstance(owner, _Read) else UNKNOWN
        if name in self.config.written:
            return self.config.written[name]
        if name in _INNER:
            return self.config
        return _Read(name, None if default is UNKNOWN else default)

    def call(self, node: ast.Call) -> Any:
        match node:
            case ast.Call(func=ast.Name(id="getattr"), args=[owner, ast.Constant(value=str() as name), *rest]):
                default = self.value(rest[0]) if rest else UNKNOWN
                return self.read(self.value(owner), name, default.name if isinstance(default, _Read) else default)
            case ast.Call(func=ast.Name(id="get_hf_text_config") | ast.Attribute(attr="deepcopy"), args=[inner]):
                return self.value(inner)
            case ast.Call(func=ast.Attribute(value=owner, attr="get_text_config")):
                return self.value(owner)
            case ast.Call(func=ast.Attribute(value=owner, attr="get"), args=[ast.Constant(value=str() as name), *rest]):
                found = self.value(owner)
                return (
                    _Read(f"{found.name}.{name}", self.value(rest[0]) if rest else None)
                    if isinstance(found, _Read)
                    else UNKNOWN
                )
        return UNKNOWN
