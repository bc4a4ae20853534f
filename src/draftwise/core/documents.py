"""JSON of frozen values: written and read back, both from their field types.

The types of a dataclass are its document. `to_json` writes any value, `from_json` reads it back and checks every type,
`read_document` adds the checks of a file's format and version, and `document_schema.json_schema` describes the JSON.

How types are written: a dataclass is an object, an enum its value, a tuple or set an array (a set sorted), a mapping an
object, a path text, and a float that is not finite null. A field deviates with `field(metadata=json_form(...))`, a
class with:

- `JSON_FORMAT`: a `Format`; the document starts with the keys `format` and `version`.
- `JSON_KIND`: the value of the key `kind`, by which the members of a union are told apart.
- `JSON_DERIVED`: names of properties that are written after the fields, and ignored when read.
- `JSON_OTHERS`: the name of a mapping field that holds the keys which belong to no other field.
- `to_wire()` and `from_wire(wire)`: the class has a form of its own; `from_wire`'s annotation is the type of that form.
"""

from __future__ import annotations

import enum
import math
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path, PurePath
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from draftwise.core.finding import InvalidSetup

__all__ = [
    "HIDDEN",
    "NO_NULL",
    "DocumentError",
    "Entry",
    "Format",
    "entries_of",
    "from_json",
    "json_form",
    "read_document",
    "to_json",
]

T = TypeVar("T")
Reader = Callable[[Any], Any]
_EMPTY: tuple[Any, ...] = (None, "", (), [], {})
_NUMBERS = frozenset({int, float})


