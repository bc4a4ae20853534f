"""JSON Schema of documents, from the types and docstrings of the dataclasses that they are written from."""

from __future__ import annotations

import ast
import enum
import inspect
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from draftwise.core.documents import NO_NULL, Entry, derived_of, entries_of

_SCALARS: Mapping[Any, Mapping[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": ["number", "null"]},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
    object: {},
}


def json_schema(kind: Any, *, title: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 7) of what `to_json` writes for values of a type.

    Descriptions are the docstrings of classes, fields and properties.
    """
    definitions = _Definitions()
    body = _schema(kind, definitions)
    if set(body) == {"$ref"} and is_dataclass(kind) and _count_uses(body["$ref"], definitions) == 0:
        body = definitions.pop(body["$ref"].rpartition("/")[2])
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": title}
    return {**head, **body, **({"definitions": dict(sorted(definitions.items()))} if definitions else {})}


class _Definitions(dict[str, Any]):
    """Schemas of classes by name, and whose names these are."""

    def __init__(self) -> None:
        super().__init__()
        self.classes: dict[str, Any] = {}


def _count_uses(reference: str, definitions: Mapping[str, Any]) -> int:
    return str(definitions).count(f"'{reference}'")


def _schema(kind: Any, definitions: _Definitions) -> dict[str, Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in _SCALARS:
        return dict(_SCALARS[kind])
    if origin in (Union, types.UnionType):
        return _union_schema([_schema(each, definitions) for each in arguments])
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple and arguments[-1] is not Ellipsis:
        items = [_schema(each, definitions) for each in arguments]
        return {"type": "array", "items": items, "minItems": len(items), "maxItems": len(items)}
    if origin in (tuple, list, Sequence, set, frozenset):
        return {"type": "array", "items": _schema(arguments[0], definitions)}
    if origin is not None and issubclass(origin, Mapping):
        values = _schema(arguments[1], definitions)
        return {"type": "object", **({"additionalProperties": values} if values else {})}
    return _class_schema(kind, definitions)


def _union_schema(members: list[dict[str, Any]]) -> dict[str, Any]:
    if all(set(each) == {"type"} for each in members):
        names = [
            name for each in members for name in ([each["type"]] if isinstance(each["type"], str) else each["type"])
        ]
        return {"type": list(dict.fromkeys(names))}
    return {"anyOf": members}


def _class_schema(kind: Any, definitions: _Definitions) -> dict[str, Any]:
    if issubclass(kind, enum.Enum):
        return {"enum": [each.value for each in kind]}
    if issubclass(kind, Path):
        return {"type": "string"}
    if hasattr(kind, "JSON_OF"):
        return _schema(get_type_hints(kind)[kind.JSON_OF], definitions)
    if hasattr(kind, "to_wire"):
        return _schema(get_type_hints(kind.to_wire)["return"], definitions)
    if is_dataclass(kind):
        return _reference(kind, definitions)
    return {"type": "object" if issubclass(kind, Mapping) else "string"}


def _reference(kind: Any, definitions: _Definitions) -> dict[str, Any]:
    if definitions.classes.setdefault(kind.__name__, kind) is not kind:
        raise TypeError(f"{kind} and {definitions.classes[kind.__name__]} have the same name in a schema")
    if kind.__name__ not in definitions:
        definitions[kind.__name__] = {}  # it may refer to itself
        definitions[kind.__name__] |= _object_schema(kind, definitions)
    return {"$ref": f"#/definitions/{kind.__name__}"}


def _object_schema(kind: type, definitions: _Definitions) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": {}, "required": []}
    if described := (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " "):
        schema = {"description": described, **schema}
    if (form := getattr(kind, "JSON_FORMAT", None)) is not None:
        schema["properties"] |= {"format": {"const": form.name}, "version": {"const": form.version}}
        schema["required"] += ["format", "version"]
    if (name := getattr(kind, "JSON_KIND", None)) is not None:
        schema["properties"]["kind"] = {"const": name}
        schema["required"].append("kind")
    texts = field_texts(kind)
    for each in entries_of(kind):
        own = _schema(each.type, definitions)
        if each.null is not NO_NULL and own != {}:
            own = _union_schema([own, {"type": "null"}])
        _place(schema, each, _describe(own, texts.get(each.name, "")))
    for key, name in derived_of(kind).items():
        getter = getattr(kind, name).fget
        text = (inspect.getdoc(getter) or "").partition("\n\n")[0].replace("\n", " ")
        schema["properties"][key] = _describe(_schema(get_type_hints(getter)["return"], definitions), text)
        schema["required"].append(key)
    return schema


def _place(schema: dict[str, Any], each: Entry, own: dict[str, Any]) -> None:
    for step in each.path[:-1]:
        inner = schema["properties"].setdefault(step, {"type": "object", "properties": {}, "required": []})
        if step not in schema["required"]:
            schema["required"].append(step)
        schema = inner
    schema["properties"][each.path[-1]] = own
    if not each.omit:
        schema["required"].append(each.path[-1])


def _describe(own: dict[str, Any], text: str) -> dict[str, Any]:
    if not text:
        return own
    if "$ref" in own:  # draft 7 ignores what stands next to a reference
        return {"description": text, "allOf": [own]}
    return {"description": text, **own}


@cache
def field_texts(kind: type) -> dict[str, str]:
    """Return the docstrings of a class's fields, those of its bases included."""
    texts: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if is_dataclass(each):  # one that is made at run time is without a source
            node = _classes_of(each.__module__).get(each.__qualname__)
            texts |= {} if node is None else _attribute_texts(node)
    return texts


@cache
def _classes_of(module: str) -> Mapping[str, ast.ClassDef]:
    """Return the classes that a module's source defines, by qualified name."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError):  # TypeError: built in
        return {}
    found: dict[str, ast.ClassDef] = {}

    def collect(node: ast.AST, owner: str) -> None:
        for inner in ast.iter_child_nodes(node):
            name = owner
            if isinstance(inner, ast.ClassDef):
                found.setdefault(owner + inner.name, inner)
                name = f"{owner}{inner.name}."
            elif isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{owner}{inner.name}.<locals>."
            if not isinstance(inner, ast.expr):
                collect(inner, name)

    collect(tree, "")
    return found


def _attribute_texts(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for before, after in zip(node.body, node.body[1:], strict=False):
        if (
            isinstance(before, ast.AnnAssign)
            and isinstance(before.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            yield before.target.id, " ".join(after.value.value.split())
