"""Looks up the values, registries and defaults of each vLLM release in tables generated from its wheels.

The data is in `data/vllm/<topic>.json`, written by `python -m catalogue build` and never by hand; for releases that the
user added, `draftwise.knowledge.added` reads it. A topic is read on first use.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from packaging.version import InvalidVersion, Version

from draftwise.core import Finding, InvalidSetup
from draftwise.knowledge.added import AddedRelease, read_added, read_table
from draftwise.knowledge.messages import note, refusal, warning
from draftwise.knowledge.spans import SpanRow, decode, encode

_DATA = Path(__file__).with_name("data") / "vllm"
_RELEASES = "releases.json"
_NEWEST = frozenset({"newest", "latest"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One value over a range of releases."""

    since: Version
    """First release with the value; the oldest covered one may represent older ones."""
    until: Version | None
    """Last release with it, included; None if the newest one has it."""
    value: Any
    source: str
    """Release, file and symbol where the value was first read."""


_name, parse_version = cache(str), cache(Version)
"""A version as text and a text as version: each look at a table, and each of some hundred rules, asks for them."""


@dataclass(frozen=True, slots=True)
class Release:
    """A vLLM release with tables in the catalogue."""

    version: Version
    built: str = field(compare=False)
    """Date of the wheel's newest file, e.g. `2026-04-18`."""
    asked: str = field(default="", compare=False)
    """The requested version, if its name differs from this release's."""
    is_same: bool = field(default=True, compare=False)
    """Whether the requested version is this release or a build of it; False if this is only the nearest known one."""
    added: AddedRelease | None = field(default=None, compare=False)
    """How the user added it; None for a shipped release."""

    def __str__(self) -> str:
        return str(self.version)

    def table(self, topic: str) -> Mapping[str, Any]:
        """Return the table of a topic in this release: key -> value.

        Raises:
            KeyError: there is no such topic; `topics()` names them.
            MissingFacts: the topic could not be read when the user added the release.
        """
        return _values(topic, _name(self.version))

    def source(self, topic: str, key: str) -> str:
        """Return where a value of `table` was read: release, file and symbol; KeyError for an unknown key."""
        return _cite(_table(topic, str(self.version))[key])


@cache
def get_release(text: str, *, nearest: bool = False) -> Release:
    """Return a release by a version, an image tag or `newest`.

    By PEP 440, a local label (`0.26.0+cpu`, the rest of an image's tag) and a post-release (`0.26.0.post1`) are builds
    of the same release. A release candidate or a development version is a different one, and unknown.

    Args:
        text: the version as the user wrote it.
        nearest: whether to use the nearest known release for an unknown one; `find_remarks` then says so.

    Raises:
        InvalidSetup: the text is not a version, or (unless `nearest`) the release is unknown.
    """
    if text.strip().lower() in _NEWEST:
        return releases()[-1]
    asked = _parse(text)
    known = {release.version: release for release in releases()}
    same = known.get(Version(asked.public)) or (None if asked.is_prerelease else known.get(Version(asked.base_version)))
    if same is not None:
        return same if same.version == asked else replace(same, asked=text.strip().removeprefix("v"))
    closest = _find_nearest(asked)
    if nearest:
        return replace(closest, asked=str(asked), is_same=False)
    raise _unknown(asked, closest)


def find_remarks(release: Release) -> Iterator[Finding]:
    """Yield findings about a release that stands in for the requested version."""
    if release.asked and release.is_same:
        yield note("release-build", asked=release.asked, release=release)
    elif release.asked:
        yield warning("release-nearest", asked=release.asked, release=release)


def _unknown(asked: Version, closest: Release) -> InvalidSetup:
    known = releases()
    if asked < known[0].version:
        message = f"vLLM {asked} is older than {known[0]}, the oldest release that is known."
        fix = f"Give a release from {known[0]} to {known[-1]}."
    else:
        message = f"draftwise does not know vLLM {asked}. It knows {known[0]} to {known[-1]}."
        near = next((each for each in known if each.version.release[:2] == (0, asked.major)), None)
        fix = "" if near is None else f"Did you mean {near}? "
        fix += f"Add it with `draftwise facts add vllm=={asked}`; the nearest known release is {closest}."
    return InvalidSetup.because("unknown-release", message, where="engine_version", fix=fix)


