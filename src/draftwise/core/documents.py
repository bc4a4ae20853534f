"""JSON of frozen values: written and read back, both from their field types.

The types of a dataclass are its document. `to_json` writes any value, `from_json` reads it back and checks every type,
`read_document` adds the checks of a file's format and version, and `document_schema.json_schema` describes the JSON.

How types are written: a dataclass is an object, an enum its value, a tuple or set an array (a set sorted), a mapping an
object, a path text, and a float that is not finite null. What is read must have these types: a whole number may be
written as a float, and no number is NaN or infinite. A field deviates with `field(metadata=json_form(...))`, a class
with:

- `JSON_FORMAT`: a `Format`; the document starts with the keys `format` and `version`.
- `JSON_KIND`: the value of the key `kind`, which distinguishes the members of a union.
- `JSON_DERIVED`: names of properties that are written after the fields, and ignored when read; `key=property` where
  the key differs.
- `JSON_OTHERS`: the name of a mapping field that holds the keys which belong to no other field.
- `from_earlier(row)`: returns an object that an earlier release wrote in today's form, before it is read.
- `JSON_OF`: the name of the field whose JSON is all that is written.
- `to_wire()` and `from_wire(wire)`: the class has a form of its own; `from_wire`'s annotation is the type of that form.
"""

from __future__ import annotations

import enum
import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path, PurePath
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from draftwise.core.finding import InvalidSetup

T = TypeVar("T")
Reader = Callable[[Any], Any]
_EMPTY: tuple[Any, ...] = (None, "", (), [], {})
_NUMBERS = frozenset({int, float})
_LIMIT = 2**128
"""Whole numbers stay below it: one of a thousand digits is damage, and no float."""


class DocumentError(ValueError):
    """A JSON value has the wrong type; the message starts with its place."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.place = ""

    def inside(self, key: str | int) -> DocumentError:
        """Return the error with its place as seen from one level further out."""
        step = f"[{key}]" if isinstance(key, int) else f".{key}"
        self.place = f"{step}{self.place}"
        return self

    def __str__(self) -> str:
        place = self.place.removeprefix(".")
        return f"{place}: {super().__str__()}" if place else super().__str__()


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """The format of a file: its name and version, and, if draftwise reads it, how another file is reported."""

    name: str
    """Value of the key `format`, e.g. `draftwise-calibration`."""
    version: int
    noun: str = ""
    """What the file holds, with its article: `a calibration`."""
    foreign: str = ""
    """Code of the finding for a file of another format, e.g. `not-a-calibration`."""
    other_version: str = ""
    """Code of the finding for a file of another version."""
    damaged: str = ""
    """Code of the finding for a file whose values have wrong types."""
    written_by: str = ""
    """File to name instead: `a file that draftwise calibrate wrote`."""
    again: str = ""
    """How to get a file of this version, as a sentence."""
    error: type[InvalidSetup] = InvalidSetup


def json_form(
    *,
    key: str = "",
    hidden: bool = False,
    raw: bool = False,
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
        raw: written unchecked, for tuples or lists of thousands of finite numbers.
        omit_empty: left out if it is None, empty text, or an empty collection.
        omit_null: left out if it is None.
        null: value that null means, e.g. infinity.
        wire: type that is written instead of the field's.
        to_wire: from the field's value to a value of type `wire`.
        from_wire: from a value of type `wire` to the field's value.
    """
    flags = {"hidden": hidden, "raw": raw}
    given = {"key": key or None, "null": null, "wire": wire, "to_wire": to_wire, "from_wire": from_wire}
    given["omit"] = _EMPTY if omit_empty else (None,) if omit_null else None
    return {name: True for name, value in flags.items() if value} | {
        name: value for name, value in given.items() if value is not None
    }


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
    if kind in (tuple, list):
        return [to_json(each) for each in value]
    for accepted, write in _WRITERS:
        if isinstance(value, accepted):
            return write(value)
    if hasattr(kind, "JSON_OF"):
        return to_json(getattr(value, kind.JSON_OF))
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
        written = _write_entry(each, getattr(value, each.name))
        if written not in each.omit:
            place = row
            for step in each.path[:-1]:
                place = place.setdefault(step, {})
            place[each.path[-1]] = written
    if others is not None:
        row |= to_json(getattr(value, others))
    return row | {key: to_json(getattr(value, name)) for key, name in derived_of(kind).items()}


