"""Reads the rows of files with their times, and collects their faults."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import json
import lzma
import math
import random
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.resources.abc import Traversable
from io import BufferedReader, BytesIO, TextIOWrapper
from itertools import chain, islice
from typing import IO, Any, TypeVar, cast

from draftwise.core import Finding, InvalidSetup, cause_of
from draftwise.knowledge.messages import refusal
from draftwise.workloads.engine_log import EngineLog, is_engine_log
from draftwise.workloads.log_formats import find_logged, has_request, open_page
from draftwise.workloads.wrapped_lines import LOOKED_AT, LogLine, find_wrapper, parse_line, unwrap

MAX_ROWS = 10_000
"""Rows kept of a longer file by default: hours of traffic, more than a run can send."""
_CHUNK = 1 << 20
_LONGEST_FIELD = 1 << 27
"""Characters of a CSV field; Python's own limit of 131,072 is less than a long prompt has."""
_GAP = re.compile(r"[,\s]*")
_JSON_FIX = "One JSON object a line, or one JSON array of objects."
_CSV_FIX = 'Quote each text that contains a comma, a quote or a line end ("a, b"), and double the quotes in it.'
_BAD_CELLS = "with cells that do not match the header"
_PEEKED = 1 << 16
_T = TypeVar("_T")


def _from_utf16(raw: IO[bytes]) -> BufferedReader:
    """Return the text in UTF-8. What is no UTF-16 leaves a byte that UTF-8 lacks, so its line is damaged."""
    return BufferedReader(BytesIO(raw.read().decode("utf-16", _BROKEN).encode(errors="surrogateescape")))


_BROKEN = "draftwise-broken-utf-16"
codecs.register_error(_BROKEN, lambda error: ("\udcff", getattr(error, "end", 0)))


_PACKED: tuple[tuple[bytes, Callable[..., Any]], ...] = (
    (b"\x1f\x8b", gzip.open),
    (b"BZh", bz2.open),
    (b"\xfd7zXZ", lzma.open),
    (codecs.BOM_UTF16_LE, _from_utf16),
    (codecs.BOM_UTF16_BE, _from_utf16),
)
"""Beginnings of packed files and of texts in UTF-16, and what makes plain bytes of them."""
DAMAGED = (OSError, EOFError, zlib.error, lzma.LZMAError)
"""Errors of packed files that are damaged or cut."""
LOST = "lost, because the packed file is damaged"
OTHER_KIND = "of another kind"
"""Reasons that count in the whole file, also where a sample is drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRow:
    """One record and its place."""

    where: str
    """`file:line`, for messages."""
    value: Any
    stretch: int = 0
    """Number of its section in a recording that was cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """The kept rows, in the order of the file."""

    rows: tuple[FileRow, ...]
    note: str = ""
    """What was left out, in words; empty for the whole file."""
    share: float = 1.0
    """Of the file's rows that were looked at."""


def read_rows(
    file: Traversable,
    faults: Faults,
    *,
    most: int = MAX_ROWS,
    seed: int = 0,
    in_order: Callable[[Any], bool],
    only_first: bool = False,
) -> TextTable:
    """Return the rows of a file.

    From a file with more than `most` rows, a sample is drawn (every row equally likely, by `seed`), so that a long log
    is not judged by its first hour. If `in_order` of the first row says that the rows are a recording, whose rate a
    sample would change, whole sections are drawn. With `only_first`, the first rows are used. Rows that are left out
    are not checked.

    Raises:
        InvalidSetup: the file cannot be read.
    """
    try:
        with open_plain(file) as stream:
            rows = _until_damage(_rows_of(stream, file.name, faults), file.name, faults)
            if only_first:
                first = list(islice(rows, most))
                share = len(first) / max(1, len(first) + sum(1 for _ in rows))
                return TextTable(rows=_parse_all(first), share=share)
            kept = _keep(rows, most, seed, in_order, faults)
        if isinstance(kept, TextTable):
            return kept
        faults.clear()
        with open_plain(file) as stream:
            rows = _until_damage(_rows_of(stream, file.name, faults), file.name, faults)
            return _keep_stretches(rows, kept, most, seed)
    except (OSError, csv.Error) as error:
        raise refusal("unreadable", file=file, cause=cause_of(error)) from None


def _until_damage(rows: Iterator[_T], name: str, faults: Faults) -> Iterator[_T]:
    """Yield the rows, or the lines, in front of the place where a packed file is damaged or cut."""
    number = 0
    try:
        for row in rows:
            number = row.number if isinstance(row, _Raw) else number + 1
            yield row
    except DAMAGED as error:
        text, where = f"{name} cannot be read ({cause_of(error)}).", f"{name}:{number + 1} to the end"
        faults.add("unreadable", text, where, reason=LOST)


