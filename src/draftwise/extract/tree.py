"""Finds modules and names in an unpacked wheel by parsing its source, without importing vLLM."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path


class NotFound(LookupError):  # noqa: N818  (a noun, as the house's other errors)
    """The release lacks a file or symbol that the extraction relies on, so the extraction needs a fix."""


@dataclass(frozen=True, slots=True)
class Import:
    """A name bound by an import: a module, or a name inside one."""

    module: str
    name: str | None = None


_OTHER_PLATFORM = re.compile(r"current_platform\.is_(?!cuda)\w+\(\)")
"""Tests that are false on an NVIDIA GPU."""

Binding = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.expr | Import


@dataclass(frozen=True, eq=False)
class Module:
    """One source file."""

    tree: Tree = field(repr=False)
    path: str
    """Path inside the wheel, such as `vllm/config/speculative.py`."""

    @cached_property
    def text(self) -> str:
        return (self.tree.root / self.path).read_text(encoding="utf-8")

    @property
    def body(self) -> list[ast.stmt]:
        return _parse(self.text)

    @cached_property
    def outline(self) -> list[ast.stmt]:
        """Statements of the file, without function bodies."""
        return _outline(self.text)

    @cached_property
    def dotted(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @cached_property
    def package(self) -> str:
        return self.dotted if self.path.endswith("__init__.py") else self.dotted.rpartition(".")[0]

    @cached_property
    def names(self) -> dict[str, Binding]:
        """Binding of each top-level name. A name under TYPE_CHECKING takes precedence over its run-time substitute."""
        found: dict[str, Binding] = {}
        for name, binding, nested in _bindings(self.outline, self.package):
            if not (nested and name in found):
                found[name] = binding
        return found

    def inside(self, function: ast.FunctionDef) -> Module:
        """Return this file from a function's scope, with the names that the function imports and binds."""
        inner = Module(self.tree, self.path)
        local = {name: binding for name, binding, _ in _bindings(function.body, self.package)}
        vars(inner)["names"] = {**self.names, **local}
        return inner

    def source(self, symbol: str) -> str:
        """Return the citation of a fact from this file."""
        return f"{self.path}: {symbol}"

    def get_class(self, name: str) -> ast.ClassDef:
        """Return a class of this file, without method bodies. Raises NotFound if there is no such class."""
        found = self.names.get(name)
        if not isinstance(found, ast.ClassDef):
            raise NotFound(f"vLLM {self.tree.version}: no class {name} in {self.path}")
        return found

    def get_function(self, name: str, *, of: str | None = None) -> ast.FunctionDef:
        """Return a function of this file, or a method of one of its classes. Raises NotFound if missing.

        Returns the last of several definitions: earlier ones are overloads.
        """
        scope = self.body
        if of is not None:
            scope = [s for node in scope if isinstance(node, ast.ClassDef) and node.name == of for s in node.body]
        found = [node for node in scope if isinstance(node, ast.FunctionDef) and node.name == name]
        if not found:
            raise NotFound(f"vLLM {self.tree.version}: no function {of + '.' if of else ''}{name} in {self.path}")
        return found[-1]

    def find_function(self, name: str, *, of: str | None = None) -> ast.FunctionDef | None:
        """Return the same as `get_function`, or None if missing."""
        try:
            return self.get_function(name, of=of)
        except NotFound:
            return None


