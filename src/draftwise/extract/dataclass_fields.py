"""Reads the fields of vLLM's config dataclasses: type, default, constraints and choices."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from draftwise.extract.expressions import UNKNOWN, bases_of, default_of, evaluate, literal, members
from draftwise.extract.tree import Module

_CONSTRAINTS = ("gt", "ge", "lt", "le", "min_length", "max_length")
_BUILTIN = frozenset({"bool", "int", "str", "float", "dict", "list", "set", "tuple", "Any", "object", "bytes"})
_GENERIC = {"Mapping": "dict", "Dict": "dict", "Sequence": "list", "List": "list", "Set": "set", "Tuple": "tuple"}


@dataclass(frozen=True, slots=True)
class Hint:
    """One alternative of a type annotation."""

    kind: str
    """`none`, a builtin's name, `literal`, `enum`, `dataclass`, `dict_class` or `other`."""
    options: tuple[Any, ...] = ()
    """Options of a literal or an enumeration."""
    inner: ast.expr | None = None
    """Argument of a generic."""
    module: Module | None = None
    """Module in which to resolve `inner`."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a config class."""

    name: str
    type: str
    default: Any
    hints: tuple[Hint, ...]
    init: bool
    constraints: dict[str, Any]
    owner: str
    """Class that declares the field."""

    @property
    def kinds(self) -> set[str]:
        return {hint.kind for hint in self.hints}

    @property
    def choices(self) -> list[Any]:
        return [option for hint in self.hints for option in hint.options]

    def row(self) -> dict[str, Any]:
        """Return the field as a row of a data file."""
        row: dict[str, Any] = {"type": self.type, "default": self.default, **self.constraints}
        choices = self.choices or [*self._find_item_choices()]
        return row | ({"choices": choices} if choices else {})

    def _find_item_choices(self) -> Iterator[Any]:
        """Yield the options of the named type that a list holds, or of the named literal that a mapping holds."""
        for hint in self.hints:
            match hint:
                case Hint("list", inner=ast.Name() as item, module=Module() as module):
                    yield from (option for inner in flatten(module, item) for option in inner.options)
                case Hint("dict", inner=ast.Tuple(elts=[_, ast.Name() as item]), module=Module() as module):
                    inside = (inner for inner in flatten(module, item) if inner.kind == "literal")
                    yield from (option for inner in inside for option in inner.options)


def fields_of(module: Module, node: ast.ClassDef) -> dict[str, Field]:
    """Return the fields of a dataclass, those of its bases first."""
    found: dict[str, Field] = {}
    for inner, base in bases_of(module, node):
        found |= fields_of(inner, base)
    for statement in node.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                if not ast.unparse(annotation).startswith("ClassVar"):
                    found[name] = _field(module, name, annotation, value, node.name)
    return found


def _field(module: Module, name: str, annotation: ast.expr, value: ast.expr | None, owner: str) -> Field:
    keywords: dict[str | None, ast.expr] = {}
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in ("Field", "field"):
        keywords = {keyword.arg: keyword.value for keyword in value.keywords}
    hints = tuple(flatten(module, annotation))
    constraints = {key: evaluate(module, keywords[key]) for key in _CONSTRAINTS if key in keywords}
    return Field(
        name=name,
        type=type_text(annotation),
        default=default_of(module, value),
        hints=hints,
        init=evaluate(module, keywords.get("init")) is not False,
        constraints={key: bound for key, bound in constraints.items() if bound is not UNKNOWN},
        owner=owner,
    )


def type_text(annotation: ast.expr) -> str:
    """Return an annotation as text, with `Optional` and `Union` in modern syntax."""
    match annotation:
        case ast.Constant(value=str() as quoted):
            return type_text(ast.parse(quoted, mode="eval").body)
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            return f"{type_text(inner)} | None"
        case ast.Subscript(value=ast.Name(id="Union"), slice=ast.Tuple(elts=parts)):
            return " | ".join(type_text(part) for part in parts)
        case ast.Subscript(value=ast.Name(id="SkipValidation"), slice=inner):
            return type_text(inner)
        case ast.BinOp(op=ast.BitOr(), left=left, right=right):
            return f"{type_text(left)} | {type_text(right)}"
        case ast.Attribute(attr=name):
            return name
    return ast.unparse(annotation)


def flatten(module: Module, annotation: ast.expr) -> Iterator[Hint]:
    """Yield the alternatives of an annotation, with aliases resolved."""
    match annotation:
        case ast.Constant(value=None):
            yield Hint("none")
        case ast.Constant(value=str() as quoted):
            yield from flatten(module, ast.parse(quoted, mode="eval").body)
        case ast.BinOp(op=ast.BitOr(), left=left, right=right):
            yield from flatten(module, left)
            yield from flatten(module, right)
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            yield from flatten(module, inner)
            yield Hint("none")
        case ast.Subscript(value=ast.Name(id="Union"), slice=ast.Tuple(elts=parts)):
            for part in parts:
                yield from flatten(module, part)
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[inner, *_])):
            yield from flatten(module, inner)
        case ast.Subscript(value=ast.Name(id="SkipValidation"), slice=inner):
            yield from flatten(module, inner)
        case ast.Subscript(value=ast.Name(id="Literal")):
            yield Hint("literal", tuple(literal(module, annotation) or ()))
        case ast.Subscript(value=ast.Name(id=name), slice=inner):
            yield Hint(_GENERIC.get(name, name if name in _BUILTIN else "other"), inner=inner, module=module)
        case ast.Name(id=name) if name in _BUILTIN:
            yield Hint("other" if name in ("Any", "object", "bytes") else name)
        case _:
            yield from _named(module, annotation)


def _named(module: Module, annotation: ast.expr) -> Iterator[Hint]:
    found = module.tree.resolve(module, ast.unparse(annotation))
    match found:
        case (inner, ast.ClassDef() as node):
            yield _class(inner, node)
        case (inner, ast.expr() as alias):
            yield from flatten(inner, alias)
        case _:
            yield Hint("other")


def _class(module: Module, node: ast.ClassDef) -> Hint:
    bases = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}
    if any("Enum" in base for base in bases):
        return Hint("enum", tuple(members(node)))
    if {ast.unparse(mark).partition("(")[0] for mark in node.decorator_list} & {"config", "dataclass"}:
        return Hint("dataclass")
    if "dict" in bases or "TypedDict" in bases:
        return Hint("dict_class" if "dict" in bases else "other")
    inherited = [_class(inner, base).kind for inner, base in bases_of(module, node)]
    return Hint("dataclass" if "dataclass" in inherited else "other")