@contextmanager
def open_plain(file: Traversable) -> Iterator[BufferedReader]:
    """Open a file for reading bytes in UTF-8; unpacks gzip, bzip2 and xz, and reads UTF-16.

    Raises:
        OSError, or one of DAMAGED: it cannot be read, when it is opened or later.
        InvalidSetup: it is in UTF-16 or UTF-32, without the mark that would tell how to read it.
    """
    with file.open("rb") as raw:
        begin = cast(BufferedReader, raw).peek(_PEEKED)
        wide = begin.startswith(_WIDE["UTF-32"])
        open_packed = None if wide else next((each for mark, each in _PACKED if begin.startswith(mark)), None)
        if open_packed is None and file.name.endswith(".gz"):
            open_packed = gzip.open
        stream = cast(BufferedReader, open_packed(raw) if open_packed else raw)
        with suppress(*DAMAGED):  # which is seen again when it is read
            begin = stream.peek(_PEEKED)
        if (encoding := _find_wide(begin[:_PEEKED])) is not None:
            raise refusal("unreadable", case="encoding", file=file.name, encoding=encoding)
        yield stream


_WIDE = {
    "UTF-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
    "UTF-32LE": (b"x000",),
    "UTF-32BE": (b"000x",),
    "UTF-16LE": (b"x0",),
    "UTF-16BE": (b"0x",),
}
"""Beginnings by encoding: its mark, or where the first character of a row, which is ASCII, has its zero bytes (0)."""
_CONTROLS = frozenset(map(chr, range(32))) - {"\t", "\n", "\r"}


def _find_wide(begin: bytes) -> str | None:
    """Return the encoding of a text that has several bytes for each character, by its beginning; None for others."""
    zeros = bytes(ord("x" if byte else "0") for byte in begin[:4])
    for encoding, marks in _WIDE.items():
        if begin.startswith(marks) or zeros.startswith(marks):
            text = begin[: len(begin) & ~3].decode(encoding, errors="ignore")
            return encoding if len(text) > len(begin) // 8 and not _CONTROLS.intersection(text) else None
    return None


