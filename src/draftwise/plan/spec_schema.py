"""The JSON Schema of `--speculative-config` in one vLLM release, from the release's tables, for editors."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from draftwise.knowledge.rules import Rulebook
from draftwise.knowledge.spec_keys import read_spec_keys
from draftwise.knowledge.vllm import Release

_DRAFT = "http://json-schema.org/draft-07/schema#"
"""The version of JSON Schema that editors know best."""
_TYPES = {
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "str": "string",
    "None": "null",
    "LoadConfig": "object",
}
_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
_NUMBERS = frozenset({"integer", "number"})
_OWN = frozenset({"ModelConfig", "ParallelConfig"})
"""Types of fields that vLLM fills in itself."""
_ANY_CASE = "attention_backend"
"""A key whose value vLLM takes in any case, or as `auto`."""


def make_schema(release: Release) -> dict[str, Any]:
    """Return the schema: keys with types, choices, bounds, defaults and meanings, for one release.

    It describes each key separately; `check` judges which keys work with which method. If vLLM also converts a value
    from another type (`"5"` for 5), the schema has only the type itself.
    """
    rules = Rulebook(release.version)
    rows = {name: row for name, row in release.table("spec_fields").items() if row["type"] not in _OWN}
    properties = {name: dict(_describe(release, name, row)) for name, row in rows.items()}
    schema: dict[str, Any] = {
        "$schema": _DRAFT,
        "title": f"--speculative-config of vLLM {release}",
        "type": "object",
        "properties": properties,
        "additionalProperties": rules.holds("ignored-key"),
    }
    dashed = {name.replace("_", "-"): name for name in rows if "_" in name} if rules.holds("dashed-key") else {}
    if dashed:
        schema["patternProperties"] = {
            f"^{spelled}$": {"$ref": f"#/properties/{name}"} for spelled, name in dashed.items()
        }
    return schema


def _describe(release: Release, name: str, row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    known = read_spec_keys().get(name)
    source = release.source("spec_fields", name)
    yield "description", source if known is None else f"{known.meaning} ({source})"
    choices = row.get("choices")
    if name == _ANY_CASE and choices:
        choices = [*choices, *map(str.lower, choices), "auto"]
    bounds = {_BOUNDS[key]: row[key] for key in _BOUNDS if key in row}
    kinds = [dict(_kind(node, choices, bounds)) for node in _members(ast.parse(row["type"], mode="eval").body)]
    fields = [
        field.removeprefix("LoadConfig.") for field in release.table("config_fields") if field.startswith("LoadConfig.")
    ]
    if "LoadConfig" in row["type"] and fields:
        kinds = [kind | ({"propertyNames": {"enum": fields}} if kind == {"type": "object"} else {}) for kind in kinds]
    yield from kinds[0].items() if len(kinds) == 1 else {"anyOf": kinds}.items()
    default = row.get("default")
    if default is not None or {"type": "null"} in kinds:
        yield "default", default


def _members(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp):
        return [*_members(node.left), *_members(node.right)]
    return [node]


def _kind(node: ast.expr, choices: Sequence[Any] | None, bounds: Mapping[str, float]) -> Iterator[tuple[str, Any]]:
    """Yield the schema of one member of a union, such as `int`, `list[tuple[int, int]]` or a named set of choices."""
    if isinstance(node, ast.Subscript):
        yield from _subscripted(node, bounds)
        return
    kind = _TYPES.get(ast.unparse(node))
    if kind is not None:
        yield "type", kind
        yield from bounds.items() if kind in _NUMBERS else ()
    elif choices:
        yield "enum", list(choices)


def _subscripted(node: ast.Subscript, bounds: Mapping[str, float]) -> Iterator[tuple[str, Any]]:
    """Yield the schema of a literal, a list or a tuple. Entries have no bounds of their own in any release."""
    arguments = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    name = ast.unparse(node.value)
    if name == "Literal":
        yield "enum", [ast.literal_eval(each) for each in arguments]
        return
    yield "type", "array"
    items = [dict(_kind(each, None, bounds)) for each in arguments]
    if name == "tuple":
        yield "items", items
        yield from (("minItems", len(items)), ("maxItems", len(items)))
    else:
        yield "items", items[0]
