"""Extracts the command line of `vllm serve`: its flags and the engine's defaults."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from draftwise.extract.dataclass_fields import Field, fields_of
from draftwise.extract.expressions import UNKNOWN, bases_of, evaluate, literal, written
from draftwise.extract.speculative import ARGUMENTS, Facts
from draftwise.extract.tree import Module, NotFound, Tree

FRONTEND = (
    "vllm/entrypoints/common/cli_args.py",
    "vllm/entrypoints/launchers/cli_args.py",
    "vllm/entrypoints/openai/cli_args.py",
)
_SERVE = "vllm/entrypoints/cli/serve.py"
_CUSTOMISE = ("_customize_cli_kwargs", "add_cli_args")


def engine_defaults(tree: Tree) -> Facts:
    """Default of every engine argument, by name."""
    module = tree.get(ARGUMENTS)
    found: Facts = {}
    for name in ("EngineArgs", "AsyncEngineArgs"):
        for field in fields_of(module, module.get_class(name)).values():
            if field.init and not field.name.startswith("_"):
                found[field.name] = (field.default, module.source(f"{field.owner}.{field.name}"))
    return found


def flags(tree: Tree) -> Facts:
    """Every flag of `vllm serve`, by its long name.

    `kind` is `switch` (takes no value; `negation` names its opposite, if any), `value`, `list` or `json`.
    """
    found: Facts = {}
    for module, scope, calls in _parsers(tree):
        for names, row in calls:
            long = next((name for name in names if name.startswith("--")), None)
            if long:
                rest = [name for name in names if name != long]
                negation = {"negation": f"--no-{long[2:]}"} if row.pop("negatable", False) else {}
                field = row.pop("dest", None) or long[2:].replace("-", "_")
                found[long] = ({"aliases": rest, "field": field, **row, **negation}, module.source(scope))
    if len(found) < _FEWEST:
        raise NotFound(f"vLLM {tree.version}: only {len(found)} flags of vllm serve were read")
    return dict(sorted(found.items()))


_FEWEST = 150
"""vLLM 0.9.2 has more; fewer means that a parser was missed."""
_Call = tuple[list[str], dict[str, Any]]


def _parsers(tree: Tree) -> Iterator[tuple[Module, str, Iterator[_Call]]]:
    engine, front = tree.get(ARGUMENTS), tree.get(*FRONTEND)
    for name in ("EngineArgs", "AsyncEngineArgs"):
        yield engine, f"{name}.add_cli_args", _added(engine, engine.get_function("add_cli_args", of=name))
    yield front, "make_arg_parser", _added(front, front.get_function("make_arg_parser"))
    if isinstance(front.names.get("FrontendArgs"), ast.ClassDef):
        yield front, "FrontendArgs", _from_fields(front, front.get_class("FrontendArgs"))
    serve = tree.get(_SERVE)
    yield serve, "ServeSubcommand", _added(serve, serve.get_function("subparser_init", of="ServeSubcommand"))


def _added(module: Module, function: ast.FunctionDef) -> Iterator[_Call]:
    scope = _Scope(module, function)
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Attribute(attr="add_argument"), args=names, keywords=keywords):
                given = [evaluate(module, name) for name in names]
                if all(isinstance(name, str) for name in given):
                    yield given, scope.row(keywords)


class _Scope:
    """The local names of a function that adds flags: configs whose fields were turned into keywords, and the rest."""

    def __init__(self, module: Module, function: ast.FunctionDef) -> None:
        self.module = module
        self.configs: dict[str, dict[str, Field]] = {}
        self.locals: dict[str, ast.expr] = {}
        self.changes = _changes(module, function)
        for node in ast.walk(function):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=func, args=[cls])):
                    if ast.unparse(func) == "get_kwargs":
                        self.configs[name] = self._fields(cls)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self.locals[name] = value

    def row(self, keywords: list[ast.keyword]) -> dict[str, Any]:
        """Return a flag's row from the keywords of its `add_argument`."""
        row: dict[str, Any] = {}
        for keyword in keywords:
            name, value = keyword.arg, keyword.value
            row |= self._spread(value) if name is None else _keyword(self.module, name, value)
        row.setdefault("kind", "value")
        row.setdefault("type", "bool" if row["kind"] == "switch" else "str")
        row.setdefault("default", None)
        return row

    def _spread(self, node: ast.expr) -> dict[str, Any]:
        """Return what `**kwargs` gives: `config_kwargs["field"]`, a dictionary over one, or a local name for either."""
        match node:
            case ast.Name(id=name) if name in self.locals:
                return self._spread(self.locals[name])
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str() as key)) if name in self.configs:
                return _changed(_of_field(self.module.tree, self.configs[name][key]), self.changes.get(key, {}))
            case ast.Subscript(value=ast.Call(args=[cls]), slice=ast.Constant(value=str() as key)):
                return _of_field(self.module.tree, self._fields(cls)[key])
            case ast.Dict(keys=keys, values=values):
                row: dict[str, Any] = {}
                for name_node, value in zip(keys, values, strict=True):
                    if name_node is None:
                        row |= self._spread(value)
                    else:
                        row |= _keyword(self.module, evaluate(self.module, name_node), value)
                return row
        raise NotFound(f"vLLM {self.module.tree.version}: **{ast.unparse(node)} in a flag of {self.module.path}")

    def _fields(self, cls: ast.expr) -> dict[str, Field]:
        return fields_of(*self.module.tree.find_class(ast.unparse(cls), self.module.path))