class DocumentError(ValueError):
    """A JSON value does not have the type that its place requires; the message starts with the place."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.place = ""

    def inside(self, key: str | int) -> DocumentError:
        """Return the error with its place seen from one level further out."""
        step = f"[{key}]" if isinstance(key, int) else f".{key}"
        self.place = f"{step}{self.place}"
        return self

    def __str__(self) -> str:
        """Return the place and the message."""
        place = self.place.removeprefix(".")
        return f"{place}: {super().__str__()}" if place else super().__str__()


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """The format of a file: its name and version, and how a file of another format is reported."""

    name: str
    """Value of the key `format`, e.g. `draftwise-calibration`."""
    version: int
    noun: str
    """What the file holds, with its article: `a calibration`."""
    foreign: str
    """Code of the finding for a file of another format, e.g. `not-a-calibration`."""
    other_version: str
    """Code of the finding for a file of another version."""
    damaged: str
    """Code of the finding for a file whose content does not have the types of the format."""
    written_by: str
    """Which file to name instead: `a file that draftwise calibrate wrote`."""
    again: str
    """How to get a file of this version, a sentence."""
    error: type[InvalidSetup] = InvalidSetup


def json_form(
    *,
    key: str = "",
    hidden: bool = False,
    omit_empty: bool = False,
    omit_null: bool = False,
    null: Any = None,
    wire: Any = None,
    to_wire: Callable[[Any], Any] | None = None,
    from_wire: Callable[[Any], Any] | None = None,
) -> dict[str, Any]:
    """Return the metadata of a dataclass field whose JSON differs from what its type says.

    Args:
        key: key in the object; dots descend into nested objects: `engine.version`.
        hidden: neither written nor read; needs a default to be read back.
        omit_empty: left out where it is None, empty text, or an empty collection.
        omit_null: left out where it is None.
        null: value that null stands for, e.g. infinity.
        wire: type that is written instead of the field's.
        to_wire: from the field's value to a value of type `wire`.
        from_wire: from a value of type `wire` to the field's value.
    """
    given = {
        "key": key,
        "hidden": hidden,
        "omit": omit_empty or ("null" if omit_null else False),
        "null": null,
        "wire": wire,
    }
    hooks = {"to_wire": to_wire, "from_wire": from_wire}
    return {name: value for name, value in (given | hooks).items() if value}


HIDDEN = json_form(hidden=True)
"""Metadata of a field that is not part of the document."""


# Writing


def to_json(value: Any) -> Any:
    """Return a value as JSON values: objects, arrays, text, numbers, true, false and null."""
    kind = type(value)
    if kind in (str, int, bool, type(None)):
        return value
    if kind is float:
        return value if math.isfinite(value) else None
    for accepted, write in _WRITERS:
        if isinstance(value, accepted):
            return write(value)
    if hasattr(kind, "to_wire"):
        return to_json(value.to_wire())
    if is_dataclass(kind):
        return _write_object(value)
    return to_json(value.item()) if hasattr(value, "item") else str(value)  # numpy's scalars; versions and the like


_WRITERS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (enum.Enum, lambda value: value.value),
    (str | PurePath, str),
    (Mapping, lambda value: {_write_key(key): to_json(each) for key, each in value.items()}),
    (set | frozenset, lambda value: [to_json(each) for each in sorted(value)]),
    (Sequence, lambda value: [to_json(each) for each in value]),
)


def _write_key(key: Any) -> str:
    return str(key.value if isinstance(key, enum.Enum) else key)


def _write_object(value: Any) -> dict[str, Any]:
    kind: Any = type(value)
    row: dict[str, Any] = {}
    if (form := getattr(kind, "JSON_FORMAT", None)) is not None:
        row |= {"format": form.name, "version": form.version}
    if (name := getattr(kind, "JSON_KIND", None)) is not None:
        row["kind"] = name
    others = getattr(kind, "JSON_OTHERS", None)
    for each in entries_of(kind):
        found = getattr(value, each.name)
        written = None if found == each.null else to_json(each.to_wire(found) if each.to_wire else found)
        if not (each.omit and written in (_EMPTY if each.omit is True else (None,))):
            place = row
            for step in each.path[:-1]:
                place = place.setdefault(step, {})
            place[each.path[-1]] = written
    if others is not None:
        row |= to_json(getattr(value, others))
    row |= {name: to_json(getattr(value, name)) for name in getattr(kind, "JSON_DERIVED", ())}
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """How one field of a class is written and read."""

    name: str
    path: tuple[str, ...]
    type: Any
    """Type of what is written."""
    is_required: bool
    """Whether it has no default."""
    omit: bool | str
    """Whether it is left out where it is empty; `null`: only where it is null."""
    null: Any
    """Value that null stands for; `NO_NULL` where null is not special."""
    to_wire: Callable[[Any], Any] | None
    from_wire: Callable[[Any], Any] | None


NO_NULL = object()
"""No value of a field is written as null."""


@cache
def entries_of(kind: Any) -> tuple[Entry, ...]:
    """Return the entries of a dataclass, without hidden fields and the one for other keys."""
    hints = get_type_hints(kind)
    others = getattr(kind, "JSON_OTHERS", None)
    shown = [each for each in fields(kind) if not each.metadata.get("hidden") and each.name != others]
    return tuple(_entry(each, hints[each.name]) for each in shown)


def _entry(each: Field[Any], kind: Any) -> Entry:
    given = each.metadata
    return Entry(
        name=each.name,
        path=tuple(str(given.get("key") or each.name).split(".")),
        type=given.get("wire") or kind,
        is_required=each.default is MISSING and each.default_factory is MISSING,
        omit=given.get("omit", False),
        null=given.get("null", NO_NULL),
        to_wire=given.get("to_wire"),
        from_wire=given.get("from_wire"),
    )


# Reading


def from_json(kind: type[T], value: Any) -> T:
    """Return the value of type `kind` that `to_json` wrote.

    Raises:
        DocumentError: the JSON does not have the types of `kind`; names the place.
        ValueError: the types are right, and `kind` refuses the values.
    """
    any_type: Any = kind
    result: T = _reader_for(any_type)(value)
    return result


def read_document(kind: type[T], row: Any, where: str) -> T:
    """Return the value of a document that has a format and a version.

    Args:
        kind: dataclass with a `JSON_FORMAT`.
        row: JSON value of the file.
        where: the file, for messages.

    Raises:
        InvalidSetup: the document has another format or version, or is damaged.
    """
    form: Format = kind.JSON_FORMAT  # type: ignore[attr-defined]
    if not isinstance(row, Mapping) or row.get("format") != form.name:
        raise form.error.because(
            form.foreign, f"{where} is not {form.noun}.", where=where, fix=f"Name {form.written_by}."
        )
    if row.get("version") != form.version:
        raise form.error.because(
            form.other_version,
            f"{where} has version {row.get('version')}; this draftwise reads version {form.version}.",
            where=where,
            fix=f"{form.again} Or use the draftwise that wrote the file.",
        )
    try:
        return from_json(kind, row)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise form.error.because(
            form.damaged,
            f"{where} is damaged: {error}.",
            where=where,
            fix=f"Restore the file. {form.again}",
        ) from None


@cache
def _reader_for(kind: Any) -> Reader:
    """Return the function that checks and converts a JSON value to a type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in (Any, object):
        return _as_is
    if origin in (Union, types.UnionType):
        return _union_reader(arguments)
    if origin is Literal:
        return _literal_reader(arguments)
    if origin is tuple:
        return _tuple_reader(arguments)
    if origin in (list, Sequence, set, frozenset):
        return _array_reader(_container(origin), _reader_for(arguments[0]))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping_reader(_key_reader(arguments[0]), _reader_for(arguments[1]))
    return _class_reader(kind)


