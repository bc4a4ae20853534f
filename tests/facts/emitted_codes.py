"""Reads from source text which finding codes it can emit, and with which severities; nothing is run.

It rests on one convention: a code starts as a literal and travels in parameters that are called `code`, down to
`Finding(code=...)`, `get_rule(code)` or `get_advice(code)`. So every call that fills such a parameter is an emission.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

SEVERITIES = frozenset({"error", "warning", "info"})
FINDINGS = ("Finding", "Ruling")

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = tuple[ast.AST, ...]
"""A module and the functions around a place in it, from the outside in."""


@dataclass(frozen=True)
class Emission:
    """One place where something is given as a code."""

    place: str
    """`path:line`."""
    text: str
    """The expression as it is written."""
    codes: frozenset[str]
    """What it can be; empty where only running it would say."""
    severities: frozenset[str]
    """Of the finding that is made of it; empty where a rule or an advice is looked up, which have their own."""


@dataclass(frozen=True)
class _Callable:
    """Something that can be called, as far as an emission goes; a Finding's constructor has no `function`."""

    parameters: tuple[str, ...]
    required: int
    module: _Module | None = None
    function: Function | None = None

    def accepts(self, call: ast.Call) -> bool:
        """Say whether a call has as many arguments: `names.add(name)` is no `faults.add(code, message, where)`."""
        return self.required <= len(call.args) + len(call.keywords) and len(call.args) <= len(self.parameters)

    def argument(self, call: ast.Call, parameter: str) -> ast.expr | None:
        """Return what a call gives for a parameter, or None."""
        named = next((keyword.value for keyword in call.keywords if keyword.arg == parameter), None)
        position = self.parameters.index(parameter) if parameter in self.parameters else len(call.args)
        return call.args[position] if named is None and position < len(call.args) else named


@dataclass
class _Module:
    path: str
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    calls: list[tuple[ast.Call, Scope]] = field(default_factory=list)
    functions: dict[str, _Callable] = field(default_factory=dict)
    """Those on top and those inside others, by name."""


_FINDING = _Callable(("code",), 1)


class Package:
    """The modules of a package, given as text by path."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._modules: dict[str, _Module] = {}
        self._methods = defaultdict[str, list[_Callable]](list)
        """By name alone: no types are known."""
        for path, text in sources.items():
            tree, module = ast.parse(text), _Module(path)
            self._modules[path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")] = module
            self._visit(tree, (tree,), module)

    def _visit(self, node: ast.AST, scope: Scope, module: _Module) -> None:
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.ImportFrom(module=str() as source, names=names):
                    module.imports |= {each.asname or each.name: (source, each.name) for each in names}
                case ast.Call():
                    module.calls.append((child, scope))
                case ast.FunctionDef() | ast.AsyncFunctionDef() if isinstance(node, ast.ClassDef):
                    self._methods[child.name].append(_read_function(child, module, is_method=True))
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    module.functions[child.name] = _read_function(child, module, is_method=False)
            self._visit(child, (*scope, child) if isinstance(child, Function) else scope, module)

    def find_emissions(self) -> Iterator[Emission]:
        """Yield every place where something other than a parameter or another finding's code is given as a code."""
        for module in self._modules.values():
            for call, scope in module.calls:
                called = self._resolve(call, scope, module)
                emissions = [self._read(call, scope, module, each) for each in called if "code" in each.parameters]
                is_sure = len(emissions) == len(called)  # if not, it may be a method that has the name by chance
                yield from (each for each in emissions if each is not None and (each.codes or is_sure))

    def _resolve(self, call: ast.Call, scope: Scope, module: _Module) -> list[_Callable]:
        """Return what a call may call."""
        found: list[_Callable] = []
        match call.func:
            case ast.Attribute(attr=method):
                found = self._methods.get(method, [])
            case ast.Name(id=name) if known := self._find_function(name, module):
                found = [known]
            case ast.Name() as local:  # `kind = error if late else warning; kind("client-sends-late", ...)`
                names = (each.id for each in _leaves(local, scope) if isinstance(each, ast.Name))
                found = [known for name in names if (known := self._find_function(name, module))]
        return [each for each in found if each.accepts(call)]

    def _find_function(self, name: str, module: _Module | None) -> _Callable | None:
        """Return a function by its name in a module, through imports."""
        while module is not None and name in module.imports:
            source, name = module.imports[name]
            module = self._modules.get(source)
        if name in FINDINGS:
            return _FINDING
        return None if module is None else module.functions.get(name)

    def _read(self, call: ast.Call, scope: Scope, module: _Module, called: _Callable) -> Emission | None:
        code = called.argument(call, "code")
        if code is None or _is_handed_on(code, scope):
            return None
        severities = self._severities(call, scope, called)
        return Emission(f"{module.path}:{call.lineno}", ast.unparse(code), _texts(code, scope), severities)

    def _severities(self, call: ast.Call, scope: Scope, called: _Callable) -> frozenset[str]:
        """Return what a call can make of a severity: what it gives, or what the called function says itself."""
        given = called.argument(call, "severity")
        if given is not None:
            said = frozenset(each.attr.lower() for each in _leaves(given, scope) if isinstance(each, ast.Attribute))
            return said or SEVERITIES
        if called.function is None or called.module is None:
            return frozenset()
        return frozenset(
            severity
            for inner, around in called.module.calls
            if called.function in around
            for each in self._resolve(inner, around, called.module)
            if "code" in each.parameters and _is_handed_on(each.argument(inner, "code"), around)
            for severity in self._severities(inner, around, each)
        )


