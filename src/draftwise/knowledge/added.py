"""Reads facts about vLLM releases that the user added on this machine: one file per release.

The first line of a file describes the release; each further line holds the table of a topic. Listing releases reads
only first lines; looking up a table opens only its file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from draftwise.core import InvalidSetup, StorageError, cause_of
from draftwise.knowledge.messages import fault, refusal, text_of
from draftwise.knowledge.spans import SpanRow, Table
from draftwise.machine.folders import data_folder
from draftwise.machine.whole_files import write_whole

FORMAT = 1
"""Version of the file format, raised if values of a topic change their meaning; other versions are not read."""
_PREFIX, _SUFFIX = "vllm-", ".jsonl"


class MissingFacts(InvalidSetup):
    """A fact that a judgement needs could not be read from the sources of this release."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedRelease:
    """The first line of a release's file."""

    version: str
    built: str
    """Date of the newest source file, e.g. `2026-04-18`."""
    read_from: str
    """Wheel, folder or installation."""
    sha256: str = ""
    """Digest of the wheel; empty for other sources."""
    added: str
    """Date on which it was added."""
    draftwise: str
    """Version of draftwise that read it."""
    topics: Sequence[str] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    """Topic -> why it could not be read."""
    format: int = FORMAT

    @property
    def file(self) -> Path:
        """Where it is stored."""
        return _folder() / f"{_PREFIX}{self.version}{_SUFFIX}"

    def why_missing(self, topic: str) -> str:
        """Return why the release has no table of a topic, as a sentence; empty if it has one."""
        if self.format != FORMAT:
            return f"They were read by draftwise {self.draftwise}, which wrote them differently."
        if topic in self.topics:
            return ""
        return self.missing.get(topic) or f"draftwise {self.draftwise}, which read the release, did not look for them."


def read_added() -> list[AddedRelease]:
    """Return the releases that the user added, unsorted.

    Raises:
        InvalidSetup: a file is damaged.
    """
    try:
        names = os.listdir(_folder())
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [_read_head(_folder() / name) for name in names if name.startswith(_PREFIX) and name.endswith(_SUFFIX)]


def read_table(release: AddedRelease, topic: str) -> dict[str, SpanRow]:
    """Return the rows of a topic.

    Raises:
        MissingFacts: the topic could not be read from the release's sources.
        InvalidSetup: the file is damaged.
    """
    if why := release.why_missing(topic):
        raise MissingFacts(fault("facts-missing", topic=topic, version=release.version, why=why))
    start = _head_of(topic)
    try:
        with release.file.open(encoding="utf-8") as lines:
            rows = next(json.loads(line)["rows"] for line in lines if line.startswith(start))
        return {
            key: SpanRow(key=key, value=value, since=release.version, until=release.version, source=source)
            for key, (value, source) in rows.items()
        }
    except (OSError, StopIteration, ValueError, KeyError, TypeError) as error:
        raise _damaged(release.file, error) from error


def write_release(release: AddedRelease, tables: Mapping[str, Table]) -> None:
    """Store a release with the tables of its topics, atomically: a reader sees the old file or the new one.

    Raises:
        StorageError: the folder cannot be written.
    """
    head = json.dumps(asdict(release) | {"topics": sorted(tables)}, ensure_ascii=False)
    lines = [head, *(_head_of(topic) + json.dumps(tables[topic], ensure_ascii=False) + "}" for topic in sorted(tables))]
    try:
        release.file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(release.file, "\n".join(lines) + "\n")
    except OSError as error:
        raise StorageError(text_of("release-not-kept", file=release.file, cause=cause_of(error))) from None


def remove_release(release: AddedRelease) -> None:
    """Delete a release's file."""
    release.file.unlink(missing_ok=True)


def _folder() -> Path:
    return data_folder() / "facts"


def _head_of(topic: str) -> str:
    """Return the beginning of a topic's line, by which it is found without parsing the lines before it."""
    return f'{{"topic": {json.dumps(topic)}, "rows": '


def _read_head(file: Path) -> AddedRelease:
    try:
        with file.open(encoding="utf-8") as lines:
            row: dict[str, Any] = json.loads(lines.readline())
        return AddedRelease(**{name: row[name] for name in row.keys() & AddedRelease.__slots__})
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise _damaged(file, error) from error


def _damaged(file: Path, error: Exception) -> InvalidSetup:
    return refusal("facts-damaged", file=file, cause=cause_of(error))
