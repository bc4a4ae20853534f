"""Unwraps log lines that container runtimes, journals and loggers have wrapped, by a table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, islice
from typing import Any

from draftwise.knowledge.stored import read_rows
from draftwise.workloads.conversation import from_json_text
from draftwise.workloads.log_formats import find_first, has_request
from draftwise.workloads.logged_spans import is_message

LOOKED_AT = 200
"""Number of lines at the start of a log that decide the wrapper."""
_DEEPEST = 4
"""Wrappers around wrappers: a collector's around a container's around a logger's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapper:
    """One kind of wrapper: text after a prefix, or a place in an object.

    Places are dotted paths of keys; `a|b` means either.
    """

    name: str
    source: str
    """Where it is documented."""
    prefix: str = ""
    """Pattern of the whole line, with the group `text` and, if present, `time`, `stream`, `source` and `tag`."""
    known_by: tuple[str, ...] = ()
    """Places that an object must have."""
    text: tuple[str, ...] = ()
    """Places of the inner line; the first one found counts."""
    time: tuple[str, ...] = ()
    server: tuple[str, ...] = ()
    """Places of the pod or service that wrote a line."""
    stream: tuple[str, ...] = ()
    """Places whose values the pieces of one line share."""
    goes_on: tuple[str, ...] = ()
    """Place and values that mean that the line continues in the next one of its stream."""
    ends: tuple[str, ...] = ()
    """Likewise for the last piece, if all pieces are marked."""
    full: int = 0
    """Size in bytes of a piece without a line end that continues; 0 if pieces are marked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line of a log: its text, or the object that it holds."""

    number: int
    where: str
    value: Any
    time: Any = None
    """Time of the innermost wrapper that has one."""
    source: str = ""
    """Pod or service that wrote it, as a wrapper names it."""


WRAPPERS: tuple[Wrapper, ...] = tuple(Wrapper(**row) for row in read_rows("log_wrappers"))


def find_wrapper(first: Sequence[LogLine]) -> Wrapper | None:
    """Return the wrapper of most of the first lines; None without one."""
    counts = [sum(_open(line, each) is not None for line in first) for each in WRAPPERS]
    return WRAPPERS[counts.index(max(counts))] if any(counts) else None


def unwrap(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """Yield the inner lines, with their pieces joined."""
    lines = iter(lines)
    for _ in range(_DEEPEST):
        first = list(islice(lines, LOOKED_AT))
        lines = chain(first, lines)
        if (wrapper := find_wrapper(first)) is None:
            break
        lines = _take_off(lines, wrapper)
    return lines


def parse_line(text: str) -> Any:
    """Return the object in a line, or the line as it is."""
    value = from_json_text(text.strip())
    return value if isinstance(value, Mapping) else text


def _take_off(lines: Iterator[LogLine], wrapper: Wrapper) -> Iterator[LogLine]:
    begun: dict[Any, tuple[LogLine, list[str]]] = {}
    for line in lines:
        if (opened := _open(line, wrapper)) is None:
            yield line
            continue
        text, time, stream, source, goes_on = opened
        first = replace(line, time=line.time if time is None else time, source=source or line.source)
        head, pieces = begun.pop(stream, (first, []))
        pieces.append(text if goes_on else text.rstrip("\r\n"))
        if goes_on:
            begun[stream] = head, pieces
        else:
            yield replace(head, value=parse_line("".join(pieces)))
    for head, pieces in begun.values():
        yield replace(head, value="".join(pieces))


def _open(line: LogLine, wrapper: Wrapper) -> tuple[str, Any, Any, str, bool] | None:
    """Return a line's text, time, stream and source, and whether it goes on; None in another wrapper."""
    row: Mapping[str, Any]
    if wrapper.prefix:
        found = _pattern(wrapper.prefix).fullmatch(line.value) if isinstance(line.value, str) else None
        if found is None:
            return None
        row = found.groupdict()
        text, time, stream, server = row["text"], row.get("time"), row.get("stream"), row.get("source")
    else:
        row = line.value
        if not isinstance(row, Mapping) or not all(_has(row, place) for place in wrapper.known_by):
            return None
        places = (wrapper.text, wrapper.time, wrapper.stream, wrapper.server)
        text, time, stream, server = (find_first(row, each) for each in places)
        if isinstance(text, Mapping | list):
            text = json.dumps(text)
        if not isinstance(text, str) or is_message(row) or has_request(row):
            return None
    is_full = bool(wrapper.full) and not text.endswith("\n") and len(text.encode(errors="replace")) >= wrapper.full - 4
    goes_on = is_full or (_says(row, wrapper.goes_on) and not _says(row, wrapper.ends))
    return text, time, stream, str(server or ""), goes_on


@cache
def _pattern(prefix: str) -> re.Pattern[str]:
    return re.compile(prefix, re.DOTALL)


def _has(row: Mapping[str, Any], places: str) -> bool:
    return find_first(row, tuple(places.split("|"))) is not None


def _says(row: Mapping[str, Any], rule: tuple[str, ...]) -> bool:
    if not rule:
        return False
    places, values = (each.split("|") for each in rule)
    said = find_first(row, tuple(places))
    return said is not None and str(said).partition(":")[0].lower() in {value.lower() for value in values}
