"""`upgrade`: lists breakage, changes and new possibilities between two vLLM releases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar

from packaging.version import Version

from draftwise.core import Finding, Ruling, Severity
from draftwise.core.documents import HIDDEN
from draftwise.core.grouping import copy_fields
from draftwise.core.progress import Progress
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.methods import find_method
from draftwise.knowledge.vllm import releases
from draftwise.plan.release_changes import AcceptedChoice, Upgrade, ValueChange, compare_releases
from draftwise.setups.read import SetupReading
from draftwise.verbs.judgements import FailOn, Judgement
from draftwise.verbs.model_configs import open_configs
from draftwise.verbs.sources import FoundSetups, JudgedRequest, find_sources, open_release
from draftwise.verbs.verb import Result, refuse, verb

__all__ = [
    "AcceptedChoice", "ChoiceRow", "UpgradeRequest", "UpgradeResult", "UpgradedSetup", "ValueChange", "group_choices",
    "upgrade",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class UpgradeRequest(JudgedRequest):
    """Setups, and the two releases between which they move."""

    _: KW_ONLY
    before: str | None = None
    """Release that runs now; None takes the one that each source names."""
    after: str
    """Release to move to, e.g. `newest`; an older one is a roll-back."""
    nearest: bool = False
    """Whether to judge an unknown release by the nearest known one; a finding then says so."""
    fail_on: FailOn = "error"
    """What gives exit code 1: a break (`error`); `unknown` adds setups not judged in full, `warning` new warnings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradedSetup:
    """One setup on both releases."""

    where: str
    before: Judgement
    after: Judgement
    starts_on_neither: bool
    """Whether both releases refuse to start with it."""
    breaks: tuple[Ruling, ...]
    """What the new release rejects or fails on, and the old one does not."""
    still: tuple[Ruling, ...]
    """What both releases reject or fail on."""
    unknown: tuple[Ruling, ...]
    """Not judged for the new release: the text leaves a value open, or draftwise does not know a model."""
    other: tuple[Ruling | Finding, ...]
    """New findings that do not stop the server."""
    gone: tuple[Ruling | Finding, ...]
    """Findings of the old release that no longer hold."""
    appearing: tuple[Ruling, ...]
    """Known defects that the setup meets on the new release only."""
    disappearing: tuple[Ruling, ...]
    """Known defects that it meets on the old release only."""
    changes: tuple[ValueChange, ...]
    """Resolved values and engine defaults that differ."""
    possible: tuple[AcceptedChoice, ...]
    """Methods, keys and values that only the new release has."""
    removed: tuple[AcceptedChoice, ...]
    """Methods, keys and values that only the old release has."""
    is_downgrade: bool = field(metadata=HIDDEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeResult(Result):
    """Every setup on both releases."""

    VERB: ClassVar[str] = "upgrade"
    JSON_OF: ClassVar[str] = "setups"
    setups: tuple[UpgradedSetup, ...]
    unread: tuple[Finding, ...]
    """Findings of files that cannot be read."""
    skipped: tuple[str, ...]
    """Files that start no vLLM server."""
    fail_on: FailOn = field(default="error", metadata=HIDDEN)

    @property
    def notices(self) -> tuple[Finding, ...]:
        """Findings of files that cannot be read."""
        return self.unread

    @property
    def exit_code(self) -> int:
        """1 if something breaks, a setup starts on neither release, or `fail_on` applies."""
        return int(self.fail_on != "never" and (_has_errors(self.unread) or any(map(self._fails, self.setups))))

    def _fails(self, setup: UpgradedSetup) -> bool:
        if setup.breaks or setup.starts_on_neither or _has_errors(setup.unknown):
            return True
        is_open = None in (setup.before.accepted, setup.after.accepted)
        warns = any(each.severity is Severity.WARNING for each in setup.other)
        return self.fail_on in ("unknown", "warning") and (is_open or (warns and self.fail_on == "warning"))


def _has_errors(findings: Iterable[Finding]) -> bool:
    return any(each.severity is Severity.ERROR for each in findings)


@verb(UpgradeRequest)
def upgrade(request: UpgradeRequest, _progress: Progress) -> UpgradeResult:
    """Judge each setup on two vLLM releases and list the differences."""
    for version in filter(None, (request.before, request.after)):
        open_release(version, nearest=request.nearest)
    sources = find_sources(request)
    old, new = (sources.read(version) for version in (request.before, request.after))
    for setup in old.setups if request.before is None else ():
        if not setup.engine_version:
            refuse("A source does not name the release that runs now. Give it.", where="--from")
        open_release(setup.engine_version, nearest=request.nearest)
    with open_configs([*old.setups, *new.setups], request.config_from, hub=request.hub):
        pairs = [
            _describe(left.where, compare_releases(left, right, nearest=request.nearest))
            for left, right in _pair(old, new)
        ]
    return UpgradeResult(
        setups=tuple(pairs),
        unread=tuple(finding for _, report in new.unread for finding in report.findings),
        skipped=new.skipped,
        fail_on=request.fail_on,
    )


def _pair(old: FoundSetups, new: FoundSetups) -> Iterable[tuple[SetupReading, SetupReading]]:
    """Return each setup as the two releases read it."""
    if len(old.readings) != len(new.readings):
        raise refusal("servers-differ", before=len(old.readings), after=len(new.readings))
    return zip(old.readings, new.readings, strict=True)


def _describe(where: str, found: Upgrade) -> UpgradedSetup:
    before, after = map(Judgement.of, (found.before, found.after))
    return copy_fields(UpgradedSetup, found, where=where, before=before, after=after)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceRow:
    """Choices of one kind that the same release added or removed."""

    release: str
    kind: str
    names: tuple[str, ...]


def group_choices(choices: Sequence[AcceptedChoice], *, by_end: bool) -> list[ChoiceRow]:
    """Return choices by release and kind, with the MTP modules of single families as one kind."""
    rows: dict[tuple[str, str], list[str]] = {}
    for choice in choices:
        method = find_method(choice.name) if choice.kind == "method" else None
        is_alias = method is not None and choice.name in method.aliases
        kind, name = ("method mtp of", choice.name.removesuffix("_mtp")) if is_alias else (choice.kind, choice.name)
        release = choice.until or str(releases()[-1]) if by_end else choice.since
        rows.setdefault((release, kind), []).append(name)
    order = sorted(rows.items(), key=lambda row: (Version(row[0][0]), row[0][1]))
    return [ChoiceRow(release=release, kind=kind, names=tuple(names)) for (release, kind), names in order]