def _keyword(module: Module, name: str, node: ast.expr) -> dict[str, Any]:
    text = ast.unparse(node)
    match name:
        case "action" if text in ("'store_true'", "'store_false'"):
            return {"kind": "switch", "default": text == "'store_false'"}
        case "action" if "BooleanOptionalAction" in text:
            return {"kind": "switch", "negatable": True}
        case "action" if text == "'append'":
            return {"kind": "value", "repeatable": True}
        case "type":
            return {"type": text} | ({"kind": "json"} if "json.loads" in text else {})
        case "nargs" if evaluate(module, node) in ("+", "*"):
            return {"kind": "list"}
        case "nargs" if evaluate(module, node) == "?":
            return {"optional_value": True}
        case "choices":
            choices = _choices(module, node)
            return {} if choices is UNKNOWN else {"choices": choices}
        case "default" | "dest":
            return {} if text == "argparse.SUPPRESS" else {name: written(module, node)}
        case "deprecated":
            return {"deprecated": evaluate(module, node)}
    return {}


def _choices(module: Module, node: ast.expr) -> Any:
    """Return the choices of a flag, or `UNKNOWN`. Those that hang on the platform are all there, CUDA's by its name."""
    match node:
        case ast.BinOp(left=left, op=ast.Add(), right=right) | ast.IfExp(body=left, orelse=right):
            parts = [_choices(module, left), _choices(module, right)]
            return UNKNOWN if UNKNOWN in parts else [*parts[0], *parts[1]]
        case ast.List(elts=[ast.Attribute() as each]) if ast.unparse(each) == "current_platform.device_type":
            return ["cuda"]
    return evaluate(module, node)


def _of_field(tree: Tree, field: Field) -> dict[str, Any]:
    """Return what vLLM's `get_kwargs` makes of a config field: the same cases in the same order.

    The parser takes any text for an enumeration; the config refuses what is no member of it.
    """
    row: dict[str, Any] = {"kind": "value", "type": field.type, "default": field.default}
    kinds = field.kinds
    if "dataclass" in kinds:
        return row | {"kind": "json"}
    if kinds == {"bool", "str", "none"} and _OPTIONAL_VALUE in tree.get(ARGUMENTS).text:
        return row | {"optional_value": True}
    if "bool" in kinds:
        return row | {"kind": "switch", "negatable": True}
    if "literal" in kinds:
        is_open = "str" in kinds and _OPEN_LITERALS in tree.get(ARGUMENTS).text
        return row | {"suggestions" if is_open else "choices": field.choices}
    if kinds & {"tuple", "list", "set"}:
        hint = next(hint for hint in field.hints if hint.kind in ("tuple", "list", "set"))
        options = literal(hint.module, hint.inner) if hint.module and hint.inner else None
        return row | {"kind": "list"} | ({"choices": options} if options else {})
    if kinds & {"int", "float"}:
        return row
    if kinds & {"dict", "dict_class"}:
        return row | ({} if "str" in kinds else {"kind": "json"})
    return row | ({"suggestions": field.choices} if "enum" in kinds and "str" not in kinds else {})