def _write_entry(entry: Entry, value: Any) -> Any:
    if entry.is_raw:
        return value
    if entry.null is not NO_NULL and value == entry.null:
        return None
    return to_json(entry.to_wire(value) if entry.to_wire else value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """How one field of a class is written and read."""

    name: str
    path: tuple[str, ...]
    type: Any
    """Type of what is written."""
    is_required: bool
    """Whether it has no default."""
    is_raw: bool
    omit: Sequence[Any]
    """What is left out of the JSON."""
    null: Any
    """Value that null means; `NO_NULL` if null is not special."""
    to_wire: Callable[[Any], Any] | None
    from_wire: Callable[[Any], Any] | None

    @property
    def key(self) -> str | None:
        """Its key; None if that is in a nested object."""
        return self.path[0] if len(self.path) == 1 else None


@cache
def derived_of(kind: Any) -> dict[str, str]:
    """Return the properties that are written after the fields, by key."""
    parts = (each.partition("=") for each in getattr(kind, "JSON_DERIVED", ()))
    return {key: name or key for key, _, name in parts}


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
        path=tuple(str(given.get("key", each.name)).split(".")),
        type=given.get("wire", kind),
        is_required=each.default is MISSING and each.default_factory is MISSING,
        is_raw="raw" in given,
        omit=given.get("omit", ()),
        null=given.get("null", NO_NULL),
        to_wire=given.get("to_wire"),
        from_wire=given.get("from_wire"),
    )


# Reading