def read_objects(stream: IO[bytes], name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, object) for each line of a JSON-lines file; the place is `name:line`.

    Raises:
        InvalidSetup: a line is not a JSON object.
    """
    faults = Faults()
    for raw in _line_rows(stream, name, faults):
        row = raw.parse()
        faults.raise_any()
        assert row is not None
        if not isinstance(row.value, dict):
            raise InvalidSetup.because("not-an-object", f"{row.where} is no JSON object.", where=row.where)
        yield row.where, row.value


@dataclass(frozen=True, slots=True)
class _Raw:
    """A row whose parsing can wait until it is clear that the row is kept."""

    number: int
    parse: Callable[[], FileRow | None]
    """None, and a fault, for a row that is damaged."""


_STRETCHES = 20
"""Stretches kept of a recording that is too long."""


def _keep_stretches(rows: Iterator[_Raw], total: int, most: int, seed: int) -> TextTable:
    """Return stretches of a recording, one at a random place in each equal part of it."""
    rng, size, part = random.Random(seed), most // _STRETCHES, total / _STRETCHES
    begins = [int(number * part + rng.random() * (part - size)) for number in range(_STRETCHES)]
    parsed: list[FileRow] = []
    place = 0
    for number, begin in enumerate(begins):
        begin = max(begin, place)
        for _ in range(begin - place):
            next(rows)
        kept = list(islice(rows, size))
        place = begin + len(kept)
        parsed += [replace(row, stretch=number) for row in _parse_all(kept)]
    deque(rows, 0)
    note = f"{_STRETCHES} stretches of {size} rows each of {total}, drawn with seed {seed}"
    return TextTable(rows=tuple(parsed), share=_STRETCHES * size / total, note=note)


def _keep(
    rows: Iterator[_Raw], most: int, seed: int, in_order: Callable[[Any], bool], faults: Faults
) -> TextTable | int:
    """Return the rows to keep; of a recording that is longer, how many rows it has."""
    kept = list(islice(rows, most))
    extra = next(rows, None)
    if extra is None:
        return TextTable(rows=_parse_all(kept))
    with faults.ignored():
        first = next((row for raw in kept[:LOOKED_AT] if (row := raw.parse()) is not None), None)
    if first is not None and in_order(first.value):
        return most + 1 + sum(1 for _ in rows)
    rng = random.Random(seed)
    total = most
    while extra is not None:  # reservoir sampling (Vitter 1985, algorithm R)
        total += 1
        place = rng.randrange(total)
        if place < most:
            kept[place] = extra
        extra = next(rows, None)
    kept.sort(key=lambda raw: raw.number)
    note = f"{most} of {total} rows, drawn with seed {seed}"
    return TextTable(rows=_parse_all(kept), share=most / total, note=note)


def _parse_all(kept: list[_Raw]) -> tuple[FileRow, ...]:
    return tuple(row for raw in kept if (row := raw.parse()) is not None)


def _rows_of(stream: BufferedReader, name: str, faults: Faults) -> Iterator[_Raw]:
    begin = stream.peek(_PEEKED).removeprefix(codecs.BOM_UTF8).lstrip()
    if (kind := next((each for mark, each in _BINARY if begin.startswith(mark)), None)) is not None:
        fix = "Convert it to JSON lines in UTF-8, as they are or packed with gzip, bzip2 or xz."
        faults.add("unreadable", f"{name} is {kind}, which draftwise does not read.", name, fix)
    elif re.search(r"\.[ct]sv(\.(gz|bz2|xz))?\Z", name):
        header = begin.partition(b"\n")[0].decode(errors="replace")
        yield from _csv_rows(stream, name, faults, "," if "," in header else max(",;\t", key=header.count))
    elif _ARRAY.match(begin) or (begin[:1] == b"{" and _SPREAD.match(begin)):
        reader = codecs.getreader("utf-8-sig")(stream, "replace")
        rows = _pages(_array_rows(reader, name, faults, bare=begin[:1] == b"{"), faults)
        first = list(islice(rows, LOOKED_AT))
        rows = chain(first, rows)
        with faults.ignored():
            is_log = find_wrapper(list(_open_rows(first))) is not None
        yield from _log_rows(_open_rows(rows), name, faults) if is_log else rows
    else:
        whole = _until_damage(stream, name, faults)
        lines = list(islice(whole, LOOKED_AT))
        is_log = find_wrapper(list(_log_lines(lines, name))) is not None or (begin[:1] != b"{" and _is_text_log(begin))
        whole = chain(lines, whole)
        rows = _log_rows(_log_lines(whole, name), name, faults) if is_log else _line_rows(whole, name, faults)
        yield from rows if is_log else _pages(rows, faults)


def _log_rows(lines: Iterator[LogLine], name: str, faults: Faults) -> Iterator[_Raw]:
    """Yield the requests in the lines of a log, where other lines may stand between them."""
    log = EngineLog()
    for line in unwrap(lines):
        if isinstance(line.value, str):
            if line.value.lstrip().startswith('{"'):
                raw = line.value.encode(errors="replace")
                yield _Raw(line.number, partial(_parse_line, raw, line.where, faults))
            log.add(line.number, line.value, to_seconds(line.time))
        elif not isinstance(line.value, Mapping):  # of an array: null, a number
            faults.leave_out(OTHER_KIND, line.where)
        elif (logged := find_logged(line.value)) is not None and (logged.skipped or has_request(line.value)):
            time = {"timestamp": line.time} if logged.time is None and line.time is not None else {}
            yield _parsed(line.number, line.where, {**line.value, **time})
        else:
            faults.leave_out(OTHER_KIND, line.where)
    yield from (_parsed(number, f"{name}:{number}", row) for number, row in log.rows())


def _log_lines(lines: Iterable[bytes], name: str) -> Iterator[LogLine]:
    for number, line in enumerate(lines, 1):
        value = parse_line(line.decode("utf-8-sig", "replace").rstrip("\r\n"))
        for each in open_page(value):
            yield LogLine(number=number, where=f"{name}:{number}", value=each)


def _open_rows(rows: Iterable[_Raw]) -> Iterator[LogLine]:
    for raw in rows:
        if (row := raw.parse()) is not None:
            yield LogLine(number=raw.number, where=row.where, value=row.value)


def _is_text_log(begin: bytes) -> bool:
    return is_engine_log(begin.decode(errors="replace"))


_BINARY = (
    (b"PAR1", "a Parquet file"),
    (b"\x28\xb5\x2f\xfd", "packed with zstd"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"SQLite format 3", "a SQLite database"),
    (b"Obj\x01", "an Avro file"),
    (b"ARROW1", "an Arrow file"),
)
_ARRAY = re.compile(rb'\[\s*(?:[\[\]{"]|$)')
_SPREAD = re.compile(rb'\{[ \t]*\r?\n\s*(?:"|\})')
"""An object over several lines, as APIs, `jq` and console exporters write them."""


def _pages(rows: Iterator[_Raw], faults: Faults) -> Iterator[_Raw]:
    """Yield the rows in the pages of a file whose first row is one; the rows of any other file as they are."""
    first = next(rows, None)
    if first is None:
        return
    with faults.ignored():
        page = first.parse()
    if page is None or _is_row(page.value):
        yield first
        yield from rows
        return
    number = 0
    for row in (page, *(raw.parse() for raw in rows)):
        for place, value in enumerate(open_page(row.value) if row is not None else ()):
            assert row is not None
            number += 1
            yield _parsed(number, f"{row.where}#{place + 1}", value)


def _is_row(value: Any) -> bool:
    return next(open_page(value), None) is value


def _line_rows(stream: Iterable[bytes], name: str, faults: Faults) -> Iterator[_Raw]:
    for number, line in enumerate(stream, 1):
        if line.strip():
            yield _Raw(number, lambda line=line, number=number: _parse_line(line, f"{name}:{number}", faults))  # type: ignore[misc]


def _parse_line(line: bytes, where: str, faults: Faults) -> FileRow | None:
    try:
        return FileRow(where=where, value=json.loads(line.decode("utf-8-sig")))
    except UnicodeDecodeError as error:
        fix = "Save the file as UTF-8."
        faults.add("not-utf8", f"{where} is not UTF-8 ({error.reason}).", where, fix, reason="not in UTF-8")
    except (ValueError, RecursionError) as error:
        _add_broken(faults, where, error)
    return None


def _add_broken(faults: Faults, where: str, error: ValueError | RecursionError) -> None:
    """Add the fault of a row that is no JSON."""
    cause = str(getattr(error, "msg", error)).partition(";")[0]
    what = "is nested too deeply" if isinstance(error, RecursionError) else f"is not valid JSON ({cause})"
    faults.add("not-json", f"{where} {what}.", where, _JSON_FIX, reason="damaged, no valid JSON")


def _csv_rows(stream: IO[bytes], name: str, faults: Faults, delimiter: str = ",") -> Iterator[_Raw]:
    csv.field_size_limit(_LONGEST_FIELD)
    text = TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline="")
    reader = csv.reader(text, strict=True, delimiter=delimiter)
    columns: list[str] | None = None
    end = 0
    for cells in _read_cells(reader):
        begin, end = end + 1, reader.line_num
        if cells == []:
            continue
        if columns is None:
            if isinstance(cells, csv.Error):
                raise cells
            columns = cells
            if twice := [each for each in columns if columns.count(each) > 1]:
                message = f"{name} has the column {twice[0]!r} more than once."
                faults.add("bad-cells", message, name, "Give every column a name of its own.")
                return
            continue
        if isinstance(cells, list) and len(cells) == len(columns):
            yield _parsed(end, f"{name}:{end}", dict(zip(columns, cells, strict=True)))
        else:
            what = f"has a quote out of place ({cells})"
            if isinstance(cells, list):
                what = f"has {len(cells)} cells where the header has {len(columns)}"
            where = f"{name}:{begin}" + (f"-{end}" if end > begin and isinstance(cells, list) else "")
            message = f"{where} {what}."
            add = partial(faults.add, "bad-cells", message, where, _CSV_FIX, reason=_BAD_CELLS)
            yield _Raw(begin, add)
            for number in range(begin + 1, 0 if isinstance(cells, list) else end + 1):  # what an open quote holds
                yield _Raw(number, partial(faults.leave_out, _BAD_CELLS, f"{name}:{number}", unread=True))


def _read_cells(reader: Iterator[list[str]]) -> Iterator[list[str] | csv.Error]:
    while True:
        try:
            yield next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield error


def _array_rows(reader: codecs.StreamReader, name: str, faults: Faults, *, bare: bool = False) -> Iterator[_Raw]:
    """Yield the elements of a JSON array as they are read: ShareGPT's file has 640 MB. `bare`: without its bracket."""
    decoder = json.JSONDecoder()
    text, number, line, size = reader.read(_CHUNK), 0, 1, _CHUNK
    begin = text.index("{") if bare else text.index("[") + 1
    indent = re.match(r"\s*(\n[ \t]*\{)", text[begin:])
    next_one, last = indent[1] if indent else "\n{", 0
    while True:
        gap = cast(re.Match[str], _GAP.match(text, begin)).end()
        line, begin = line + text.count("\n", 0 if number == 0 else begin, gap), gap
        try:
            value, end = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError) as error:
            if text.startswith("]", begin) and not bare:
                return
            if more := reader.read(size):
                text, begin, size = text[begin:] + more, 0, min(2 * size, 64 * _CHUNK)
                continue
            if bare and begin == len(text):
                return
            number += 1
            after = text.find(next_one, begin) + 1
            where = f"{name}:{line}" + ("" if after else " to the end")
            yield _Raw(number, partial(_add_broken, faults, where, error))
            if not after:
                return
            line, begin = line + text.count("\n", begin, after), text.index("{", after)
            continue
        number += 1
        yield _parsed(number, f"{name}:{line}" + (f"#{number}" if line == last else ""), value)
        last, line, begin = line, line + text.count("\n", begin, end), end


