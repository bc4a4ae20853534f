"""Takes off the lines of a log all that container runtimes, journals and loggers put around them, by a table."""

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
"""Lines at the beginning of a log that tell what is around each of them."""
_DEEPEST = 4
"""Wrappers around wrappers: a collector's around a container's around a logger's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapper:
    """One kind of line around a line: text behind a prefix, or a place in an object.

    Places are dotted paths of keys; `a|b` is either of two.
    """

    name: str
    source: str
    """Where it is documented."""
    prefix: str = ""
    """Pattern of the whole line, with the groups `text` and, where there are any, `time`, `stream` and `tag`."""
    known_by: tuple[str, ...] = ()
    """Places that an object must all have."""
    text: tuple[str, ...] = ()
    """Places of the line within, the first that has one."""
    time: tuple[str, ...] = ()
    stream: tuple[str, ...] = ()
    """What the pieces of one line have in common."""
    goes_on: tuple[str, ...] = ()
    """Place and values that tell that the line goes on in the next one of its stream."""
    ends: tuple[str, ...] = ()
    """The same for the last piece, where all are marked."""
    full: int = 0
    """Size in bytes of a piece without a line end that goes on; 0: pieces are marked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line of a log: its text, or the object that it holds."""

    number: int
    where: str
    value: Any
    time: Any = None
    """The innermost wrapper's that has one."""


WRAPPERS: tuple[Wrapper, ...] = tuple(Wrapper(**row) for row in read_rows("log_wrappers"))


def find_wrapper(first: Sequence[LogLine]) -> Wrapper | None:
    """Return what is around most of the first lines; None where there is nothing around any."""
    counts = [sum(_open(line, each) is not None for line in first) for each in WRAPPERS]
    return WRAPPERS[counts.index(max(counts))] if any(counts) else None


def unwrap(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """Return the lines within, with their pieces put together."""
    lines = iter(lines)
    for _ in range(_DEEPEST):
        first = list(islice(lines, LOOKED_AT))
        lines = chain(first, lines)
        if (wrapper := find_wrapper(first)) is None:
            break
        lines = _take_off(lines, wrapper)
    return lines


def parse_line(text: str) -> Any:
    """Return the object that a line holds, or the line as it is."""
    value = from_json_text(text.strip())
    return value if isinstance(value, Mapping) else text


def _take_off(lines: Iterator[LogLine], wrapper: Wrapper) -> Iterator[LogLine]:
    begun: dict[Any, tuple[LogLine, list[str]]] = {}
    for line in lines:
        if (opened := _open(line, wrapper)) is None:
            yield line
            continue
        text, time, stream, goes_on = opened
        head, pieces = begun.pop(stream, (replace(line, time=line.time if time is None else time), []))
        pieces.append(text if goes_on else text.rstrip("\r\n"))
        if goes_on:
            begun[stream] = head, pieces
        else:
            yield replace(head, value=parse_line("".join(pieces)))
    for head, pieces in begun.values():
        yield replace(head, value="".join(pieces))


def _open(line: LogLine, wrapper: Wrapper) -> tuple[str, Any, Any, bool] | None:
    """Return the text within a line, its time, its stream, and whether it goes on; None in another wrapper."""
    row: Mapping[str, Any]
    if wrapper.prefix:
        found = _pattern(wrapper.prefix).fullmatch(line.value) if isinstance(line.value, str) else None
        if found is None:
            return None
        row = found.groupdict()
        text, time, stream = row["text"], row.get("time"), row.get("stream")
    else:
        row = line.value
        if not isinstance(row, Mapping) or not all(_has(row, place) for place in wrapper.known_by):
            return None
        text, time, stream = (find_first(row, places) for places in (wrapper.text, wrapper.time, wrapper.stream))
        if isinstance(text, Mapping | list):
            text = json.dumps(text)
        if not isinstance(text, str) or is_message(row) or has_request(row):
            return None
    is_full = bool(wrapper.full) and not text.endswith("\n") and len(text.encode(errors="replace")) >= wrapper.full - 4
    goes_on = is_full or (_says(row, wrapper.goes_on) and not _says(row, wrapper.ends))
    return text, time, stream, goes_on


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
