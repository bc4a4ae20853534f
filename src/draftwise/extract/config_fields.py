"""Extracts the config classes that engine flags become, with their fields as pydantic validates them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from draftwise.extract.dataclass_fields import Field, fields_of, type_text
from draftwise.extract.expressions import UNKNOWN, bases_of, evaluate, literal, members
from draftwise.extract.speculative import ARGUMENTS, Facts
from draftwise.extract.tree import Module, Tree

Config = tuple[Module, ast.ClassDef]
_OWN_TOPIC = "SpeculativeConfig"


def config_fields(tree: Tree) -> Facts:
    """Every config field that a flag or a flag's JSON sets, as `Class.field`.

    In addition to type, default, bounds and choices: `config` is the class of an object, `enum` an enumeration's
    members with their values, `by_name` whether member names are case-insensitive, `lowered` whether text is
    lower-cased and dashes become underscores, `split` whether it is split at commas, `unset` whether null is valid,
    `unset_as` the text for null, `required` whether there is no default, and `opaque` whether a validator decides that
    the extraction does not understand.
    """
    found: Facts = {}
    for name, (module, node) in config_classes(tree).items():
        for field in fields_of(module, node).values():
            if field.init and not field.name.startswith("_"):
                row = _row(module, node, field)
                found[f"{name}.{field.name}"] = (row, module.source(f"{field.owner}.{field.name}"))
    return dict(sorted(found.items()))


def config_classes(tree: Tree) -> dict[str, Config]:
    """Return every config class that the engine's arguments name, nested ones, and those that validators make."""
    module = tree.get(ARGUMENTS)
    waiting = [module.tree.resolve(module, name) for name in module.names if name.endswith(("Config", "ConfigArgs"))]
    found: dict[str, Config] = {}
    while waiting:
        match waiting.pop():
            case (inner, ast.ClassDef() as node) if node.name not in found and _is_config(node):
                found[node.name] = (inner, node)
                waiting += _inner_configs(inner, node)
    return {name: found[name] for name in sorted(found) if name != _OWN_TOPIC}


def _is_config(node: ast.ClassDef) -> bool:
    """Say whether pydantic checks a class, which it does for those that `@config` or its own decorator marks."""
    return bool({ast.unparse(mark).partition("(")[0] for mark in node.decorator_list} & {"config", "dataclass"})


def _inner_configs(module: Module, node: ast.ClassDef) -> Iterator[Any]:
    made = [
        part.func
        for _, _, function in read_validators(module, node)
        for part in ast.walk(function)
        if isinstance(part, ast.Call)
    ]
    hints = [part for each in node.body if isinstance(each, ast.AnnAssign) for part in ast.walk(each.annotation)]
    for part in (*hints, *made):
        if isinstance(part, ast.Name):
            yield module.tree.resolve(module, part.id)


def _row(module: Module, node: ast.ClassDef, field: Field) -> dict[str, Any]:
    row = field.row()
    if row["default"] is UNKNOWN:
        row = {key: value for key, value in row.items() if key != "default"} | {"required": True}
    alternatives = list(_alternatives(*_annotation(module, node, field.name)))
    row["type"] = " | ".join(dict.fromkeys(type_text(each) for _, each in alternatives)) or row["type"]
    enum = next((found for each in alternatives if (found := _enum(*each))), {})
    if enum:
        row = {key: value for key, value in row.items() if key != "choices"} | {"enum": enum}
    config = next((cls.name for each in alternatives if (cls := _class(*each)) and _is_config(cls)), None)
    row |= {"config": config} if config else {}
    row |= {"opaque": True} if not alternatives or any(_is_mapping(*each) for each in alternatives) else {}
    row |= _normalised(module, node, field.name, has_enum=bool(enum))
    if row.get("by_name"):  # a text that is no name is refused before values are looked at
        row["enum"] = {name: None if isinstance(value, str) else value for name, value in row["enum"].items()}
    return row


def _annotation(module: Module, node: ast.ClassDef, name: str) -> tuple[Module, ast.expr | None]:
    """Return a field's annotation, which may be a base's, with the module that it stands in."""
    for statement in node.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=found), annotation=annotation) if found == name:
                return module, annotation
    inherited = (_annotation(inner, base, name) for inner, base in bases_of(module, node))
    return next((each for each in inherited if each[1] is not None), (module, None))


def _alternatives(module: Module, annotation: ast.expr | None) -> Iterator[tuple[Module, ast.expr]]:
    """Yield the alternatives of an annotation that a text or JSON can stand for, with aliases followed."""
    match annotation:
        case ast.Constant(value=str() as quoted):
            yield from _alternatives(module, ast.parse(quoted, mode="eval").body)
        case ast.BinOp(op=ast.BitOr(), left=left, right=right):
            yield from _alternatives(module, left)
            yield from _alternatives(module, right)
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            yield from _alternatives(module, inner)
            yield module, ast.Constant(None)
        case ast.Subscript(value=ast.Name(id="Union"), slice=ast.Tuple(elts=parts)):
            for part in parts:
                yield from _alternatives(module, part)
        case ast.Subscript(value=ast.Name(id="InitVar" | "SkipValidation"), slice=inner):
            yield from _alternatives(module, inner)
        case ast.Subscript(value=ast.Name(id="type" | "Callable")):
            pass  # a class or a function
        case ast.Name() | ast.Attribute():
            yield from _named(module, annotation)
        case ast.expr():
            yield module, annotation


