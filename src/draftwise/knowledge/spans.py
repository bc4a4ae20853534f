"""Values that hold in ranges of releases: converts one table per release to rows and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Table = Mapping[str, tuple[Any, str]]
"""Table of one release: key -> (JSON value, source)."""


class SpanRow(NamedTuple):
    """A value over a range of releases, as stored in a data file."""

    key: str
    value: Any
    since: str
    until: str | None
    """Last release with it, included; None if the newest one has it."""
    source: str
    """File and symbol in the release named by `since`."""


def encode(releases: Sequence[str], tables: Sequence[Table]) -> list[SpanRow]:
    """Return the rows, sorted by key and then by release, that are equivalent to one table per release.

    A row ends when the value changes or the key disappears. A source that moves while the value stays makes no new row,
    so a release adds only real changes.
    """
    return [row for key in sorted({key for table in tables for key in table}) for row in _runs(key, releases, tables)]


def decode(releases: Sequence[str], rows: Iterable[SpanRow], release: str) -> dict[str, SpanRow]:
    """Return the row of each key that holds in one release: the inverse of `encode`."""
    order = {name: index for index, name in enumerate(releases)}
    at, last = order[release], len(releases) - 1
    return {row.key: row for row in rows if order[row.since] <= at <= (last if row.until is None else order[row.until])}


def _runs(key: str, releases: Sequence[str], tables: Sequence[Table]) -> Iterator[SpanRow]:
    start: int | None = None
    for index in range(len(releases) + 1):
        ended = index == len(releases)
        if start is not None and (ended or not _same(tables[start].get(key), tables[index].get(key))):
            value, source = tables[start][key]
            until = None if ended else releases[index - 1]
            yield SpanRow(key=key, value=value, since=releases[start], until=until, source=source)
            start = None
        if start is None and not ended and key in tables[index]:
            start = index


def _same(left: tuple[Any, str] | None, right: tuple[Any, str] | None) -> bool:
    """Compare values as they are written: JSON distinguishes 1, 1.0 and true, Python's == does not."""
    if left is None or right is None:
        return left is right
    return json.dumps(left[0], sort_keys=True) == json.dumps(right[0], sort_keys=True)
