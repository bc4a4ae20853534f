"""Python files: engines of `LLM(...)`, `EngineArgs(...)` and Ray's `LLMConfig(...)`, read without running them."""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from draftwise.core import InvalidSetup
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.rules import get_rule
from draftwise.setups.read.arguments.command_line import explain_unknown
from draftwise.setups.read.json_setup import read_keywords, read_ray_config
from draftwise.setups.read.setup_reading import SetupReading
from draftwise.setups.read.shell.environment import describe_unknown
from draftwise.setups.read.shell.launch import Launch, find_launch
from draftwise.setups.read.shell.script import evaluate_words
from draftwise.setups.read.shell.words import Word

_ENGINES = frozenset({"LLM", "EngineArgs", "AsyncEngineArgs"})
_RAY = "LLMConfig"
_BRANCHES = (
    ast.If, ast.IfExp, ast.BoolOp, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.TryStar, ast.Match,
    ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp,
)  # fmt: skip
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_PRINTING = frozenset({"print", "pprint", "debug", "info", "warning", "error"})
_CHANGES = frozenset({"append", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update"})
_OF_RAY = ("model_loading_config", "engine_kwargs")
_SCALE = "deployment_config"
_TARGETS = frozenset({"model", _OF_RAY[0]})
_PACKAGES = ("vllm", "ray")
_MAX_WORK = 4_000_000
_NOT_ENGINE = "What stands here"
_AROUND = "in the environment of the process"


def is_python(text: str) -> bool:
    """Return whether a text is a Python program."""
    try:
        _parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


def _parse(text: str) -> ast.Module:
    """Return the tree of a program.

    Raises:
        RecursionError: it is nested too deeply.
    """
    try:
        return ast.parse(text)
    except MemoryError:  # how the parser says it
        raise RecursionError from None


def read_engines(
    text: str, *, name: str = "", given: Mapping[str, str], engine_version: str | None = None
) -> Iterator[SetupReading]:
    """Yield the engines that a Python file creates; only literals and names that are set once are known.

    Raises:
        InvalidSetup: the text is not Python.
    """
    try:
        tree = _parse(text)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        raise refusal("not-python", cause=getattr(error, "msg", error), name=name, line=line) from None
    code = _Code(tree, given)
    for call in code.calls:
        where = f"line {call.lineno} {code.name_of(call)}"
        known, unknown = code.read_keywords(call)
        reading = (
            read_ray_config(known, where=where, engine_version=engine_version)
            if code.name_of(call) == _RAY
            else read_keywords({"speculative_config": None, **known}, where=where, engine_version=engine_version)
        )
        findings = {
            key: explain_unknown(f"{key} of {code.name_of(call)}" if key else _NOT_ENGINE, names, where=where)
            for key, names in unknown.items()
        }
        if isinstance(known.get("speculative_config"), str):
            reading = replace(reading, findings=(*reading.findings, get_rule("spec-not-a-dict").ruling(where=where)))
        open_target = _TARGETS & unknown.keys()
        left = tuple(each for each in reading.findings if not (each.code == "no-target" and open_target))
        yield replace(reading, findings=(*findings.values(), *left), unknown=findings)


def find_commands(text: str, *, given: Mapping[str, str]) -> Iterator[Launch]:
    """Yield the servers started by lists of words, as for `subprocess.Popen`; what a list gains later is unknown."""
    code = _Code(_parse(text), given)
    named = {id(value): name for name, value in code.values.items()}
    own = {node.name for node in code.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    printed = {id(each) for node in code.nodes if isinstance(node, ast.Call) and _name_of(node.func) in _PRINTING
               for each in node.args}  # fmt: skip
    joining = {"chain", "list", *own}
    calls = (node for node in code.nodes if isinstance(node, ast.Call) and _name_of(node.func) not in joining)
    passed = {id(each) for node in calls for each in node.args[-1:] if isinstance(each, ast.Starred)}
    parts = [part for node in code.nodes if id(node) not in printed | passed
             for part in _list_parts(node, joining)]  # fmt: skip
    held, grown = {id(part) for part in parts}, {*map(_name_of, parts), *_find_changed(code.nodes)}
    used = {*map(_name_of, parts)}
    growing = {id(value): name for name, value in _find_growing(code.nodes) if name not in used}
    assigned = {id(node.value): _name_of(node.targets[0]) for node in code.nodes if isinstance(node, ast.Assign)}
    open_names = {*_find_changed(code.nodes), *_find_augmented(code.nodes)}
    joined = list(_find_joined(code))
    read_again, again_by_name = {id(each) for each in joined}, {*map(_name_of, joined)}
    for node in code.nodes:
        if not isinstance(node, ast.List) or any(isinstance(each, ast.Starred) for each in node.elts):
            continue
        if id(node) in printed or (id(node) not in growing and assigned.get(id(node)) in open_names):
            continue
        if id(node) not in growing and (named[id(node)] in grown if id(node) in named else id(node) in held):
            continue
        name = growing.get(id(node), "")
        again = id(node) in read_again or (name in again_by_name and bool(name))
        added = list(_find_added(code, node, name)) if name else []
        base = [*node.elts, *chain.from_iterable(parts for parts, is_sure in added if is_sure)]
        launch = _read_words(code, base, name, again=again)
        if launch is None:
            continue
        every = [*node.elts, *chain.from_iterable(parts for parts, _ in added)]
        other = _read_words(code, every, name, again=again) if len(every) > len(base) else None
        path = f"all that it may add to {name}"
        others = () if other is None else (replace(other, path=path, where=f"line {node.lineno}"),)
        yield replace(launch, where=f"line {node.lineno}", others=others)


def _read_words(code: _Code, items: Sequence[ast.expr], name: str, *, again: bool) -> Launch | None:
    """Return the server that a list of words starts; an ellipsis among them is what is not told."""
    words: list[Word] = []
    for each in items:
        value = code.evaluate(each)
        if value is ...:
            value = _Unknown((f"what the program adds to {name or 'this list'}",))
        is_open = isinstance(value, _Unknown)
        words.append(Word("", each.lineno, unknown=value.names) if is_open else Word(str(value), each.lineno))
    if again:
        read = ([word] if word.unknown else evaluate_words(word.text, line=word.line) for word in words)
        words = [*chain.from_iterable(read)]
    return find_launch(words) if any("vllm" in word.text for word in words) else None


def _find_added(code: _Code, start: ast.List, name: str) -> Iterator[tuple[list[ast.expr], bool]]:
    """Yield what is added to a list, in order, and whether that happens whenever the list is made."""
    origin = code.spots[id(start)]
    owner = code.owner_of(name, origin)
    found: list[tuple[ast.expr | ast.stmt, ast.expr, bool]] = []
    sets: list[ast.expr] = []
    for node in code.nodes:
        match node:
            case ast.AugAssign(target=ast.Name(id=target), value=value) if target == name:
                found.append((node, value, True))
            case ast.Call(func=ast.Attribute(value=ast.Name(id=target), attr="append" | "extend" as how), args=[value]):
                found += [(node, value, how == "extend")] if target == name else []
            case ast.Name(id=target, ctx=ast.Store()) if target == name:
                sets.append(node)
    begins = {_begin_of(node) for node, _, _ in found}
    sets = [each for each in sets if _begin_of(start) < _begin_of(each) and _begin_of(each) not in begins]
    for node, value, is_list in sorted(found, key=lambda row: _begin_of(row[0])):
        spot = code.spots[id(node)]
        is_same = spot.functions == origin.functions
        again = (code.spots[id(each)] for each in sets if _begin_of(each) < _begin_of(node))
        is_before = is_same and _begin_of(node) < _begin_of(start)
        if is_before or code.owner_of(name, spot) is not owner or any(each.holds(spot) for each in again):
            continue
        unknown: ast.expr = ast.copy_location(ast.Constant(...), value)
        items = value.elts if isinstance(value, ast.List) else [unknown]
        yield (items if is_list else [value]), is_same and spot.holds(origin)


def _begin_of(node: ast.expr | ast.stmt) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _find_growing(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, ast.List]]:
    """Yield the names that are set to a list to which words are only added later, with that list."""
    added = {*_find_augmented(nodes)}
    changed = list[ast.AST]()
    for node in nodes:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append" | "extend")):
                added.add(name)
            case _:
                changed.append(node)
    added -= {*_find_changed(changed)}
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.List() as value) if name in added:
                yield name, value


def _find_augmented(nodes: Sequence[ast.AST]) -> Iterator[str]:
    return (_name_of(node.target) for node in nodes if isinstance(node, ast.AugAssign))


def _find_joined(code: _Code) -> Iterator[ast.expr]:
    """Yield the lists that a program joins to a text for a shell, which reads their words again."""
    for call in (node for node in code.nodes if isinstance(node, ast.Call) and node.args):
        if _name_of(call.func) == "system" or "shell=True" in [ast.unparse(each) for each in call.keywords]:
            match code.resolve(call.args[0]):
                case ast.Call(func=ast.Attribute(value=ast.Constant(), attr="join"), args=[joined]):
                    yield code.resolve(joined)


def _list_parts(node: ast.AST, joining: Set[str]) -> Iterator[ast.expr | None]:
    """Yield what a node keeps, joins to more, or gives to functions that may: a list there may not be all."""
    match node:
        case ast.BinOp(left=left, right=right):
            yield from (left, right)
        case ast.Call(func=function, args=parts) if _name_of(function) in joining:
            yield from parts
        case ast.Dict(values=values):
            yield from values
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.NamedExpr() | ast.Starred():
            yield node.value
        case ast.arguments(defaults=defaults, kw_defaults=others):
            yield from (*defaults, *others)


@dataclass(frozen=True, slots=True)
class _Unknown:
    """Stands for a value that is computed."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Spot:
    """What a node stands in, outer ones first."""

    functions: tuple[ast.AST, ...]
    """The module, and the functions in it."""
    arms: tuple[tuple[int, str], ...]
    """The arms of branches."""

    def holds(self, other: _Spot) -> bool:
        """Say whether all that this spot stands in is around the other one too."""
        return (self.functions, self.arms) == (
            other.functions[: len(self.functions)],
            other.arms[: len(self.arms)],
        )


def _find_spots(tree: ast.Module) -> Iterator[tuple[int, _Spot]]:
    """Yield where each node stands, by its id."""
    left: list[tuple[ast.AST, _Spot]] = [(tree, _Spot((tree,), ()))]
    while left:
        node, spot = left.pop()
        yield id(node), spot
        functions = (*spot.functions, node) if isinstance(node, _FUNCTIONS) else spot.functions
        for part, value in ast.iter_fields(node):
            arm = ((id(node), part),) if isinstance(node, _BRANCHES) else ()
            inside = _Spot(functions, (*spot.arms, *arm))
            for index, each in enumerate(value if isinstance(value, list) else [value]):
                if isinstance(each, ast.match_case | ast.ExceptHandler):
                    inside = _Spot(functions, (*spot.arms, (id(node), f"{part}{index}")))
                left += [(each, inside)] if isinstance(each, ast.AST) else []


class _Code:
    """One module: its calls of engines, and the values of its names."""

    def __init__(self, tree: ast.Module, given: Mapping[str, str]) -> None:
        self.given = given
        self.work = 0
        """Values and characters that were looked at: names that refer to names could go on for ever."""
        self.nodes = nodes = list(ast.walk(tree))
        self.spots = dict(_find_spots(tree))
        bound = {(_bound_by(node), self.spots[id(node)].functions[-1]) for node in nodes}
        shared = (node for node in nodes if isinstance(node, ast.Global | ast.Nonlocal))
        self.bound = bound - {(name, self.spots[id(node)].functions[-1]) for node in shared for name in node.names}
        self.imported = dict(_find_imports(nodes))
        self.values = dict(_find_constants(nodes))
        self.calls = sorted(
            (node for node in nodes if isinstance(node, ast.Call) and self.name_of(node)), key=lambda node: node.lineno
        )

    def owner_of(self, name: str, spot: _Spot) -> ast.AST:
        """Return the function or module whose name a spot sees."""
        return next((each for each in reversed(spot.functions) if (name, each) in self.bound), spot.functions[0])

    def name_of(self, call: ast.Call) -> str:
        """Return which engine a call makes; empty for any other call."""
        root, attribute = call.func, ""
        while isinstance(root, ast.Attribute):
            attribute, root = attribute or root.attr, root.value
        if not isinstance(root, ast.Name) or root.id not in self.imported:
            return ""
        name = attribute or self.imported[root.id]
        return name if name in _ENGINES or name == _RAY else ""

    def read_keywords(self, call: ast.Call) -> tuple[dict[str, Any], dict[str, tuple[str, ...]]]:
        """Return the keywords of a call that are known, and what those depend on that are not."""
        values: dict[str, Any] = {"model": self.evaluate(call.args[0])} if call.args else {}
        for keyword in call.keywords:
            value = self.evaluate(keyword.value)
            if keyword.arg is None and not isinstance(value, dict):
                value = {"": value}
            values |= value if keyword.arg is None else {keyword.arg: value}
        if self.name_of(call) == _RAY:
            scale = values.get(_SCALE)
            values = {key: value for key, value in values.items() if key in _OF_RAY}
            values |= {} if scale is None or _names_in(scale) else {_SCALE: scale}
        if isinstance(values.get("engine_kwargs"), dict):
            values |= {f"engine_kwargs.{key}": value for key, value in values.pop("engine_kwargs").items()}
        unknown = {key.rpartition(".")[2]: names for key, value in values.items() if (names := _names_in(value))}
        known = {key: value for key, value in values.items() if not _names_in(value)}
        engine = {key.partition(".")[2]: known.pop(key) for key in list(known) if key.startswith("engine_kwargs.")}
        return (known | {"engine_kwargs": engine} if self.name_of(call) == _RAY else known), unknown

    def resolve(self, node: ast.expr) -> ast.expr:
        """Return the value of a name that is set once, else the expression itself."""
        return self.values.get(node.id, node) if isinstance(node, ast.Name) else node

    def evaluate(self, node: ast.expr) -> Any:
        """Return the value of an expression, with an `_Unknown` for each part that is computed.

        Raises:
            InvalidSetup: names refer to names without end, or blow the value up.
        """
        self.work += 1
        if self.work > _MAX_WORK:
            raise InvalidSetup.because("too-long", "The program's values are too long to combine.")
        match node:
            case ast.Constant(value=value):
                self.work += len(value) if isinstance(value, str) else 0
                return value
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return [self.evaluate(item) for item in items]
            case ast.Dict(keys=keys, values=values):
                return self._evaluate_dict(keys, values)
            case ast.Name(id=name) if name in self.values:
                return self.evaluate(self.values[name])
            case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords):
                return self._evaluate_dict(
                    [None if each.arg is None else ast.Constant(each.arg) for each in keywords],
                    [each.value for each in keywords],
                )
        return self._evaluate_text(node)

    def _evaluate_dict(self, keys: list[Any], values: list[ast.expr]) -> Any:
        made: dict[Any, Any] = {}
        for key, value in zip(keys, values, strict=True):
            inner = self.evaluate(value)
            name = None if key is None else self.evaluate(key)
            if (key is None and not isinstance(inner, dict)) or isinstance(name, (_Unknown, list, dict)):
                return _left_out(value if key is None else key)
            made |= inner if key is None else {name: inner}
        return made

    def _evaluate_text(self, node: ast.expr) -> Any:
        """Return the number or text that an operator, an f-string, `str` or `json.dumps` makes of known values."""
        match node:
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return -number
            case ast.JoinedStr(values=values):
                parts = [self.evaluate(part.value if isinstance(part, ast.FormattedValue) else part) for part in values]
                names = _names_in(parts)
                return _Unknown(names) if names else "".join(map(str, parts))
            case ast.Call(func=ast.Attribute(attr="dumps") | ast.Name(id="str"), args=[argument]):
                value = self.evaluate(argument)
                names = _names_in(value)
                turn = json.dumps if isinstance(node.func, ast.Attribute) else str
                return _Unknown(names) if names else turn(value)
        return self._read_variable(node)

    def _read_variable(self, node: ast.expr) -> Any:
        """Return the value in `os.environ` if given, else unknown."""
        match node:
            case ast.Call(
                func=ast.Attribute(attr="getenv" | "get") as function, args=[ast.Constant(value=str(name)), *default]
            ) if function.attr == "getenv" or ast.unparse(function.value) in ("os.environ", "environ"):
                if name in self.given:
                    return self.given[name]
                return self.evaluate(default[0]) if default else _Unknown((describe_unknown(name, _AROUND),))
            case ast.Subscript(value=mapping, slice=ast.Constant(value=str(name))) if ast.unparse(mapping) in (
                "os.environ",
                "environ",
            ):
                return self.given.get(name, _Unknown((describe_unknown(name, _AROUND),)))
        return _left_out(node)


def _bound_by(node: ast.AST) -> str:
    """Return the name that a node sets. Empty for none."""
    if isinstance(node, ast.arg):
        return node.arg
    return node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else ""


def _left_out(node: ast.expr) -> _Unknown:
    return _Unknown((describe_unknown(ast.unparse(node)[:60], "computed by the program"),))


def _names_in(value: Any) -> tuple[str, ...]:
    """Return what a value depends on that is not known."""
    if isinstance(value, _Unknown):
        return value.names
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return tuple(name for item in items for name in _names_in(item))


def _find_imports(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yield the names that stand for something of vLLM or Ray, and what they stand for."""
    for node in nodes:
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module.partition(".")[0] in _PACKAGES:
                yield from ((each.asname or each.name, each.name) for each in names)
            case ast.Import(names=names):
                for each in names:
                    if each.name.partition(".")[0] in _PACKAGES:
                        yield (each.asname or each.name.partition(".")[0]), ""


def _find_constants(nodes: list[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that are set once in the whole file and not changed in place, with what they are set to."""
    bound = Counter(
        node.id if isinstance(node, ast.Name) else node.arg
        for node in nodes
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load))
    )
    bound.update(_find_changed(nodes))
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if bound[name] == 1:
                yield name, value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if bound[name] == 1:
                yield name, value


def _find_changed(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield the names whose list or dictionary changes in place."""
    for node in nodes:
        match node:
            case ast.Subscript(value=value, ctx=ast.Store() | ast.Del()):
                yield _name_of(value)
            case ast.Call(func=ast.Attribute(value=value, attr=attribute)) if attribute in _CHANGES:
                yield _name_of(value)


def _name_of(node: ast.expr | None) -> str:
    """Return the name of a variable or an attribute. Empty for any other expression."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