def _parsed(number: int, where: str, value: Any) -> _Raw:
    row = FileRow(where=where, value=value)
    return _Raw(number, lambda: row)


_UNITS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
"""(smallest reading, readings a second): epoch times of our day in ns, us and ms; seconds have ten digits."""


def to_seconds(value: Any, per_s: float = 1.0) -> float | None:
    """Return a time, an ISO date or a number, in seconds on one clock; None if it is not a time.

    Numbers are epoch times in s, ms, us or ns, recognized by size; smaller ones count from an arbitrary start, with
    `per_s` units per second. A date without a zone is in UTC.
    """
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    try:
        number = float(value)
    except (TypeError, ValueError):
        return _from_iso(value)
    except OverflowError:
        return None
    if not math.isfinite(number):
        return None
    return number / next((each for least, each in _UNITS if abs(number) >= least), per_s)


def _from_iso(value: Any) -> float | None:
    try:
        return to_seconds(datetime.fromisoformat(value.strip().replace(" UTC", "+00:00")))
    except (AttributeError, ValueError, OverflowError):
        return None


def from_begin(times: Sequence[float | None]) -> tuple[float | None, ...]:
    """Return times since the earliest; all None if one is missing, because arrivals are all or nothing."""
    known = [time for time in times if time is not None]
    if not known or len(known) < len(times):
        return (None,) * len(times)
    begin = min(known)
    # Rounded to a microsecond: an epoch time as a float carries no more, and the digits would look like it did.
    return tuple(round(time - begin, 6) for time in known)


