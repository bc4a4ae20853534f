"""`facts`: lists the known vLLM releases and their age, and adds one from its wheel or installation."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from packaging.version import InvalidVersion, Version

from draftwise.core.documents import json_form
from draftwise.core.progress import Progress
from draftwise.knowledge.defects import Defect
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.vllm import Release, get_release, releases
from draftwise.verbs.field_types import Range
from draftwise.verbs.verb import Result, refuse, verb

if TYPE_CHECKING:
    from draftwise.extract.wheel_sources import VllmSources

_DAYS_A_MONTH = 30.44
_SHIPPED = "shipped"


@dataclass(frozen=True, slots=True)
class FactsRequest:
    """List the known releases; or add one; or remove one that was added."""

    _: KW_ONLY
    older_than_months: Annotated[float, Range(0)] = 6.0
    """Age from which a release is marked as old."""
    add: str | None = None
    """Release to add: vllm==X (fetched with pip's configuration), a wheel, or a folder with sources."""
    python: str | None = None
    """Interpreter whose installed vLLM to add."""
    add_installed: bool = False
    """Whether to add the vLLM that is installed for `python`, or for draftwise itself."""
    remove: str | None = None
    """Release to remove: vllm==X."""
    defects: bool = False
    """Whether to list the known defects instead of the releases."""
    validators: bool = False
    """Whether to list the validators of vLLM's configs, and which of their rejections draftwise judges."""
    vllm: str | None = None
    """Release whose defects or validators are listed; default: every release."""
    method: str | None = None
    """Method whose defects are listed; default: every method."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRelease:
    """A release that every verb can judge by."""

    version: str
    date: str
    """Date of the newest file in its wheel."""
    age_days: int
    old: bool
    source: str = field(metadata=json_form(key="from"))
    """`shipped`, or the wheel, folder or installation that it was read from."""
    added: str | None = field(default=None, metadata=json_form(omit_empty=True))
    """When it was added."""
    draftwise: str | None = field(default=None, metadata=json_form(omit_empty=True))
    """Version of draftwise that read it."""
    file: str | None = field(default=None, metadata=json_form(omit_empty=True))
    missing: Mapping[str, str] | None = field(default=None, metadata=json_form(omit_null=True))
    """Topics that could not be read, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestRelease:
    """The newest known release."""

    version: str
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownReleases:
    """Every release that is known, oldest first."""

    newest: NewestRelease
    older_than_months: float
    releases: tuple[KnownRelease, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedRelease:
    """A release that was read into the facts of this user."""

    version: str
    date: str
    read_from: str
    file: str
    topics: tuple[str, ...]
    """Topics that were read."""
    missing: Mapping[str, str]
    """Topics that could not be read, and why."""
    rules: tuple[str, ...]
    """Doubts about rules that were written for older releases."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedReleases:
    """Releases that were removed, by version, with their files."""

    removed: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDefects:
    """Rows of the ledger of known defects."""

    vllm: str | None
    """Release that has them, or may have them still."""
    method: str | None
    defects: tuple[Defect, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseValidators:
    """Which rejections of a release's configs draftwise judges."""

    version: str
    known: int
    """Functions that can reject a config: pydantic validators, `__post_init__`, and functions named verify or check."""
    refusals: int
    read: int
    """Rejections whose condition was read from the wheel and applies to every setup."""
    by_rules: int
    """Rejections that rules, or conditions written by a reader, cover."""
    waiting: int
    """Rejections whose condition needs what no setup shows: `check` accepts no setup that may meet them."""
    unreached: int
    """Rejections that no command line, environment or target meets."""
    unread: tuple[str, ...]
    """The others, as `Class.function: text`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownValidators:
    """Validators by release, oldest first."""

    validators: tuple[ReleaseValidators, ...]


Answer = KnownReleases | AddedRelease | RemovedReleases | KnownDefects | KnownValidators


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsResult(Result):
    """The known releases, what was added or removed, or known defects."""

    VERB: ClassVar[str] = "facts"
    JSON_OF: ClassVar[str] = "answer"
    answer: Answer


@verb(FactsRequest)
def facts(request: FactsRequest, progress: Progress) -> FactsResult:
    """List the vLLM releases that every verb can judge by, add one, remove one that was added, or list known defects.

    The user's folder is $DRAFTWISE_DATA_DIR, else `draftwise` in $XDG_DATA_HOME or ~/.local/share. vLLM is parsed and
    never imported. From an index, only the sources of a wheel are transferred if the index allows it.
    """
    if request.add is not None and request.python is not None:
        refuse("Give WHAT or --python, not both.")
    if request.add is not None or request.python is not None or request.add_installed:
        return FactsResult(answer=_add(request, progress))
    if request.remove is not None:
        return FactsResult(answer=_remove(request.remove))
    if request.defects:
        return FactsResult(answer=_list_defects(request))
    if request.validators:
        asked = releases("validators") if request.vllm is None else (get_release(request.vllm),)
        return FactsResult(answer=KnownValidators(validators=tuple(map(_count_validators, asked))))
    listed = tuple(_describe(release, request.older_than_months) for release in releases())
    newest = NewestRelease(version=listed[-1].version, date=listed[-1].date)
    months = request.older_than_months
    return FactsResult(answer=KnownReleases(newest=newest, older_than_months=months, releases=listed))


def _list_defects(request: FactsRequest) -> KnownDefects:
    from draftwise.knowledge.defects import all_defects
    from draftwise.knowledge.methods import all_methods, find_method

    method = find_method(request.method)
    if request.method is not None and method is None:
        refuse(f"Unknown method {request.method!r}: give one of {', '.join(all_methods())}.", where="--method")
    release = None if request.vllm is None else get_release(request.vllm)
    rows = (
        row
        for row in all_defects().values()
        if (method is None or not row.methods or method.name in row.methods)
        and (release is None or row.state_in(release.version) is not None)
    )
    name = None if method is None else method.name
    return KnownDefects(vllm=None if release is None else str(release), method=name, defects=tuple(rows))


def _count_validators(release: Release) -> ReleaseValidators:
    from draftwise.knowledge.validators import Coverage, list_refusals

    functions, refusals = list_refusals(release)
    unread = tuple(key for key, answered in refusals.items() if answered is Coverage.NOT)
    count = Counter(refusals.values())
    return ReleaseValidators(
        version=str(release),
        known=functions,
        refusals=len(refusals),
        read=count[Coverage.READ],
        by_rules=count[Coverage.BY_RULE],
        waiting=count[Coverage.WAITS],
        unreached=count[Coverage.UNREACHED],
        unread=unread,
    )


def _add(request: FactsRequest, progress: Progress) -> AddedRelease:
    from draftwise.extract.release import add_release
    from draftwise.knowledge.rules import find_doubts

    start = time.monotonic()
    with _open(request.add, request.python, progress) as sources:
        added = add_release(sources)
    doubts = find_doubts(get_release(added.version))
    return AddedRelease(
        version=added.version,
        date=added.built,
        read_from=added.read_from,
        file=str(added.file),
        topics=tuple(added.topics),
        missing=added.missing,
        rules=tuple(each.message for each in doubts),
        seconds=round(time.monotonic() - start, 1),
    )


def _open(what: str | None, python: str | None, progress: Progress) -> AbstractContextManager[VllmSources]:
    from draftwise.extract import wheel_sources as sources
    from draftwise.extract.release import refuse_known

    if what is None:
        return nullcontext(sources.open_installed(python or sys.executable))
    if (version := _read_version(what)) is not None:
        refuse_known(version)
        return _fetch(version, progress)
    if what.endswith(".whl"):
        return sources.open_wheel(Path(what))
    return nullcontext(sources.open_folder(Path(what)))


@contextmanager
def _fetch(version: Version, progress: Progress) -> Iterator[VllmSources]:
    from draftwise.extract.wheel_sources import open_released

    progress.status(f"Looking for vLLM {version} on pip's index ...")

    def follow(done: int, total: int) -> None:
        progress.plan(total, None)
        progress.step(done)

    with open_released(version, follow) as sources:
        yield sources


def _remove(what: str) -> RemovedReleases:
    from draftwise.knowledge.added import read_added, remove_release

    version = _read_version(what)
    found = [each for each in read_added() if Version(each.version) == version]
    if not found:
        raise refusal("facts-not-added", version=version or what)
    for release in found:
        remove_release(release)
    return RemovedReleases(removed={release.version: str(release.file) for release in found})


def _read_version(what: str) -> Version | None:
    name, _, version = what.rpartition("==")
    try:
        return Version(version.strip()) if name.strip().lower() in ("", "vllm") else None
    except InvalidVersion:
        return None


def _describe(release: Release, months: float) -> KnownRelease:
    age = (datetime.now(UTC).date() - date.fromisoformat(release.built)).days
    is_old, added = age > months * _DAYS_A_MONTH, release.added
    if added is None:
        return KnownRelease(version=str(release), date=release.built, age_days=age, old=is_old, source=_SHIPPED)
    return KnownRelease(
        version=str(release),
        date=release.built,
        age_days=age,
        old=is_old,
        source=added.read_from,
        added=added.added,
        draftwise=added.draftwise,
        file=str(added.file),
        missing=dict(added.missing),
    )