def find_literals(sources: Iterable[str]) -> frozenset[str]:
    """Return every string that stands in source text."""
    constants = (node for text in sources for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
    return frozenset(node.value for node in constants if isinstance(node.value, str))


def _read_function(function: Function, module: _Module, *, is_method: bool) -> _Callable:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    if is_method and not any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in function.decorator_list):
        positional = positional[1:]
    names = tuple(each.arg for each in (*positional, *arguments.kwonlyargs))
    return _Callable(names, max(len(positional) - len(arguments.defaults), 0), module, function)


def _is_handed_on(code: ast.expr | None, scope: Scope) -> bool:
    """Say whether an expression is a parameter `code`, or the code of a rule or finding: judged where it began."""
    if isinstance(code, ast.Attribute):
        return code.attr == "code"
    functions = [each for each in scope if isinstance(each, Function)]
    named = [each.arg for function in functions for each in (*function.args.args, *function.args.kwonlyargs)]
    return isinstance(code, ast.Name) and code.id == "code" and "code" in named


def _texts(expression: ast.expr, scope: Scope) -> frozenset[str]:
    """Return the strings that an expression can be; none if it can be something else."""
    leaves = list(_leaves(expression, scope))
    texts = [each.value for each in leaves if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return frozenset(texts if len(texts) == len(leaves) else ())


def _leaves(expression: ast.expr, scope: Scope, seen: frozenset[str] = frozenset()) -> Iterator[ast.expr]:
    """Yield what an expression can be, through conditions and through names that are bound to literals."""
    match expression:
        case ast.IfExp(body=body, orelse=orelse):
            yield from _leaves(body, scope, seen)
            yield from _leaves(orelse, scope, seen)
        case ast.Name(id=name) if name not in seen and (bound := _bindings(name, scope)):
            for each in bound:
                yield from _leaves(each, scope, seen | {name})
        case ast.Subscript(value=table):
            yield from _parts(table, scope, "values") or (expression,)
        case _:
            yield expression


def _bindings(name: str, scope: Scope) -> list[ast.expr]:
    """Return what the innermost scope that binds a name binds it to."""
    for place, each in reversed(list(enumerate(scope))):
        nodes = each.body if isinstance(each, ast.Module) else ast.walk(each)
        found = [value for node in nodes for value in _bound(name, node, scope[: place + 1])]
        if found:
            return found
    return []


def _bound(name: str, node: ast.AST, scope: Scope) -> Iterator[ast.expr]:
    match node:
        case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
            yield from _unpacked(name, target, value)
        case ast.For(target=target, iter=source) | ast.comprehension(target=target, iter=source) if name in {
            each.id for each in ast.walk(target) if isinstance(each, ast.Name)
        }:
            for item in _parts(source, scope, "items") or (source,):
                yield from _unpacked(name, target, item)


def _unpacked(name: str, target: ast.expr, value: ast.expr) -> Iterator[ast.expr]:
    """Yield the part of a value that a target gives a name; the whole value, which is no text, where it has no parts."""
    match target, value:
        case ast.Name(id=bound), _ if bound == name:
            yield value
        case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
            for part, inner in zip(targets, values, strict=True):
                yield from _unpacked(name, part, inner)
        case ast.Tuple(elts=targets), _:
            for part in targets:
                yield from _unpacked(name, part, value)


def _parts(source: ast.expr, scope: Scope, part: str) -> list[ast.expr]:
    """Return the items of a literal (for a dict: pairs), or a dict's values; none where it is no literal."""
    match source:
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items) if part == "items":
            return items
        case ast.Dict(keys=keys, values=values):
            pairs = [ast.Tuple([key, value]) for key, value in zip(keys, values, strict=True) if key is not None]
            return list(pairs) if part == "items" else values
        case ast.Call(func=ast.Attribute(value=table, attr="items")):
            return _parts(table, scope, "items")
        case ast.IfExp(body=body, orelse=orelse):
            return [*_parts(body, scope, part), *_parts(orelse, scope, part)]
        case ast.Name(id=name):
            return [item for bound in _bindings(name, scope[:1]) for item in _parts(bound, scope[:1], part)]
    return []