class Tree:
    """The sources of one release: `vllm/` under a root, which may hold other packages."""

    def __init__(self, root: Path, version: str) -> None:
        self.root, self.version = root, version
        self._modules: dict[str, Module] = {}

    def find(self, *paths: str) -> Module | None:
        """Return the first of these files in the release, or None."""
        for path in paths:
            if path not in self._modules:
                if not (path.startswith("vllm/") and (self.root / path).is_file()):
                    continue
                self._modules[path] = Module(self, path)
            return self._modules[path]
        return None

    def get(self, *paths: str) -> Module:
        """Return the first of these files in the release. Raises NotFound without one."""
        found = self.find(*paths)
        if found is None:
            raise NotFound(f"vLLM {self.version}: none of {', '.join(paths)}")
        return found

    def find_class(self, name: str, *paths: str) -> tuple[Module, ast.ClassDef]:
        """Return a class's definition, from the first of these files that defines or imports it."""
        for path in paths:
            module = self.find(path)
            found = module and self.resolve(module, name)
            if found and isinstance(found[1], ast.ClassDef):
                return found[0], found[1]
        raise NotFound(f"vLLM {self.version}: no class {name} in any of {', '.join(paths)}")

    def module(self, dotted: str) -> Module | None:
        """Return a module by its import name, or None for one outside the wheel."""
        base = dotted.replace(".", "/")
        return self.find(f"{base}.py", f"{base}/__init__.py")

    def resolve(self, module: Module, name: str) -> tuple[Module, Binding] | None:
        """Resolve a name, dotted or not, through imports to its definition; None outside the wheel."""
        head, _, rest = name.partition(".")
        binding = module.names.get(head)
        if binding is None:
            return self._from_stars(module, name)
        if not isinstance(binding, Import):
            return (module, binding) if not rest else None
        target = self.module(binding.module)
        if binding.name is not None:
            submodule = self.module(f"{binding.module}.{binding.name}")
            if submodule and (target is None or binding.name not in target.names):
                return self.resolve(submodule, rest) if rest else None
            return self.resolve(target, f"{binding.name}.{rest}" if rest else binding.name) if target else None
        return self.resolve(target, rest) if target and rest else None

    def _from_stars(self, module: Module, name: str) -> tuple[Module, Binding] | None:
        for statement in module.outline:
            if isinstance(statement, ast.ImportFrom) and any(alias.name == "*" for alias in statement.names):
                target = self.module(_absolute(statement, module.package))
                found = target and self.resolve(target, name)
                if found:
                    return found
        return None


@lru_cache(maxsize=64)
def _parse(text: str) -> list[ast.stmt]:
    return ast.parse(text).body


@lru_cache(maxsize=2048)
def _outline(text: str) -> list[ast.stmt]:
    """Parse without function bodies: small enough to keep, so that a file which many releases share is parsed once."""
    body = ast.parse(text).body
    for statement in body:
        for node in (statement, *(statement.body if isinstance(statement, ast.ClassDef) else ())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                node.body = [ast.Pass()]
    return body


def _absolute(statement: ast.ImportFrom, package: str) -> str:
    if not statement.level:
        return statement.module or ""
    base = package.split(".")[: len(package.split(".")) - statement.level + 1]
    return ".".join([*base, statement.module] if statement.module else base)


def _bindings(body: Sequence[ast.stmt], package: str, nested: bool = False) -> Iterator[tuple[str, Binding, bool]]:
    for statement in body:
        match statement:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield statement.name, statement, nested
            case ast.Assign(targets=targets, value=value):
                yield from ((t.id, value, nested) for t in targets if isinstance(t, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, value, nested
            case ast.Import(names=names):
                yield from ((a.asname or a.name.partition(".")[0], _plain(a), nested) for a in names)
            case ast.ImportFrom(names=names):
                where = _absolute(statement, package)
                yield from ((a.asname or a.name, Import(where, a.name), nested) for a in names if a.name != "*")
            case ast.If(test=test, body=inner, orelse=orelse):
                text = ast.unparse(test)
                branches = [orelse] if _OTHER_PLATFORM.match(text) else [inner, orelse]
                inside = [s for branch in branches for s in branch]
                if text == "TYPE_CHECKING" and orelse:
                    # An import stands for the real thing; a class written for type checkers only does not.
                    inside = [s for s in inside if not isinstance(s, ast.ClassDef) or s in orelse]
                yield from _bindings(inside, package, nested=True)
            case ast.Try(body=inner, orelse=orelse, handlers=handlers):
                rest = [s for handler in handlers for s in handler.body]
                yield from _bindings([*inner, *orelse, *rest], package, nested=True)


def _plain(alias: ast.alias) -> Import:
    return Import(alias.name if alias.asname else alias.name.partition(".")[0])
