"""Checks an object as an API server does: its fields against the schema of its kind, and the returned object.

Without strict validation, an API server accepts an object with an unknown field, and drops the field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from difflib import get_close_matches
from re import compile as compile_pattern
from typing import Any

from draftwise.core import Finding, Severity
from draftwise.knowledge.kinds import find_kind, read_schema
from draftwise.knowledge.messages import refusal, unreadable
from draftwise.setups.read import SourceText
from draftwise.setups.read.manifests.inference_services import find_refusals
from draftwise.setups.read.manifests.yaml_text import Path, YamlDocument, get_text, read_yaml

_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "object": Mapping,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}
_SET_BY_SERVER = frozenset(
    {"creationTimestamp", "generation", "resourceVersion", "uid", "managedFields", "selfLink", "deletionTimestamp"}
)
"""Metadata that an API server sets (v1.ObjectMeta): files that kubectl printed have it."""
_Path = tuple[str | int, ...]


def validate_text(text: str, *, name: str, release: str = "") -> Iterator[Finding]:
    """Yield what an API server would reject or drop in the objects of a file; nothing for other files."""
    for document in read_yaml(text, name=name) if name.endswith((".yaml", ".yml")) else ():
        if isinstance(document.value, Mapping) and "kind" in document.value:
            yield from (replace(each, where=f"{name} {each.where}") for each in validate(document.value, release))


def validate(document: Mapping[str, Any], release: str = "") -> Iterator[Finding]:
    """Yield what is rejected or dropped in an object; nothing for a kind with an unknown schema."""
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
    """Yield what is wrong with a value. Of a value of another type, only that."""
    types = schema.get("type")
    if types is not None and not _has_type(value, types):
        wanted = types if isinstance(types, str) else " or ".join(types)
        yield _fault("field-of-wrong-type", path, f"is {value!r:.60}, but must be {wanted}")
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
        yield _fault(
            "field-value-refused", path, (f"is {value!r:.60}, but must be one of {', '.join(map(str, schema['enum']))}")
        )
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        yield _fault("field-value-refused", path, f"is {value!r:.60}, which does not match {schema['pattern']}")
    if isinstance(value, int | float):
        if value < schema.get("minimum", value):
            yield _fault("field-value-refused", path, f"is {value}, but must be at least {schema['minimum']}")
        if value > schema.get("maximum", value):
            yield _fault("field-value-refused", path, f"is {value}, but must be at most {schema['maximum']}")


def _check_size(size: int, schema: Mapping[str, Any], of: str, path: _Path) -> Iterator[Finding]:
    least, most = schema.get(f"min{of}", 0), schema.get(f"max{of}", size)
    if not least <= size <= most:
        bounds = f"at least {least}" if size < least else f"at most {most}"
        yield _fault(
            "field-value-refused",
            path,
            f"has {size} {('items' if of == 'Items' else 'characters')}, but must have {bounds}",
        )


def _check_fields(value: Mapping[str, Any], schema: Mapping[str, Any], path: _Path) -> Iterator[Finding]:
    fields, rest = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if name not in value:
            yield _fault("field-missing", (*path, name), "is required but missing")
    for name, item in value.items():
        if name in fields:
            yield from _check(item, fields[name], (*path, name))
        elif isinstance(rest, Mapping):
            yield from _check(item, rest, (*path, name))
        elif not rest and (path != ("metadata",) or name not in _SET_BY_SERVER):
            near = get_close_matches(str(name), fields, n=1)
            fix = f"Write {near[0]}." if near else f"Fields here: {', '.join(fields)[:200]}."
            yield _fault("field-unknown", (*path, name), "is not a field here, so the API server drops it", fix)


def _fault(code: str, path: _Path, text: str, fix: str = "") -> Finding:
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
    return Finding.error(code, f"{place} {text}.", where=place, fix=fix)


_QUANTITY = compile_pattern(r"([+-]?\d+(?:\.\d+)?)(|[munkMGTPE]|[KMGTPE]i)")
_POWERS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = "KMGTPE"
_WRITE_ONLY = {("Secret", "stringData")}
"""Fields of a kind that a server never gives back."""


def compare_returned(sent: SourceText, returned: SourceText) -> Iterator[Finding]:
    """Yield each field of objects that an API server dropped or changed; added fields are ignored.

    Args:
        sent: the manifest.
        returned: output of `kubectl apply --dry-run=server -o json` (or `-o yaml`).

    Raises:
        InvalidSetup: a text is not YAML.
        UnreadableSource: nothing was returned; kubectl prints rejections to standard error.
    """
    found = {_name(each): each for each in _find_objects(returned)}
    documents = [each for each in read_yaml(sent.text, name=sent.name) if isinstance(each.value, Mapping)]
    if not documents:
        raise unreadable("nothing-returned", case="sent", name=sent.name)
    for document in documents:
        name = _name(document.value)
        if name in found:
            yield from _compare(document, found[name], sent.name)
        else:
            kind, _, title = name
            text = f"The API server did not return the {kind} {title}."
            yield _finding("object-not-returned", Severity.ERROR, text, document, (), sent.name)


def _find_objects(source: SourceText) -> Iterator[Mapping[str, Any]]:
    if not source.text.strip():
        raise unreadable("nothing-returned", name=source.name)
    for value in (document.value for document in _split(source)):
        if not isinstance(value, Mapping):
            continue
        if value.get("kind") == "Status":
            raise refusal("refused-by-server", reason=value.get("message"), name=source.name)
        items = value.get("items") if value.get("kind") == "List" else [value]
        yield from (each for each in items or () if isinstance(each, Mapping))


def _split(source: SourceText) -> Sequence[YamlDocument]:
    """Return the documents of what was printed: kubectl writes JSON objects one behind the other."""
    return read_yaml(source.text.replace("\n}\n{", "\n}\n---\n{"), name=source.name)


def _name(value: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return by what an object is known: kind, group of its API (versions are converted), name."""
    metadata = value.get("metadata")
    title = metadata.get("name") if isinstance(metadata, Mapping) else None
    group = str(value.get("apiVersion")).rpartition("/")[0]
    return str(value.get("kind")), group, str(title)


