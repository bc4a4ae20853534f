"""Whether an API server takes an object whole: its fields against the schema of its kind, unknown ones refused.

An API server that is not asked to be strict takes an object with an unknown field and drops the field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from draftwise.core import Finding
from draftwise.knowledge.kinds import find_kind, read_schema
from draftwise.setups.read.manifests.inference_services import find_refusals
from draftwise.setups.read.manifests.yaml_text import read_yaml

__all__ = ["validate", "validate_text"]

_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "object": Mapping,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}
_Path = tuple[str | int, ...]


def validate_text(text: str, *, name: str, release: str = "") -> Iterator[Finding]:
    """Yield what an API server would refuse or drop of the objects in a file; nothing for a file of another kind.

    Args:
        text: of the file.
        name: of the file.
        release: of the project that defines the kinds; by default the newest that is known.
    """
    for document in read_yaml(text, name=name) if name.endswith((".yaml", ".yml")) else ():
        if isinstance(document.value, Mapping) and "kind" in document.value:
            yield from (replace(each, where=f"{name} {each.where}") for each in validate(document.value, release))


def validate(document: Mapping[str, Any], release: str = "") -> Iterator[Finding]:
    """Yield what of an object is refused or dropped; nothing for a kind whose schema is not known here.

    Args:
        document: the object.
        release: of the project that defines the kind; by default the newest that is known.
    """
    kind = find_kind(str(document.get("apiVersion")), str(document.get("kind")), release)
    if kind is not None:
        # A webhook sees what the schema takes.
        yield from list(_check(document, read_schema(kind), ())) or _find_refusals(document)


def _find_refusals(document: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what KServe refuses of an object that its schema takes."""
    if document["kind"] == "InferenceService":
        spec = document["spec"]
        predictors = {"spec.predictor": spec["predictor"]}
        predictors |= {
            f"spec.canary[{i}].predictor": each["predictor"] for i, each in enumerate(spec.get("canary", ()))
        }
        for where, predictor in predictors.items():
            yield from find_refusals(predictor, where)


def _check(value: Any, schema: Mapping[str, Any], path: _Path) -> Iterator[Finding]:
    """Yield what is wrong with a value; of a value of another type, only that."""
    types = schema.get("type")
    if types is not None and not _has_type(value, types):
        wanted = types if isinstance(types, str) else " or ".join(types)
        yield _finding("field-of-wrong-type", path, f"is {value!r:.60} where {wanted} is wanted")
        return
    yield from _check_plain(value, schema, path)
    match value:
        case Mapping():
            yield from _check_fields(value, schema, path)
        case list():
            yield from _check_size(len(value), schema, "Items", path)
            for index, item in enumerate(value):
                yield from _check(item, schema.get("items", {}), (*path, index))
        case str():
            yield from _check_size(len(value), schema, "Length", path)


def _has_type(value: Any, types: str | Sequence[str]) -> bool:
    names = [types] if isinstance(types, str) else types
    if isinstance(value, bool):
        return "boolean" in names
    return any(isinstance(value, _TYPES[name]) for name in names)


def _check_plain(value: Any, schema: Mapping[str, Any], path: _Path) -> Iterator[Finding]:
    if "enum" in schema and value not in schema["enum"]:
        yield _finding(
            "field-value-refused", path, f"is {value!r:.60}, and may be {', '.join(map(str, schema['enum']))}"
        )
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        yield _finding("field-value-refused", path, f"is {value!r:.60}, which {schema['pattern']} does not match")
    if isinstance(value, int | float):
        if value < schema.get("minimum", value):
            yield _finding("field-value-refused", path, f"is {value}, and at least {schema['minimum']} is wanted")
        if value > schema.get("maximum", value):
            yield _finding("field-value-refused", path, f"is {value}, and at most {schema['maximum']} is wanted")


def _check_size(size: int, schema: Mapping[str, Any], of: str, path: _Path) -> Iterator[Finding]:
    least, most = schema.get(f"min{of}", 0), schema.get(f"max{of}", size)
    if not least <= size <= most:
        bounds = f"at least {least}" if size < least else f"at most {most}"
        yield _finding(
            "field-value-refused",
            path,
            f"has {size} {'items' if of == 'Items' else 'characters'}, and {bounds} are wanted",
        )


def _check_fields(value: Mapping[str, Any], schema: Mapping[str, Any], path: _Path) -> Iterator[Finding]:
    fields, rest = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if name not in value:
            yield _finding("field-missing", (*path, name), "is required and not given")
    for name, item in value.items():
        if name in fields:
            yield from _check(item, fields[name], (*path, name))
        elif isinstance(rest, Mapping):
            yield from _check(item, rest, (*path, name))
        elif not rest:
            near = get_close_matches(str(name), fields, n=1)
            fix = f"Write {near[0]}." if near else f"Fields there: {', '.join(fields)[:200]}."
            yield _finding("field-unknown", (*path, name), "is no field there, and the API server drops it", fix)


def _finding(code: str, path: _Path, text: str, fix: str = "") -> Finding:
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
    return Finding.error(code, f"{place} {text}.", where=place, fix=fix)