_OPTIONAL_VALUE = "type_hints == {bool, str, type(None)}"
"""Releases whose `get_kwargs` knows flags that may stand alone or take a value."""
_OPEN_LITERALS = '"metavar" if contains_type(type_hints, str)'
"""Releases whose `get_kwargs` lets other strings through where a literal is joined with `str`."""


def _from_fields(module: Module, node: ast.ClassDef) -> Iterator[_Call]:
    """Yield the flags of a class whose fields all become flags, after the changes that the class itself makes."""
    changes: dict[str, dict[str, Any]] = {}
    for owner, cls in reversed(list(_lineage(module, node))):
        for function in (owner.find_function(name, of=cls.name) for name in _CUSTOMISE):
            for name, change in _changes(owner, function).items() if function else ():
                changes.setdefault(name, {}).update(change)
    for field in fields_of(module, node).values():
        row = _changed(_of_field(module.tree, field), changes.get(field.name, {}))
        flags = row.pop("flags", [])
        yield [*flags, f"--{field.name.replace('_', '-')}"], row


def _lineage(module: Module, node: ast.ClassDef) -> Iterator[tuple[Module, ast.ClassDef]]:
    yield module, node
    for owner, base in bases_of(module, node):
        yield from _lineage(owner, base)


def _changes(module: Module, function: ast.FunctionDef) -> dict[str, dict[str, Any]]:
    """Return, by field, what `kwargs["field"]["key"] = value` and its like change in the keywords of a flag.

    The like are a local name for `kwargs["field"]`, additions to a list, removals from it.
    """
    found: dict[str, dict[str, Any]] = {}
    names: dict[str, str] = {}
    for node in ast.walk(function):
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Subscript(value=ast.Name(), slice=ast.Constant(value=str() as of)),
            ):
                names[name] = of
            case ast.Assign(
                targets=[ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str() as key))], value=value
            ) if name in names:
                found.setdefault(names[name], {}).update(_keyword(module, key, value))
            case ast.Assign(targets=[target], value=value) if place := _place(target):
                name, key = place
                change = {key: evaluate(module, value)} if key == "flags" else _keyword(module, key, value)
                found.setdefault(name, {}).update(change)
            case ast.AugAssign(target=target) if (place := _place(target)) and place[1] == "choices":
                found.setdefault(place[0], {})["open"] = True
            case ast.Delete(targets=[target]) if (place := _place(target)) and place[1] == "nargs":
                found.setdefault(place[0], {}).setdefault("kind", "value")
            case ast.Call(func=ast.Attribute(value=target, attr="remove"), args=[value]) if place := _place(target):
                found.setdefault(place[0], {})["without"] = evaluate(module, value)
    return found


def _place(target: ast.expr) -> tuple[str, str] | None:
    """Return the field and the key of `kwargs["field"]["key"]`."""
    match target:
        case ast.Subscript(value=ast.Subscript(slice=ast.Constant(value=str() as name)), slice=ast.Constant(value=key)):
            return name, str(key)
    return None


def _changed(row: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    change = dict(change)
    without, is_open = change.pop("without", None), change.pop("open", False)
    row = row | change
    if "choices" in row and without is not None:
        row["choices"] = [choice for choice in row["choices"] if choice != without]
    return {("suggestions" if is_open and key == "choices" else key): value for key, value in row.items()}
