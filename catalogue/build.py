"""Reads every topic from every wheel and writes the range-encoded data files of `draftwise.knowledge.vllm`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.version import Version

from draftwise.extract.release import TOPICS
from draftwise.extract.speculative import Facts
from draftwise.extract.tree import Tree
from draftwise.knowledge.spans import SpanRow, decode, encode

__all__ = [
    "DATA",
    "WHEELS",
    "build",
    "differences",
    "extend",
    "find_wheels",
    "known_releases",
    "read_topic",
    "write",
    "write_topic",
]

DATA = Path(__file__).parents[1] / "src/draftwise/knowledge/data/vllm"
WHEELS = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "draftwise/vllm-wheels"
"""Where sources are unpacked by default."""
_RELEASES = "releases.json"


def find_wheels(folder: Path) -> list[dict[str, str]]:
    """Return what `wheel.json` says of each release under a folder, oldest first."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*/wheel.json")]
    return sorted(found, key=lambda about: Version(about["version"]))


def known_releases(folder: Path) -> list[dict[str, str]]:
    """Return the releases that a data folder was built from, oldest first; none for a new one."""
    file = folder / _RELEASES
    known: list[dict[str, str]] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    return known


def build(folder: Path, topics: Mapping[str, Any] = TOPICS) -> dict[str, list[SpanRow]]:
    """Return the rows of every topic, read from the wheels under a folder.

    Raises:
        NotFound: a file or symbol that a topic is read from is missing in a release.
    """
    names = [about["version"] for about in find_wheels(folder)]
    tables: dict[str, list[Facts]] = {topic: [] for topic in topics}
    for name in names:
        tree = Tree(folder / name, name)
        for topic, extract in topics.items():
            tables[topic].append(extract(tree))
    return {topic: encode(names, rows) for topic, rows in tables.items()}


def extend(folder: Path, data: Path = DATA, topics: Mapping[str, Any] = TOPICS) -> dict[str, list[SpanRow]]:
    """Return the rows of every topic, reading only the wheels of releases that a data folder has not.

    What the data says of the other releases is kept: build from all wheels after a change of `draftwise.extract`.

    Raises:
        NotFound: a file or symbol that a topic is read from is missing in a new release.
    """
    known = [about["version"] for about in known_releases(data)]
    names = [about["version"] for about in find_wheels(folder)]
    trees = {name: Tree(folder / name, name) for name in names if name not in known}
    rows = {}
    for topic, extract in topics.items():
        old = read_topic(data, topic)
        tables = [
            extract(trees[name])
            if name in trees
            else {key: (row.value, row.source) for key, row in decode(known, old, name).items()}
            for name in names
        ]
        rows[topic] = encode(names, tables)
    return rows


def read_topic(folder: Path, topic: str) -> list[SpanRow]:
    """Return the rows of a topic in a data folder; none where it has no such file."""
    file = folder / f"{topic}.json"
    return [SpanRow(**row) for row in json.loads(file.read_text(encoding="utf-8"))] if file.is_file() else []


def write(folder: Path, rows: Mapping[str, Sequence[SpanRow]], wheels: Sequence[Mapping[str, str]]) -> None:
    """Write one file a topic, one line a row, and `releases.json`; files of topics that are gone are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    for stale in set(folder.glob("*.json")) - {folder / f"{topic}.json" for topic in rows} - {folder / _RELEASES}:
        stale.unlink()
    for topic, topic_rows in rows.items():
        write_topic(folder, topic, topic_rows)
    (folder / _RELEASES).write_text(_lines(wheels), encoding="utf-8")


def write_topic(folder: Path, topic: str, rows: Sequence[SpanRow]) -> None:
    """Write the file of one topic."""
    (folder / f"{topic}.json").write_text(_lines(row._asdict() for row in rows), encoding="utf-8")


def _lines(entries: Iterable[Mapping[str, Any]]) -> str:
    written = ",\n".join(json.dumps(entry, ensure_ascii=False, separators=(",", ":")) for entry in entries)
    return f"[\n{written}\n]\n" if written else "[]\n"


def differences(rows: Mapping[str, Sequence[SpanRow]], newest: str, before: str | None) -> Iterator[str]:
    """Yield, topic by topic, what the newest release adds, drops and changes against the one before it."""
    for topic, topic_rows in sorted(rows.items()):
        new = {row.key: row.value for row in topic_rows if row.since == newest}
        old = {row.key: row.value for row in topic_rows if row.until == before and before is not None}
        for key in sorted(new.keys() | old.keys()):
            if key not in old:
                yield f"{topic}: + {key}  {_short(new[key])}"
            elif key not in new:
                yield f"{topic}: - {key}  {_short(old[key])}"
            else:
                yield f"{topic}: ~ {key}  {_short(old[key])} -> {_short(new[key])}"


def _short(value: Any, width: int = 120) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= width else f"{text[: width - 3]}..."
