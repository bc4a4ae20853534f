"""Reads from source text which finding codes it can emit, and with which severities; nothing is run.

It rests on one convention: a code starts as a literal and travels in parameters that are called `code`, down to
`Finding(code=...)`, `get_rule(code)` or `get_advice(code)`. So every call that fills such a parameter is an emission.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

SEVERITIES = frozenset({"error", "warning", "info"})

_CODE = re.compile(r"[a-z0-9.]+(-[a-z0-9.]+)*")
_FINDINGS = ("Finding", "Ruling")
_FORMAT_CODES = ("foreign", "other_version", "damaged")
"""Fields of a document's `Format`: `read_document` makes errors of them."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_BINDING = (ast.Assign, ast.AnnAssign, ast.For, ast.comprehension)
_BINDERS: MutableMapping[ast.AST, Sequence[ast.AST]] = WeakKeyDictionary()
_Scope = tuple[ast.AST, ...]
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
    """Of the finding that is made; empty where a rule or an advice is looked up, which has its own."""

    @property
    def looks_right(self) -> bool:
        """Whether all that is given is spelled as codes are."""
        return bool(self.codes) and all(map(_CODE.fullmatch, self.codes))


def find_faults(
    sources: Mapping[str, str],
    rows: Mapping[str, frozenset[str]],
    looked_up: frozenset[str] = frozenset(),
    composed: Mapping[str, tuple[str, ...]] | None = None,
) -> list[str]:
    """Return where source and registries disagree.

    Args:
        sources: modules by path.
        rows: codes of which findings are made directly, with the severities that they can have.
        looked_up: codes of rules and advice, of which a look-up makes findings.
        composed: codes that are put together when they are needed, `{}-too-long` with what stands for the braces.
    """
    composed = composed or {}
    emitted = defaultdict[str, set[str]](set)
    faults = []
    package = Package(sources, composed)
    for each in package.find_emissions():
        if not each.codes and (each.severities or each.text.startswith("f")):
            faults.append(f"{each.place}: {each.text} is known at run time only; write the codes as literals")
        for code in each.codes:
            emitted[code] |= each.severities
            if code not in rows and code not in looked_up:
                faults.append(f"{each.place}: {code} is in no registry")
    for code, severities in rows.items():
        if code not in emitted:
            faults.append(f"{code}: has a row, and nothing emits it")
        elif emitted[code] != severities:
            faults.append(f"{code}: is emitted as {', '.join(sorted(emitted[code]))}, its row says otherwise")
    spelled = package.literals | emitted.keys()
    return faults + [f"{code}: has a row, and nothing names it" for code in looked_up if code not in spelled]


@dataclass(frozen=True)
class _Callable:
    """Something that can be called, as far as an emission goes; a Finding's constructor has no `function`."""

    parameters: tuple[str, ...]
    num_required: int
    module: _Module | None = None
    function: _Function | None = None
    owner: str = ""
    """The class of a static method, by whose name alone it is called: `log.warning` is no `Finding.warning`."""

    def accepts(self, call: ast.Call) -> bool:
        """Say whether a call has as many arguments: `names.add(name)` is no `faults.add(code, message, where)`."""
        return self.num_required <= len(call.args) + len(call.keywords) and len(call.args) <= len(self.parameters)

    def argument(self, call: ast.Call, parameter: str) -> ast.expr | None:
        """Return what a call gives for a parameter, or None."""
        named = next((keyword.value for keyword in call.keywords if keyword.arg == parameter), None)
        position = self.parameters.index(parameter) if parameter in self.parameters else len(call.args)
        return call.args[position] if named is None and position < len(call.args) else named


@dataclass
class _Module:
    path: str
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    calls: list[tuple[ast.Call, _Scope]] = field(default_factory=list)
    functions: dict[str, _Callable] = field(default_factory=dict)
    """By name, those inside others included."""


_FINDING = _Callable(("code",), 1)


