"""Extracts the speculative config: methods, keys, inference of the method, and targets allowed for EAGLE-3."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from draftwise.extract.dataclass_fields import fields_of
from draftwise.extract.expressions import evaluate, literal, strings
from draftwise.extract.tree import Module, NotFound, Tree

Facts = dict[str, tuple[Any, str]]
ARGUMENTS = "vllm/engine/arg_utils.py"
_CONFIG = ("vllm/config/speculative.py", "vllm/config/__init__.py", "vllm/config.py")
_NAME = "SpeculativeConfig"
_CREATE = "create_speculative_config"
_INFERRED = "eagle"
"""Inferred from names in every release. If missing, the code has moved."""


def get_config(tree: Tree) -> tuple[Module, ast.ClassDef]:
    """Return the class of `--speculative-config`."""
    return tree.find_class(_NAME, *_CONFIG)


def methods(tree: Tree) -> Facts:
    """Every literal that `method` accepts, with the alias that lists it."""
    module, _ = get_config(tree)
    alias = module.names.get("SpeculativeMethod")
    if not isinstance(alias, ast.Subscript):
        raise NotFound(f"vLLM {tree.version}: SpeculativeMethod is no Literal in {module.path}")
    found: Facts = {}
    for group, option in _grouped(module, "SpeculativeMethod", alias):
        found.setdefault(option, ({"group": group}, module.source(group)))
    return found


def _grouped(module: Module, group: str, node: ast.Subscript) -> Iterator[tuple[str, str]]:
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    for part in parts:
        nested = module.names.get(part.id) if isinstance(part, ast.Name) else None
        if isinstance(part, ast.Name) and isinstance(nested, ast.Subscript):
            yield from _grouped(module, part.id, nested)
        else:
            yield from (
                (group, str(option)) for option in literal(module, ast.Subscript(ast.Name("Literal"), part)) or ()
            )


def spec_fields(tree: Tree) -> Facts:
    """Every key of the JSON, with type, default, bounds and choices."""
    module, node = get_config(tree)
    return {
        name: (field.row(), module.source(f"{field.owner}.{name}"))
        for name, field in fields_of(module, node).items()
        if field.init and not name.startswith("_")
    }


def spec_rules(tree: Tree) -> Facts:
    """How the JSON as a whole is read: the effect of an unknown key."""
    module, node = get_config(tree)
    arguments = tree.get(ARGUMENTS)
    source = module.source(f"decorators of {_NAME}")
    return {
        "unknown_keys": ("rejected" if _forbids_extra(module, node) else "ignored", source),
        "dashes_in_keys": ("accepted" if _takes_dashes(arguments) else "rejected", arguments.source(_CREATE)),
    }


def _forbids_extra(module: Module, node: ast.ClassDef) -> bool:
    """Say whether pydantic must forbid unknown keys, on the class or in the decorator that all share."""
    marks = [ast.unparse(mark) for mark in node.decorator_list]
    if any("forbid" in mark for mark in marks):
        return True
    shared = module.tree.resolve(module, "config")
    if "config" not in {mark.partition("(")[0] for mark in marks} or shared is None:
        return False
    return "extra='forbid'" in ast.unparse(shared[0].get_function("config"))


def _takes_dashes(arguments: Module) -> bool:
    function = arguments.get_function(_CREATE, of="EngineArgs")
    return any(".replace('-', '_')" in ast.unparse(node) for node in ast.walk(function) if isinstance(node, ast.Call))


def method_inference(tree: Tree) -> Facts:
    """How vLLM infers the method from the drafter: method -> alternatives. `order` is the order of trial.

    All entries of an alternative must match: `name` (part of the drafter's path in lower case), `architecture`,
    `model_type` (after the MTP remap), `model_type_in` (a group of the topic `methods`).
    """
    module, _ = get_config(tree)
    source = module.source(f"{_NAME}.__post_init__")
    found: dict[str, list[dict[str, str]]] = {}
    for test, method in _branches(module.get_function("__post_init__", of=_NAME)):
        alternatives = list(_alternatives(module, test))
        if alternatives:
            found.setdefault(method, []).extend(alternatives)
    if _INFERRED not in found:
        raise NotFound(f"vLLM {tree.version}: no inference from names in {module.path}")
    return {name: (tests, source) for name, tests in found.items()} | {"order": (list(found), source)}


def _branches(function: ast.FunctionDef) -> Iterator[tuple[ast.expr, str]]:
    """Yield the tests, in source order, of each `if` and `elif` whose body sets `self.method` to a constant."""
    tests = [node for node in ast.walk(function) if isinstance(node, ast.If)]
    for node in sorted(tests, key=lambda node: (node.lineno, node.col_offset)):
        for statement in node.body:
            match statement:
                case ast.Assign(targets=[ast.Attribute(attr="method")], value=ast.Constant(value=str() as method)):
                    yield node.test, method


def _alternatives(module: Module, test: ast.expr) -> Iterator[dict[str, str]]:
    match test:
        case ast.BoolOp(op=ast.Or(), values=parts):
            for part in parts:
                yield from _alternatives(module, part)
        case ast.BoolOp(op=ast.And(), values=parts):
            both: dict[str, str] = {}
            for part in parts:
                both |= next(_alternatives(module, part), {})
            if both:
                yield both
        case ast.Compare(left=left, ops=[ast.In()], comparators=[ast.Call(func=ast.Name(id="get_args"), args=[group])]):
            if ast.unparse(left).endswith(_DRAFT_TYPE):
                yield {"model_type_in": ast.unparse(group)}
        case ast.Compare(left=left, ops=[ast.In()], comparators=[right]) if ast.unparse(left).endswith(_DRAFT_TYPE):
            yield from ({"model_type": part} for part in strings(evaluate(module, right)))
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]) if ast.unparse(left).endswith(_DRAFT_TYPE):
            yield {"model_type": evaluate(module, right)}
        case ast.Compare(left=left, ops=[ast.In()], comparators=[right]):
            part, text = evaluate(module, left), ast.unparse(right)
            if isinstance(part, str) and text.endswith((".model.lower()", ".architectures")):
                yield {"name" if text.endswith("lower()") else "architecture": part}


_DRAFT_TYPE = "draft_model_config.hf_config.model_type"


def aux_targets(tree: Tree) -> Facts:
    """Parts of model_type, one of which EAGLE-3 required in the target; empty since vLLM removed the list."""
    module, _ = get_config(tree)
    function = module.get_function("_verify_args", of=_NAME)
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=listed) if name.endswith("_supported"):
                source = module.source(f"{_NAME}._verify_args {name}")
                return dict.fromkeys(evaluate(module, listed), (True, source))
            case ast.Compare(left=ast.Constant(value=str() as part), ops=[ast.NotIn()], comparators=[text]):
                if ast.unparse(text).endswith("model_type"):
                    return {part: (True, module.source(f"{_NAME}._verify_args"))}
    if "only supported for" in ast.unparse(function).lower():
        raise NotFound(f"vLLM {tree.version}: the list of EAGLE-3 targets in {module.path} is not read")
    return {}