def _as_is(value: Any) -> Any:
    return value


def _container(origin: Any) -> Callable[[Any], Any]:
    return {list: list, set: set, frozenset: frozenset}.get(origin, tuple)


def _class_reader(kind: Any) -> Reader:
    if kind in (str, bool, type(None)):
        return _scalar_reader(kind)
    if kind in (int, float):
        return _read_int if kind is int else _read_float
    if issubclass(kind, enum.Enum):
        return _enum_reader(kind)
    if issubclass(kind, Path):
        return lambda value: kind(_scalar_reader(str)(value))
    if hasattr(kind, "from_wire"):
        wire = next(iter(_hints_of(kind.from_wire).values()))
        read = _reader_for(wire)
        return lambda value: kind.from_wire(read(value))
    if is_dataclass(kind):
        return _object_reader(kind)
    if issubclass(kind, Mapping):
        return _mapping_reader(_as_is, _as_is)
    raise TypeError(f"{kind} has no JSON form")


def _hints_of(function: Any) -> dict[str, Any]:
    return {name: hint for name, hint in get_type_hints(function).items() if name != "return"}


def _fail(expected: str, value: Any) -> DocumentError:
    shown = repr(value)
    return DocumentError(f"must be {expected}, not {shown if len(shown) <= 40 else shown[:37] + '...'}")


def _scalar_reader(kind: type) -> Reader:
    names = {str: "text", bool: "true or false", type(None): "null"}

    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise _fail(names[kind], value)
        return value

    return read


def _read_int(value: Any) -> int:
    if type(value) is not int:
        raise _fail("a whole number", value)
    return value


def _read_float(value: Any) -> float:
    if type(value) not in _NUMBERS:
        raise _fail("a number", value)
    number: float = value
    return number


def _enum_reader(kind: type[enum.Enum]) -> Reader:
    def read(value: Any) -> Any:
        try:
            return kind(value)
        except ValueError:
            raise _fail(f"one of {', '.join(str(each.value) for each in kind)}", value) from None

    return read


def _literal_reader(values: tuple[Any, ...]) -> Reader:
    def read(value: Any) -> Any:
        if not any(value == each and type(value) is type(each) for each in values):
            raise _fail(f"one of {', '.join(map(str, values))}", value)
        return value

    return read


