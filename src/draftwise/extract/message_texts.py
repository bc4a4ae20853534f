"""Extracts the messages that vLLM raises or logs in code used by speculation, with `{}` for values."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from draftwise.extract.speculative import Facts
from draftwise.extract.tree import Module, Tree
from draftwise.knowledge.rules import VllmRule, all_rules

_PLACES = (
    "config/*.py", "config.py", "engine/arg_utils.py", "sampling_params.py", "spec_decode/**/*.py",
    "transformers_utils/config.py", "transformers_utils/configs/eagle.py", "transformers_utils/configs/medusa.py",
    "transformers_utils/configs/mlp_speculator.py", "transformers_utils/configs/speculators/*.py",
    "v1/core/**/*.py", "v1/engine/*.py", "v1/sample/**/*.py", "v1/spec_decode/**/*.py", "v1/structured_output/**/*.py",
    "v1/worker/gpu_model_runner.py", "v1/worker/gpu_worker.py", "v1/worker/utils.py", "v1/worker/gpu/**/*.py",
    "model_executor/models/*eagle*.py", "model_executor/models/*mtp*.py", "model_executor/models/*dflash*.py",
    "model_executor/models/*dspark*.py", "model_executor/models/medusa.py", "model_executor/models/registry.py",
)  # fmt: skip
"""Files below `vllm/` used by a speculating server's configuration, start and steps."""
_LEVELS = frozenset({"warning", "warning_once", "error", "error_once", "exception", "critical"})
_ABOUT = re.compile(r"specul|draft|eagle|mtp|medusa|ngram|suffix|dflash|dspark|accept|runner|async", re.IGNORECASE)
"""An info line is kept only if it mentions one of these."""
_VALUE = re.compile(r"%(\(\w+\))?[-+ #0]*[\d.*]*[sdrfgexi%]|\{[^{}]*\}")
_SHORTEST = 16
"""Minimum letters of a message without its values: a shorter one matches too much."""


def messages(tree: Tree) -> Facts:
    """Message text -> exception class or log level, and the rules whose probe matches at its place."""
    found: Facts = {}
    for path in find_paths(tree):
        module = tree.get(path)
        sightings = list(_find_sightings(module))
        for function, first, last, level, text in _find_told(module.body, "", 0):
            if text in found or sum(map(str.isalpha, text)) < _SHORTEST:
                continue
            rules = sorted({code for code, begin, end in sightings if begin <= last and end >= first})
            value: dict[str, Any] = {"level": level, **({"rules": rules} if rules else {})}
            found[text] = (value, module.source(function) if function else module.path)
    return found


def find_paths(tree: Tree) -> list[str]:
    """Return the files of a release that a speculating server uses."""
    found = {path for place in _PLACES for path in (tree.root / "vllm").glob(place)}
    return sorted(path.relative_to(tree.root).as_posix() for path in found)


def _find_sightings(module: Module) -> Iterator[tuple[str, int, int]]:
    """Yield each rule whose pattern a file shows, with its first and last line."""
    for rule in _rules_by_file().get(module.path, ()):
        assert rule.probe is not None
        if module.tree.find(*rule.probe.files) is module:
            match = re.search(rule.probe.pattern, module.text, re.DOTALL | re.MULTILINE)
            if match:
                begin, end = (module.text.count("\n", 0, at) + 1 for at in match.span())
                yield rule.code, begin if match.start() else end, end  # from the file's begin it says what comes before


@cache
def _rules_by_file() -> dict[str, list[VllmRule]]:
    by_file: dict[str, list[VllmRule]] = {}
    for rule in all_rules().values():
        if rule.probe is not None and not rule.probe.absent:
            for path in rule.probe.files:
                by_file.setdefault(path, []).append(rule)
    return by_file


def _find_told(nodes: Iterable[ast.AST], inside: str, condition: int) -> Iterator[tuple[str, int, int, str, str]]:
    """Yield of each message its function, first and last line, level and text."""
    for node in nodes:
        name, line = inside, condition
        told: tuple[str, ast.expr] | None = None
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                name, line = f"{inside}.{node.name}".lstrip("."), 0
            case ast.If():
                line = node.lineno
            case ast.Raise(exc=ast.Call(func=ast.Name(id=raised) | ast.Attribute(attr=raised), args=[first, *_])):
                told = raised, first
            case ast.Assert(msg=ast.expr() as said):
                told = "AssertionError", said
            case ast.Call(func=ast.Attribute(value=ast.Name(id="logger"), attr=level), args=[first, *_]):
                about = level.startswith("info") and _ABOUT.search(spell(first))
                told = (level.removesuffix("_once"), first) if level in _LEVELS or about else None
        if told and (text := spell(told[1])):
            assert isinstance(node, ast.stmt | ast.expr)
            yield name, line or node.lineno, node.end_lineno or node.lineno, told[0], text
        yield from _find_told(ast.iter_child_nodes(node), name, line)


def spell(node: ast.expr) -> str:
    """Return a string expression with `{}` for values; empty for any other expression."""
    match node:
        case ast.Constant(value=str() as text):
            spelled = _VALUE.sub("{}", text)
        case ast.JoinedStr(values=parts):
            spelled = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            spelled = f"{spell(left) or '{}'}{spell(right) or '{}'}"
        case ast.Call(func=ast.Attribute(value=inner, attr="format")):
            spelled = spell(inner)
        case _:
            return ""
    return re.sub(r"\s+", " ", re.sub(r"(\{\}\s*)+\{\}", "{}", spelled)).strip()