class Package:
    """The modules of a package, given as text by path."""

    def __init__(self, sources: Mapping[str, str], composed: Mapping[str, tuple[str, ...]]) -> None:
        self._composed = composed
        self._modules: dict[str, _Module] = {}
        self._methods = defaultdict[str, list[_Callable]](list)
        """By name alone: no types are known."""
        self.literals: set[str] = set()
        for path, text in sources.items():
            tree, module = ast.parse(text), _Module(path)
            self._modules[path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")] = module
            self._visit(tree, (tree,), module)

    def _visit(self, node: ast.AST, scope: _Scope, module: _Module) -> None:
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.ImportFrom(module=str() as source, names=names):
                    module.imports |= {each.asname or each.name: (source, each.name) for each in names}
                case ast.Constant(value=str() as text):
                    self.literals.add(text)
                case ast.Call():
                    module.calls.append((child, scope))
                case ast.FunctionDef() | ast.AsyncFunctionDef() if isinstance(node, ast.ClassDef):
                    self._methods[child.name].append(_read_function(child, module, owner=node.name))
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    module.functions[child.name] = _read_function(child, module)
            self._visit(child, (*scope, child) if isinstance(child, _Function) else scope, module)

    def find_emissions(self) -> Iterator[Emission]:
        """Yield every place where something other than a parameter or another finding's code is given as a code."""
        for module in self._modules.values():
            for call, scope in module.calls:
                yield from self._read_format(call, scope, module)
                called = self._resolve(call, scope, module)
                emissions = [self._read(call, scope, module, each) for each in called if "code" in each.parameters]
                is_sure = len(emissions) == len(called)  # if not, another class has a method of that name
                yield from (each for each in emissions if each is not None and (is_sure or each.looks_right))

    def _read_format(self, call: ast.Call, scope: _Scope, module: _Module) -> Iterator[Emission]:
        if isinstance(call.func, ast.Name) and call.func.id == "Format":
            for each in call.keywords:
                if each.arg in _FORMAT_CODES:
                    codes = self._values(each.value, scope)
                    place = f"{module.path}:{call.lineno}"
                    yield Emission(place, ast.unparse(each.value), codes, frozenset({"error"}))

    def _resolve(self, call: ast.Call, scope: _Scope, module: _Module) -> list[_Callable]:
        """Return what a call may call."""
        found: list[_Callable] = []
        match call.func:
            case ast.Attribute(attr=method, value=receiver):
                found = [each for each in self._methods.get(method, []) if each.owner in ("", ast.unparse(receiver))]
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
        if name in _FINDINGS:
            return _FINDING
        return None if module is None else module.functions.get(name)

    def _read(self, call: ast.Call, scope: _Scope, module: _Module, called: _Callable) -> Emission | None:
        code = called.argument(call, "code")
        if code is None or _is_handed_on(code, scope):
            return None
        codes = self._values(code, scope)
        return Emission(f"{module.path}:{call.lineno}", ast.unparse(code), codes, self._severities(call, scope, called))

    def _values(self, code: ast.expr, scope: _Scope) -> frozenset[str]:
        """Return the codes that an expression can be; none if it can be something else."""
        found = set[str]()
        for leaf in _leaves(code, scope):
            match leaf:
                case ast.Constant(value=str() as text):
                    found.add(text)
                case ast.JoinedStr(values=parts):
                    template = "".join(str(each.value) if isinstance(each, ast.Constant) else "{}" for each in parts)
                    found |= {template.format(part) for part in self._composed.get(template, ())}
                case _:
                    return frozenset()
        return frozenset(found)

    def _severities(
        self, call: ast.Call, scope: _Scope, called: _Callable, seen: tuple[_Callable, ...] = ()
    ) -> frozenset[str]:
        """Return what a call can make of a severity: what it gives, or what the called function says itself.

        Args:
            call: the call.
            scope: its place.
            called: what it calls.
            seen: through which functions it was come by.
        """
        given = called.argument(call, "severity")
        if given is not None:
            said = frozenset(each.attr.lower() for each in _leaves(given, scope) if isinstance(each, ast.Attribute))
            return said or SEVERITIES
        if called.function is None or called.module is None or called in seen:
            return frozenset()
        return frozenset(
            severity
            for inner, around in called.module.calls
            if called.function in around
            for each in self._resolve(inner, around, called.module)
            if "code" in each.parameters and _is_handed_on(each.argument(inner, "code"), around)
            for severity in self._severities(inner, around, each, (*seen, called))
        )


def _read_function(function: _Function, module: _Module, *, owner: str = "") -> _Callable:
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    is_static = any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in function.decorator_list)
    if owner and not is_static:
        positional = positional[1:]
    names = tuple(each.arg for each in (*positional, *given.kwonlyargs))
    num_required = max(len(positional) - len(given.defaults), 0)
    return _Callable(names, num_required, module, function, owner if is_static else "")