def _compare(document: YamlDocument, returned: Mapping[str, Any], file: str) -> Iterator[Finding]:
    kind = str(document.value.get("kind"))
    for path, before, after in _walk(document.value, returned, ()):
        place = get_text(path)
        if (kind, path[0]) in _WRITE_ONLY or path == ("apiVersion",):
            continue
        if after is _GONE and before:
            text = f"The API server accepted the {kind} without {place}."
            yield _finding("field-dropped", Severity.ERROR, text, document, path, file)
        elif after is _GONE:
            text = f"The API server removed {place}. Its value {before!r} may equal the default."
            yield _finding("field-dropped", Severity.INFO, text, document, path, file)
        else:
            text = f"The API server changed {place} from {before!r:.60} to {after!r:.60}."
            yield _finding("field-changed", Severity.WARNING, text, document, path, file)


_GONE: Any = object()
"""Stands for what did not come back."""


def _walk(before: Any, after: Any, path: Path) -> Iterator[tuple[Path, Any, Any]]:
    """Yield the places where what came back lacks or changes something, the outermost only."""
    if before is None:
        return
    match before, after:
        case Mapping(), Mapping():
            for key, value in before.items():
                yield from _walk(value, after.get(key, _GONE), (*path, str(key)))
        case list(), list():
            for index, item in enumerate(before):
                yield from _walk(item, _find_item(item, index, before, after), (*path, index))
        case _ if after is _GONE or not _is_same(before, after):
            yield path, before, after


def _find_item(item: Any, index: int, before: Sequence[Any], after: Sequence[Any]) -> Any:
    """Return what came back of an item: by its name where it has one, as servers add items of their own."""
    name = item.get("name") if isinstance(item, Mapping) else None
    if name is not None:
        return next((each for each in after if isinstance(each, Mapping) and each.get("name") == name), _GONE)
    if len(before) == len(after):
        return after[index]
    return item if item in after else _GONE


def _is_same(before: Any, after: Any) -> bool:
    """Whether two values mean the same: servers write quantities anew (`1000m` is `1`)."""
    if before == after and isinstance(before, bool) == isinstance(after, bool):
        return True
    number = read_quantity(before)
    return number is not None and number == read_quantity(after)


def read_quantity(value: Any) -> Decimal | None:
    """Return a quantity of Kubernetes (`500m`, `16Gi`) as a number; None for any other value."""
    found = None if isinstance(value, bool) else _QUANTITY.fullmatch(str(value))
    if found is None:
        return None
    number, unit = found.groups()
    if unit.endswith("i"):
        return Decimal(number) * Decimal(1024 ** (1 + _BINARY.index(unit[0])))
    return Decimal(number).scaleb(_POWERS[unit])


def _finding(code: str, severity: Severity, message: str, document: YamlDocument, path: Path, file: str) -> Finding:
    where = f"{file}:{document.line(path)} {get_text(path)}".strip()
    fix = ""
    if code == "field-dropped" and severity is Severity.ERROR:
        fix = "Check its spelling and place in the release of the installed controller."
    return Finding(code=code, severity=severity, message=message, where=where, fix=fix)