def _named(module: Module, name: ast.Name | ast.Attribute) -> Iterator[tuple[Module, ast.expr]]:
    found = module.tree.resolve(module, ast.unparse(name))
    match found:
        case (inner, ast.expr() as alias) if literal(module, name) is None:
            yield from _alternatives(inner, alias)
        case (_, ast.ClassDef() as cls):
            if _is_config(cls) or _is_enum(cls) or _is_mapping(module, name):
                yield module, name
        case _:
            yield module, name


def _class(module: Module, name: ast.expr) -> ast.ClassDef | None:
    found = module.tree.resolve(module, ast.unparse(name)) if isinstance(name, (ast.Name, ast.Attribute)) else None
    return found[1] if found and isinstance(found[1], ast.ClassDef) else None


def _is_enum(cls: ast.ClassDef) -> bool:
    return any("Enum" in ast.unparse(base) for base in cls.bases)


def _is_mapping(module: Module, name: ast.expr) -> bool:
    """Say whether a type is a mapping of its own, whose keys are not known here."""
    cls = _class(module, name)
    return cls is not None and any("dict" in ast.unparse(base).lower() for base in cls.bases)


def _enum(module: Module, name: ast.expr) -> dict[str, Any]:
    """Return the members of an enumeration, with the values that stand for them in JSON. Empty for another type."""
    cls = _class(module, name)
    if cls is None or not _is_enum(cls):
        return {}
    found = module.tree.resolve(module, ast.unparse(name))
    owner = found[0] if found else module
    values = {
        statement.targets[0].id: evaluate(owner, statement.value)
        for statement in cls.body
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
    }
    plain = (bool, int, float, str)
    return {name: values[name] if isinstance(values[name], plain) else None for name in members(cls)}


def read_validators(module: Module, node: ast.ClassDef) -> Iterator[tuple[str, tuple[str, ...], ast.FunctionDef]]:
    """Yield (mode, fields, function) of a class's validators in order. Validators of the whole class name no field."""
    for statement in node.body:
        if not isinstance(statement, ast.FunctionDef):
            continue
        for mark in statement.decorator_list:
            match mark:
                case ast.Call(func=ast.Name(id="field_validator" | "model_validator"), args=names, keywords=keywords):
                    given = {keyword.arg: evaluate(module, keyword.value) for keyword in keywords}
                    fields = tuple(str(evaluate(module, name)) for name in names)
                    function = module.get_function(statement.name, of=node.name)
                    yield str(given.get("mode", "after")), fields, function


def _normalised(module: Module, node: ast.ClassDef, name: str, *, has_enum: bool) -> dict[str, Any]:
    """Return what validators that run before the type is looked at make of a field."""
    row: dict[str, Any] = {}
    for mode, fields, function in read_validators(module, node):
        if mode in ("before", "wrap", "plain") and {name, "*"} & set(fields):
            row |= _read_validator(function, has_enum=has_enum)
    return row


def _read_validator(function: ast.FunctionDef, *, has_enum: bool) -> dict[str, Any]:
    text = "\n".join(ast.unparse(statement) for statement in function.body if not _is_docstring(statement))
    if text in _SKIPS_NONE:
        return {"unset": True}
    if has_enum and "[value.upper()]" in text:
        return {"by_name": True} | ({"unset_as": "auto"} if "value.lower() == 'auto'" in text else {})
    if has_enum and "[mode_name]" in text:
        return {"by_name": True}
    if "value.lower().replace('-', '_')" in text:
        return {"lowered": True}
    if text == _SPLITS:
        return {"split": True}
    if text == _MAKES_CONFIG.format(cls=_made(function)) or _only_looks(function):
        return {}
    return {"opaque": True}


_SKIPS_NONE = (
    "return None if value is None else handler(value)",
    "if value is None:\n    return value\nreturn handler(value)",
)
_SPLITS = (
    "if isinstance(value, str):\n    value = value.replace(' ', '').split(',')\n"
    "assert all((isinstance(v, str) for v in value))\nreturn value"
)
_MAKES_CONFIG = "if isinstance(value, dict):\n    return {cls}(**value)\nreturn value"


def _only_looks(function: ast.FunctionDef) -> bool:
    """Say whether a validator hands on what it was given, if it does not refuse it."""
    value = function.args.args[1].arg if len(function.args.args) > 1 else ""
    nodes = [node for part in function.body for node in ast.walk(part)]
    kept = not any(
        isinstance(node, ast.Name) and node.id == value and isinstance(node.ctx, ast.Store) for node in nodes
    )
    returned = [node.value for node in nodes if isinstance(node, ast.Return)]
    return kept and bool(returned) and all(isinstance(each, ast.Name) and each.id == value for each in returned)


def _made(function: ast.FunctionDef) -> str:
    calls = [node for part in function.body for node in ast.walk(part) if isinstance(node, ast.Call) and node.keywords]
    return ast.unparse(calls[0].func) if calls else ""


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
