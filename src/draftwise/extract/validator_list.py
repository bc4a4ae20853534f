"""Extracts the functions with which vLLM's configs reject values, and their messages."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from draftwise.extract.config_fields import Config, config_classes
from draftwise.extract.message_texts import spell
from draftwise.extract.speculative import ARGUMENTS, Facts
from draftwise.extract.tree import Module, Tree
from draftwise.extract.vllm_flags import FRONTEND

_NAMES = ("verify", "valid", "check")
_ENGINE = ("EngineArgs", "SpeculativeConfig")
"""Classes to list in addition to flags' config classes."""


def validators(tree: Tree) -> Facts:
    """Every validator of a config (`Class.function`) and each of its messages (`Class.function: text`) -> kind.

    Kinds: pydantic's validators (`field`, `model`), `__post_init__` (`start`), and functions named verify, validate or
    check, including those of the engine's arguments (`named`). Texts have `{}` for values.
    """
    functions = [
        (f"{name}.{each.name}", kind, module, module.get_function(each.name, of=name))
        for name, (module, node) in sorted(_find_classes(tree))
        for each in node.body
        if isinstance(each, ast.FunctionDef) and (kind := _find_kind(each))
    ]
    front = tree.get(*FRONTEND)
    if function := front.find_function("validate_parsed_serve_args"):
        functions.append((function.name, "named", front, function))
    found: Facts = {}
    for symbol, kind, module, function in functions:
        for key in (symbol, *(f"{symbol}: {text}" for text in _list_refusals(function))):
            found[key] = (kind, module.source(symbol))
    return found


def _find_classes(tree: Tree) -> Iterator[tuple[str, Config]]:
    yield from config_classes(tree).items()
    arguments = tree.get(ARGUMENTS)
    for name in _ENGINE:
        match tree.resolve(arguments, name):
            case (Module() as module, ast.ClassDef() as node):
                yield name, (module, node)


def _find_kind(function: ast.FunctionDef) -> str:
    marks = [ast.unparse(mark) for mark in function.decorator_list]
    for kind in ("field", "model"):
        if any(f"{kind}_validator" in mark for mark in marks):
            return kind
    if function.name == "__post_init__":
        return "start"
    is_named = function.name.lstrip("_").startswith(_NAMES) or function.name == "create_engine_config"
    return "named" if is_named else ""


def _list_refusals(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        match node:
            case ast.Raise(exc=ast.Call(args=[said, *_])):
                yield spell(said) or ast.unparse(said)
            case ast.Raise(exc=raised):
                yield ast.unparse(raised) if raised else "raise"
            case ast.Assert(test=ast.Compare(ops=[ast.IsNot()])):
                pass  # for type checkers
            case ast.Assert(test=test, msg=said):
                yield (said and spell(said)) or f"{ast.unparse(test)} does not hold"
