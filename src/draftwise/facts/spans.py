"""Values that hold in ranges of releases: encodes a table of each release as the rows of a data file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from draftwise.facts.vllm import Row

__all__ = ["Table", "encode"]

Table = Mapping[str, tuple[Any, str]]
"""Table of one release: key -> (JSON value, source)."""


def encode(releases: Sequence[str], tables: Sequence[Table]) -> list[Row]:
    """Return the rows, sorted by key and then by release, that are equivalent to one table for each release.

    A row ends where the value changes or the key is gone; a source that moves while the value stays makes no new row,
    so that a release changes only what it really changes.

    Args:
        releases: oldest first.
        tables: in the same order.
    """
    return [row for key in sorted({key for table in tables for key in table}) for row in _runs(key, releases, tables)]


def _runs(key: str, releases: Sequence[str], tables: Sequence[Table]) -> Iterator[Row]:
    start: int | None = None
    for index in range(len(releases) + 1):
        ended = index == len(releases)
        if start is not None and (ended or not _same(tables[start].get(key), tables[index].get(key))):
            value, source = tables[start][key]
            until = None if ended else releases[index - 1]
            yield Row(key=key, value=value, since=releases[start], until=until, source=source)
            start = None
        if start is None and not ended and key in tables[index]:
            start = index


def _same(left: tuple[Any, str] | None, right: tuple[Any, str] | None) -> bool:
    """Compare values as they are written: JSON distinguishes 1, 1.0 and true, Python's == does not."""
    if left is None or right is None:
        return left is right
    return json.dumps(left[0], sort_keys=True) == json.dumps(right[0], sort_keys=True)
