"""Finds hand-written rules in a release, and computes digests of the functions behind them, which show changes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from draftwise.extract.message_texts import find_paths
from draftwise.extract.speculative import Facts
from draftwise.extract.tree import Module, Tree
from draftwise.knowledge.rules import Probe, all_rules


@dataclass(frozen=True, slots=True)
class Sighting:
    """A source location that shows a rule."""

    module: Module | None
    """The file searched; None if the rule is an absence and the release lacks the file."""
    match: re.Match[str] | None = None
    """The match; None if the rule is an absence."""

    @property
    def where(self) -> str:
        """File, and the class, function or name around the match; empty without a file."""
        if self.module is None or self.match is None:
            return self.module.path if self.module else ""
        text = self.match.group()
        start = self.match.start() + len(text) - len(text.lstrip())
        symbol = ".".join(_names_around(self.module.body, self.match.string.count("\n", 0, start) + 1))
        return self.module.source(symbol) if symbol else self.module.path


def probes(tree: Tree) -> Facts:
    """Code of each rule found in the release -> its location."""
    found: Facts = {}
    for rule in all_rules().values():
        if rule.probe and (sighting := find_rule(rule.probe, tree)) and (where := sighting.where):
            found[rule.code] = (where, where)
    return found


def find_rule(probe: Probe, tree: Tree) -> Sighting | None:
    """Return the location of a rule in the first of the probe's files that the release has; None if not found."""
    module = tree.find(*probe.files)
    match = re.search(probe.pattern, module.text, re.DOTALL | re.MULTILINE) if module else None
    if probe.absent:
        return None if match else Sighting(module)
    return Sighting(module, match) if match else None


def _names_around(body: Sequence[ast.AST], line: int) -> list[str]:
    """Return the names of the definitions, or of the assignment, that a line is part of, the outermost first."""
    for node in body:
        first = min((each.lineno for each in getattr(node, "decorator_list", ())), default=getattr(node, "lineno", 0))
        if not first <= line <= (getattr(node, "end_lineno", None) or 0):
            continue
        match node:
            case ast.ClassDef(name=name, body=inner):
                return [name, *_names_around(inner, line)]
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                return [name]
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                return [name]
            case _:
                return _names_around(list(ast.iter_child_nodes(node)), line)
    return []


_CITED = re.compile(r"(vllm/[\w/]+\.py): ([\w.]+)")
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_TOO_COMMON = frozenset({"__init__", "__post_init__", "forward", "load_model", "propose", "get", "add"})
"""Names whose calls do not identify a function."""


def judged(tree: Tree) -> Facts:
    """Function behind a rule -> digests of its code, its errors, and the conditions of its calls."""
    found = dict(_find_functions(tree))
    names = {symbol.rpartition(".")[2] for symbol in found} - _TOO_COMMON
    called = _find_calls(tree, names)
    facts: Facts = {}
    for symbol, (module, function) in found.items():
        value = {
            "code": _digest([ast.dump(statement) for statement in _without_docstring(function)]),
            "refusals": _digest(sorted(_list_refusals(function, []))),
            "callers": _digest(sorted(called.get(function.name, ()))),
        }
        facts[symbol] = (value, module.source(symbol))
    return facts


def _find_functions(tree: Tree) -> Iterator[tuple[str, tuple[Module, _Function]]]:
    """Yield the functions that rules cite, or that their probes are seen in, as far as the release has them."""
    cited = [match.groups() for rule in all_rules().values() for match in _CITED.finditer(rule.source)]
    seen = [match.groups() for where, _ in probes(tree).values() if (match := _CITED.fullmatch(where))]
    for path, symbol in dict.fromkeys([*seen, *cited]):
        module = tree.find(path)
        owner, _, name = symbol.rpartition(".")
        function = module and _find_function(module, name, owner)
        if module and function:
            yield symbol, (module, function)


def _find_function(module: Module, name: str, owner: str) -> _Function | None:
    scope: list[ast.stmt] = module.body
    for part in filter(None, owner.split(".")):
        scope = [each for node in scope if isinstance(node, ast.ClassDef) and node.name == part for each in node.body]
    return next((node for node in reversed(scope) if isinstance(node, _Function) and node.name == name), None)


def _without_docstring(function: _Function) -> list[ast.stmt]:
    first = function.body[0]
    has_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return function.body[1:] if has_docstring else function.body


def _list_refusals(node: ast.AST, conditions: list[str]) -> Iterator[str]:
    """Yield each `raise` and `assert` with the conditions that it stands under. What it says does not count."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Raise):
            raised = child.exc.func if isinstance(child.exc, ast.Call) else child.exc
            yield " & ".join([*conditions, "" if raised is None else ast.dump(raised)])
        elif isinstance(child, ast.Assert):
            yield " & ".join([*conditions, ast.dump(child.test)])
        inner = [*conditions, ast.dump(child.test)] if isinstance(child, ast.If) else conditions
        yield from _list_refusals(child, inner)


def _find_calls(tree: Tree, names: set[str]) -> Mapping[str, set[str]]:
    """Return the conditions under which functions of these names are called, around speculation."""
    called: dict[str, set[str]] = {}
    wanted = re.compile("|".join(rf"\b{name}\(" for name in sorted(names)) or r"(?!)")
    for path in find_paths(tree):
        module = tree.get(path)
        if wanted.search(module.text):
            for statement in module.body:
                for name, conditions in _walk_calls(statement, []):
                    if name in names:
                        called.setdefault(name, set()).add(" & ".join(conditions))
    return called


def _walk_calls(node: ast.AST, conditions: list[str]) -> Iterator[tuple[str, list[str]]]:
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            yield name, conditions
        case ast.If(test=test):
            conditions = [*conditions, ast.dump(test)]
        case ast.BoolOp():
            conditions = [*conditions, ast.dump(node)]
    for child in ast.iter_child_nodes(node):
        yield from _walk_calls(child, conditions)


def _digest(parts: list[str]) -> str:
    return sha256("\n".join(parts).encode()).hexdigest()[:10]