def _array_reader(container: Callable[[Any], Any], read: Reader) -> Reader:
    def read_array(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise _fail("an array", value)
        if read is _read_int and {int}.issuperset(map(type, value)):
            return container(value)
        if read is _read_float and _NUMBERS.issuperset(map(type, value)):
            return container(value)
        return container(_read_at(index, each, read) for index, each in enumerate(value))

    return read_array


def _tuple_reader(arguments: tuple[Any, ...]) -> Reader:
    if arguments[-1] is Ellipsis:
        return _array_reader(tuple, _reader_for(arguments[0]))
    readers = tuple(map(_reader_for, arguments))

    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(readers):
            raise _fail(f"an array of {len(readers)}", value)
        return tuple(_read_at(index, each, read) for index, (each, read) in enumerate(zip(value, readers, strict=True)))

    return read


def _read_at(place: str | int, value: Any, read: Reader) -> Any:
    try:
        return read(value)
    except DocumentError as error:
        raise error.inside(place) from None


def _key_reader(kind: Any) -> Reader:
    if kind is int:
        return int
    return _reader_for(kind) if isinstance(kind, type) and issubclass(kind, enum.Enum) else _as_is


def _mapping_reader(read_key: Reader, read: Reader) -> Reader:
    def read_mapping(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _fail("an object", value)
        return {read_key(key): _read_at(key, each, read) for key, each in value.items()}

    return read_mapping


def _union_reader(members: tuple[Any, ...]) -> Reader:
    """Return the reader of the first member that fits; of dataclasses with kinds, of the one that `kind` names."""
    kinds = {each.JSON_KIND: _reader_for(each) for each in members if hasattr(each, "JSON_KIND")}
    readers = [_reader_for(each) for each in members if each is not type(None) and not hasattr(each, "JSON_KIND")]
    takes_null = type(None) in members

    def read(value: Any) -> Any:
        if value is None and takes_null:
            return None
        if kinds and isinstance(value, Mapping):
            if value.get("kind") not in kinds:
                raise _fail(f"of a kind among {', '.join(kinds)}", value.get("kind"))
            return kinds[value["kind"]](value)
        if not readers:
            raise _fail("an object", value)
        for each in readers[:-1]:
            try:
                return each(value)
            except DocumentError:
                continue
        return readers[-1](value)

    return read


def _object_reader(kind: Any) -> Reader:
    entries = entries_of(kind)
    readers = {each.name: _late(each.type) for each in entries}
    others = getattr(kind, "JSON_OTHERS", None)
    known = {each.path[0] for each in entries} | set(getattr(kind, "JSON_DERIVED", ()))
    known |= {"format", "version"} if hasattr(kind, "JSON_FORMAT") else set()
    known |= {"kind"} if hasattr(kind, "JSON_KIND") else set()

    def read(row: Any) -> Any:
        if not isinstance(row, Mapping):
            raise _fail("an object", row)
        rest = {key: value for key, value in row.items() if key not in known}
        if rest and others is None:
            raise DocumentError(f"has the unknown key {next(iter(rest))!r}")
        values = dict(_read_entries(entries, readers, row))
        return kind(**values) if others is None else kind(**values, **{others: rest})

    return read


def _late(kind: Any) -> Reader:
    """Return a reader that is made with its first use: types may refer to each other in a circle."""
    return lambda value: _reader_for(kind)(value)


def _read_entries(entries: Sequence[Entry], readers: Mapping[str, Reader], row: Any) -> Iterator[tuple[str, Any]]:
    for each in entries:
        value: Any = row
        for step in each.path:
            value = value.get(step, MISSING) if isinstance(value, Mapping) else MISSING
        if value is MISSING:
            if each.is_required:
                raise DocumentError(f"lacks the key {'.'.join(each.path)!r}")
            continue
        if value is None and each.null is not NO_NULL:
            yield each.name, each.null
            continue
        found = _read_at(".".join(each.path), value, readers[each.name])
        yield each.name, found if each.from_wire is None else each.from_wire(found)