def _parse(text: str) -> Version:
    """Return the version in a text. The rest of an image's tag (`v0.20.0-cu130`) becomes its local label."""
    bare, _, rest = text.strip().partition("-")
    for spelled in (text.strip(), f"{bare}+{rest}", bare):
        try:
            return Version(spelled)
        except InvalidVersion:
            continue
    raise refusal("unknown-release", case="text", text=text, newest=releases()[-1])


def _find_nearest(asked: Version) -> Release:
    """Return the release that a candidate leads to, else the newest one before a version, else the oldest."""
    led_to = Version(asked.base_version) if asked.pre is not None and not asked.is_devrelease else asked
    same = next((release for release in releases() if release.version == led_to), None)
    before = next((release for release in reversed(releases()) if release.version <= asked), None)
    return same or before or releases()[0]


@cache
def releases(topic: str | None = None) -> tuple[Release, ...]:
    """Return every covered release, oldest first: shipped ones and those that the user added.

    Args:
        topic: leaves out added releases whose sources lack this topic.
    """
    if topic is not None:
        return tuple(each for each in releases() if each.added is None or not each.added.why_missing(topic))
    shipped = [Release(Version(row["version"]), row["built"]) for row in _read(_RELEASES)]
    known = {str(release) for release in shipped}
    added = [Release(Version(each.version), each.built, added=each) for each in read_added()]
    return tuple(sorted([*shipped, *(each for each in added if str(each) not in known)], key=lambda each: each.version))


def forget_added() -> None:
    """Forget the added releases read so far, after one was added or removed."""
    for function in (get_release, releases, _rows, _rows_by_key, _table, _values):
        function.cache_clear()


@cache
def topics() -> tuple[str, ...]:
    """Return the names of the tables."""
    names = (entry.name for entry in _DATA.iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in names if name.endswith(".json") and name != _RELEASES))


def all_keys(topic: str) -> tuple[str, ...]:
    """Return every key that any release has, in the order of the topic's rows; KeyError for an unknown topic."""
    return tuple(_rows_by_key(topic))


def history(topic: str, key: str, *, shipped: bool = False) -> tuple[Span, ...]:
    """Return the values of a key over all releases, oldest first; empty if no release has it.

    Raises:
        KeyError: there is no such topic.
    """
    return tuple(
        Span(
            since=parse_version(row.since),
            until=None if row.until is None else parse_version(row.until),
            value=row.value,
            source=_cite(row),
        )
        for row in _rows_by_key(topic, shipped=shipped).get(key, ())
    )


def _cite(row: SpanRow) -> str:
    return f"vLLM {row.since}, {row.source}"


@cache
def _rows_by_key(topic: str, *, shipped: bool = False) -> Mapping[str, list[SpanRow]]:
    found: dict[str, list[SpanRow]] = {}
    for row in (_shipped_rows if shipped else _rows)(topic):
        found.setdefault(row.key, []).append(row)
    return found


@cache
def _rows(topic: str) -> tuple[SpanRow, ...]:
    """Return the rows of a topic over all releases. The shipped ones as they are where the user added none."""
    covered = releases(topic)
    if all(release.added is None for release in covered):
        return _shipped_rows(topic)
    names = [str(release) for release in covered]
    tables = [{key: (row.value, row.source) for key, row in _table(topic, name).items()} for name in names]
    return tuple(encode(names, tables))


@cache
def _shipped_rows(topic: str) -> tuple[SpanRow, ...]:
    if topic not in topics():
        raise KeyError(topic)
    return tuple(SpanRow(**row) for row in _read(f"{topic}.json"))


@cache
def _table(topic: str, release: str) -> Mapping[str, SpanRow]:
    covered = {str(each): each.added for each in releases()}
    if (added := covered[release]) is None:
        return decode([name for name, each in covered.items() if each is None], _shipped_rows(topic), release)
    if topic not in topics():
        raise KeyError(topic)
    return read_table(added, topic)


@cache
def _values(topic: str, release: str) -> Mapping[str, Any]:
    return MappingProxyType({key: row.value for key, row in _table(topic, release).items()})


def _read(name: str) -> Any:
    return json.loads(_DATA.joinpath(name).read_text(encoding="utf-8"))
