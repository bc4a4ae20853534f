"""What an API server made of objects: the fields that were sent to it, and did not come back.

An API server that is not asked to be strict accepts an object with an unknown field, and drops the field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from re import compile as compile_pattern
from typing import Any

from draftwise.core import Finding, InvalidSetup, Severity, UnreadableSource
from draftwise.setups.read import SourceText
from draftwise.setups.read.manifests.yaml_text import Path, YamlDocument, get_text, read_yaml

__all__ = ["compare_returned"]

_QUANTITY = compile_pattern(r"([+-]?\d+(?:\.\d+)?)(|[munkMGTPE]|[KMGTPE]i)")
_POWERS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = "KMGTPE"
_WRITE_ONLY = {("Secret", "stringData")}
"""Fields of a kind that a server never gives back."""


def compare_returned(sent: SourceText, returned: SourceText) -> Iterator[Finding]:
    """Yield each field of objects that an API server dropped or changed; what it added is none.

    Args:
        sent: the manifest.
        returned: what `kubectl apply --dry-run=server -o json` (or `-o yaml`) printed of it.

    Raises:
        InvalidSetup: a text is not YAML.
        UnreadableSource: nothing was returned, as kubectl prints a refusal elsewhere.
    """
    found = {_name(each): each for each in _find_objects(returned)}
    for document in read_yaml(sent.text, name=sent.name):
        if not isinstance(document.value, Mapping):
            continue
        name = _name(document.value)
        if name in found:
            yield from _compare(document, found[name], sent.name)
        else:
            kind, _, title = name
            text = f"The {kind} {title} did not come back."
            yield _finding("object-not-returned", Severity.ERROR, text, document, (), sent.name)


def _find_objects(source: SourceText) -> Iterator[Mapping[str, Any]]:
    if not source.text.strip():
        raise UnreadableSource.because(
            "nothing-returned",
            "Nothing was returned: where the API server refuses an object, kubectl says why on its standard error.",
            where=source.name,
            fix="Look at what kubectl said.",
        )
    for value in (document.value for document in _split(source)):
        if not isinstance(value, Mapping):
            continue
        if value.get("kind") == "Status":
            raise InvalidSetup.because(
                "refused-by-server", f"The API server refused it: {value.get('message')}", where=source.name
            )
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
            text = f"The API server took the {kind} without {place}."
            yield _finding("field-dropped", Severity.ERROR, text, document, path, file)
        elif after is _GONE:
            text = f"The API server left {place} out, whose value {before!r} may mean the same as none."
            yield _finding("field-dropped", Severity.INFO, text, document, path, file)
        else:
            text = f"The API server made {after!r:.60} of {place}, which was {before!r:.60}."
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
    number = _read_quantity(before)
    return number is not None and number == _read_quantity(after)


def _read_quantity(value: Any) -> Decimal | None:
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
        fix = "Look for its spelling and its place in the release of the controller that is installed there."
    return Finding(code=code, severity=severity, message=message, where=where, fix=fix)