def from_json(kind: type[T], value: Any) -> T:
    """Return the value of type `kind` that `to_json` wrote.

    Raises:
        DocumentError: the JSON does not have the types of `kind`, or `kind` refuses the values; names the place.
        InvalidSetup: a class with `from_wire` refuses the values.
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
    except DocumentError as error:
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
        return _array_reader(_container(origin), arguments[0])
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
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is int and -_LIMIT < value < _LIMIT:
        return value
    raise _fail("a whole number", value)


def _read_float(value: Any) -> float:
    is_number = type(value) is float and math.isfinite(value)
    if not is_number and not (type(value) is int and -_LIMIT < value < _LIMIT):
        raise _fail("a finite number", value)
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


def _array_reader(container: Callable[[Any], Any], kind: Any) -> Reader:
    read, quick = _reader_for(kind), _quick_reader(kind)

    def read_array(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise _fail("an array", value)
        if value and quick is not None and (found := quick(value)) is not None:
            return container(found)
        return container(_read_at(index, each, read) for index, each in enumerate(value))

    return read_array


def _quick_reader(kind: Any) -> Reader | None:
    """Return the function that checks an array of numbers, or of equally long rows of numbers, as a whole.

    It returns None for an array that has to be read item by item. None where the items are something else.
    """
    if kind in _NUMBERS:
        return lambda value: value if _are_all(kind, value) else None
    kinds = get_args(kind)
    if get_origin(kind) is not tuple or not _NUMBERS.issuperset(kinds):
        return None

    def read(rows: Any) -> Any:
        try:
            columns = tuple(zip(*rows, strict=True))
            whole = all(_are_all(each, column) for each, column in zip(kinds, columns, strict=True))
        except (TypeError, ValueError):
            return None
        return zip(*columns, strict=True) if whole else None

    return read


def _are_all(kind: Any, values: Sequence[Any]) -> bool:
    """Whether values are numbers, by the type of their sum: asking each for its type takes longer than reading it."""
    try:
        total = sum(values)
    except (TypeError, OverflowError):
        return False
    return (type(total) is int and -_LIMIT < total < _LIMIT) or (
        kind is float and type(total) is float and math.isfinite(total)
    )


def _tuple_reader(arguments: tuple[Any, ...]) -> Reader:
    if arguments[-1] is Ellipsis:
        return _array_reader(tuple, arguments[0])
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
    if kind in (int, float):
        return _number_key_reader(kind)
    return _reader_for(kind) if isinstance(kind, type) and issubclass(kind, enum.Enum) else _as_is


def _number_key_reader(kind: Any) -> Reader:
    def read(key: str) -> Any:
        try:
            return kind(key)
        except ValueError:
            raise _fail("a number", key) from None

    return read


def _mapping_reader(read_key: Reader, read: Reader) -> Reader:
    def read_mapping(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _fail("an object", value)
        return {_read_at(key, key, read_key): _read_at(key, each, read) for key, each in value.items()}

    return read_mapping


def _union_reader(members: tuple[Any, ...]) -> Reader:
    """Return the reader of the first member that fits. Of dataclasses with kinds, of the one that `kind` names."""
    kinds = {each.JSON_KIND: _reader_for(each) for each in members if hasattr(each, "JSON_KIND")}
    readers = [_reader_for(each) for each in members if each is not type(None) and not hasattr(each, "JSON_KIND")]
    takes_null = type(None) in members
    if takes_null and len(readers) == 1 and not kinds:
        only = readers[0]
        return lambda value: None if value is None else only(value)

    def read(value: Any) -> Any:
        if value is None and takes_null:
            return None
        if kinds and isinstance(value, dict):
            if (kind := value.get("kind")) not in tuple(kinds):
                raise _fail(f"of a kind among {', '.join(kinds)}", kind)
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
    others = getattr(kind, "JSON_OTHERS", None)
    known = {each.path[0] for each in entries} | set(derived_of(kind))
    known |= {"format", "version"} if hasattr(kind, "JSON_FORMAT") else set()
    known |= {"kind"} if hasattr(kind, "JSON_KIND") else set()
    modernize = getattr(kind, "from_earlier", _as_is)
    steps: list[tuple[str, Any, Reader, Entry]] = []

    def read(row: Any) -> Any:
        if not isinstance(row, dict):
            raise _fail("an object", row)
        row = modernize(row)
        rest = {} if known.issuperset(row) else {key: value for key, value in row.items() if key not in known}
        if rest and others is None:
            raise DocumentError(f"has the unknown key {next(iter(rest))!r}")
        if not steps:  # made with the first use: types may refer to each other in a circle
            steps.extend((each.name, each.key, _reader_of_entry(each), each) for each in entries)
        values = {} if others is None else {others: rest}
        try:
            for name, key, read_value, entry in steps:
                value = row.get(key, MISSING) if key is not None else _descend(row, entry.path)
                if value is not MISSING:
                    values[name] = read_value(value)
                elif entry.is_required:
                    raise _Lacking(f"lacks the key {'.'.join(entry.path)!r}")
        except _Lacking as error:
            raise DocumentError(str(error)) from None
        except DocumentError as error:
            raise error.inside(".".join(entry.path)) from None
        return _make(kind, values)

    return read


class _Lacking(Exception):  # noqa: N818
    """A key of the object itself is missing."""


def _make(kind: Any, values: Mapping[str, Any]) -> Any:
    try:
        return kind(**values)
    except InvalidSetup:
        raise
    except ValueError as error:
        raise DocumentError(str(error)) from None


def _descend(row: Any, path: Sequence[str]) -> Any:
    for step in path:
        row = row.get(step, MISSING) if isinstance(row, dict) else MISSING
    return row


def _reader_of_entry(entry: Entry) -> Reader:
    read, from_wire, null = _reader_for(entry.type), entry.from_wire, entry.null
    if from_wire is None and null is NO_NULL:
        return read

    def read_entry(value: Any) -> Any:
        if value is None and null is not NO_NULL:
            return null
        found = read(value)
        return found if from_wire is None else from_wire(found)

    return read_entry