def _is_handed_on(code: ast.expr | None, scope: _Scope) -> bool:
    """Say whether an expression is a parameter `code`, or the code of a rule or finding: judged where it began."""
    if isinstance(code, ast.Attribute):
        return code.attr in ("code", *_FORMAT_CODES)
    functions = [each for each in scope if isinstance(each, _Function)]
    named = [each.arg for function in functions for each in (*function.args.args, *function.args.kwonlyargs)]
    return isinstance(code, ast.Name) and code.id == "code" and "code" in named


def _leaves(expression: ast.expr, scope: _Scope, seen: frozenset[str] = frozenset()) -> Iterator[ast.expr]:
    """Yield what an expression can be, through conditions, names and tables that are literals."""
    match expression:
        case ast.IfExp(body=body, orelse=orelse):
            yield from _leaves(body, scope, seen)
            yield from _leaves(orelse, scope, seen)
        case ast.Name(id=name) if name not in seen and (bound := _bindings(name, scope)):
            for each in bound:
                yield from _leaves(each, scope, seen | {name})
        case ast.Subscript(value=ast.Name(id=table)) if rows := _dicts(table, scope):
            yield from (value for row in rows for value in row.values)
        case _:
            yield expression


def _bindings(name: str, scope: _Scope) -> list[ast.expr]:
    """Return what the innermost scope that binds a name binds it to."""
    for place, each in reversed(list(enumerate(scope))):
        found = [value for node in _binders(each) for value in _bound(name, node, scope[: place + 1])]
        if found:
            return found
    return []


def _binders(scope: ast.AST) -> Sequence[ast.AST]:
    """Return the nodes of a scope that bind names, found once: most scopes are asked for many names."""
    if scope not in _BINDERS:
        nodes = scope.body if isinstance(scope, ast.Module) else ast.walk(scope)
        _BINDERS[scope] = [node for node in nodes if isinstance(node, _BINDING)]
    return _BINDERS[scope]


def _bound(name: str, node: ast.AST, scope: _Scope) -> Iterator[ast.expr]:
    match node:
        case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
            yield from _unpacked(name, target, value)
        case ast.For(target=target, iter=source) | ast.comprehension(target=target, iter=source):
            names = {each.id for each in ast.walk(target) if isinstance(each, ast.Name)}
            for item in _items(source, scope) if name in names else ():
                yield from _unpacked(name, target, item)


def _unpacked(name: str, target: ast.expr, value: ast.expr) -> Iterator[ast.expr]:
    """Yield the part of a value that a target gives a name, or all of it if it has no such parts."""
    match target, value:
        case ast.Name(id=bound), _ if bound == name:
            yield value
        case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
            for part, inner in zip(targets, values, strict=True):
                yield from _unpacked(name, part, inner)
        case ast.Tuple(elts=targets), _:
            for part in targets:
                yield from _unpacked(name, part, value)


def _items(source: ast.expr, scope: _Scope) -> list[ast.expr]:
    """Return the items that a loop goes through if they are a literal's; else the source itself, which is no text."""
    match source:
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
            return items
        case ast.IfExp(body=body, orelse=orelse):
            return [*_items(body, scope), *_items(orelse, scope)]
        case ast.Call(func=ast.Attribute(value=ast.Name(id=table), attr="items")) if rows := _dicts(table, scope):
            pairs = [zip(row.keys, row.values, strict=True) for row in rows]
            return [ast.Tuple([key, value]) for row in pairs for key, value in row if key is not None]
    return [source]


def _dicts(name: str, scope: _Scope) -> list[ast.Dict]:
    """Return the literal tables that a module binds to a name."""
    return [each for each in _bindings(name, scope[:1]) if isinstance(each, ast.Dict)]