_SHOWN = 30


class Faults:
    """The faults found so far; keeps the first ones and counts the rest."""

    def __init__(self) -> None:
        self.left_out: dict[str, list[str]] = {}
        """Places of the rows that are left out, by reason: words that follow "3 rows"."""
        self.unread: set[str] = set()
        """Those of the reasons that are no part of any log."""
        self._findings: list[Finding] = []
        self._more = 0
        self._is_of_rows = True
        self._is_ignoring = False

    def clear(self) -> None:
        """Forget all faults, before the file is read again."""
        vars(self).update(vars(Faults()))

    @contextmanager
    def ignored(self) -> Iterator[None]:
        """Ignore faults for as long as rows are only looked at; whether they are kept is not yet known."""
        self._is_ignoring = True
        yield
        self._is_ignoring = False

    def leave_out(self, reason: str, where: str, *, unread: bool = False) -> None:
        """Count a row that is left out."""
        if self._is_ignoring:
            return
        self.unread |= {reason} if unread else set()
        places = self.left_out.setdefault(reason, [])
        if where not in places[-1:]:
            places.append(where)

    def add(self, code: str, message: str, where: str, fix: str = "", *, reason: str = "") -> None:
        """Add a fault. `reason`: why its row is left out if others can be read; empty if they are of no use either."""
        if self._is_ignoring:
            return
        if reason:
            self.leave_out(reason, where, unread=True)
        self._is_of_rows &= bool(reason)
        if len(self._findings) < _SHOWN:
            finding = Finding.error(code, message, where=where, fix=fix)
            self._findings.append(finding)
        else:
            self._more += 1

    def __bool__(self) -> bool:
        return bool(self._findings)

    def raise_any(self, *, but_rows: bool = False) -> None:
        """Raise if there are faults. `but_rows`: not if all are of rows that are left out.

        Raises:
            InvalidSetup: with the first thirty faults, and the number of the others.
        """
        if but_rows and self._is_of_rows:
            return
        if self._more:
            where = self._findings[-1].where.rpartition(":")[0]
            more = Finding.error("more-faults", f"{where} has {self._more} more faults like these.", where=where)
            self._findings.append(more)
        if self._findings:
            raise InvalidSetup(self._findings)
