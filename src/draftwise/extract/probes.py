"""Finds the source locations of hand-written rules in a release."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

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
