"""Compares a setup on two vLLM releases: breaks, silent changes, new choices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from draftwise.core import CheckOutcome, Effect, Finding, Ruling, Setup, Stage
from draftwise.knowledge.vllm import Release, Span, get_release, history
from draftwise.plan.check import Report, judge
from draftwise.setups.read import SetupReading

_HARD = (Effect.REJECTED, Effect.FAILS_LATER)
_RULE_FIELDS = "fields"
_DEFAULTS_THAT_MATTER = (
    "gpu_memory_utilization",
    "max_num_batched_tokens",
    "max_num_seqs",
    "block_size",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "async_scheduling",
    "kv_cache_dtype",
    "max_logprobs",
    "logprobs_mode",
)
"""Engine defaults that change latency, memory or answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueChange:
    """A value that differs between the releases although the setup does not set it."""

    what: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedChoice:
    """Something that only one of the two releases accepts in a speculative config."""

    kind: str
    """`method`, `key`, or the key whose value it is."""
    name: str
    since: str
    """First release that has it."""
    until: str | None
    """Last release that has it; None if the newest one has it."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade:
    """One setup on two releases."""

    before: Report
    after: Report
    breaks: tuple[Ruling, ...]
    """What the new release rejects or fails on, but the old one does not."""
    still: tuple[Ruling, ...]
    """What both reject or fail on."""
    unknown: tuple[Ruling, ...]
    """What is not judged for the new release, because the text leaves a value open or a model is unknown."""
    other: tuple[Finding, ...]
    """New findings that do not stop the server: ignored, changed, deprecated, informational."""
    gone: tuple[Finding, ...]
    """Findings of the old release that no longer hold; empty if the new one rejects the setup."""
    appearing: tuple[Ruling, ...]
    """Known defects that the setup meets on the new release but not on the old one."""
    disappearing: tuple[Ruling, ...]
    """Known defects of the old release that the new one is known not to have."""
    changes: tuple[ValueChange, ...]
    """Resolved values and engine defaults that differ."""
    possible: tuple[AcceptedChoice, ...]
    """Methods, keys and choices that only the new release has."""
    removed: tuple[AcceptedChoice, ...]
    """Methods, keys and choices that only the old release has."""

    @property
    def is_downgrade(self) -> bool:
        """Whether the release to move to is the older one."""
        return get_release(self.after.version).version < get_release(self.before.version).version

    @property
    def starts_on_neither(self) -> bool:
        """Whether both releases refuse to start with the setup, for any reason."""
        return not _starts(self.before) and not _starts(self.after)


def compare_releases(before: SetupReading, after: SetupReading, *, nearest: bool = False) -> Upgrade:
    """Compare how two releases treat the same setup.

    Args:
        before: the setup as read for the current release.
        after: the setup as read for the release to move to, because flags change too; an older one is a downgrade.
        nearest: whether to judge an unknown release by the nearest known one.

    Raises:
        InvalidSetup: a release is unknown.
    """
    left, right = (_drop_version_remark(judge(reading, nearest=nearest)) for reading in (before, after))
    old, new = get_release(left.version), get_release(right.version)
    appeared = _missing(right.findings, left.findings)
    breaks = tuple(f for f in appeared if isinstance(f, Ruling) and f.effect in _HARD)
    unknown = tuple(f for f in right.findings if isinstance(f, Ruling) and f.effect is Effect.UNKNOWN)
    goes_on = right.is_judged and right.outcome is not CheckOutcome.REJECTED
    return Upgrade(
        before=left,
        after=right,
        breaks=breaks,
        still=tuple(f for f in right.findings if isinstance(f, Ruling) and f.effect in _HARD and f not in appeared),
        unknown=unknown,
        other=tuple(f for f in appeared if f not in breaks and f not in unknown and not is_defect(f)),
        gone=tuple(f for f in _missing(left.findings, right.findings) if goes_on and not is_defect(f)),
        appearing=tuple(_find_defects(right, but=left)),
        disappearing=tuple(_find_defects(left, but=right)),
        changes=(*_resolved_changes(left, right), *_default_changes(after.setup, old, new)),
        possible=tuple(_additions(old, new)),
        removed=tuple(_additions(new, old)),
    )


def is_defect(finding: Finding) -> bool:
    """Whether a finding is a known defect."""
    return isinstance(finding, Ruling) and finding.effect is Effect.DEFECT


def _find_defects(report: Report, *, but: Report) -> Iterator[Ruling]:
    """Yield the known defects of one report that the other does not have, as far as both could be judged.

    A defect that stops the server is among the breaks, or gone.
    """
    if report.resolved is None or but.resolved is None:
        return
    said = {finding.code for finding in (*report.findings, *but.findings)}
    release = get_release(report.version)
    for row in report.defects:
        if row not in but.defects and said.isdisjoint(row.rules):
            ruling = row.ruling(release)
            if is_defect(ruling):
                yield ruling


def _drop_version_remark(report: Report) -> Report:
    """Return a report without the remark that the requested release is not the one in the source."""
    return replace(report, findings=tuple(each for each in report.findings if each.code != "other-version-asked"))


def _starts(report: Report) -> bool:
    """Say whether a server would come up, as far as the findings tell."""
    stops = (
        each.effect is Effect.REJECTED or (each.effect is Effect.FAILS_LATER and each.stage is Stage.START_UP)
        for each in report.findings
        if isinstance(each, Ruling)
    )
    return not any(stops)


def _missing(findings: tuple[Finding, ...], others: tuple[Finding, ...]) -> list[Finding]:
    known = {_identity(finding) for finding in others}
    return [finding for finding in findings if _identity(finding) not in known]


def _identity(finding: Finding) -> tuple[str, str, str]:
    return finding.code, finding.where, finding.effect if isinstance(finding, Ruling) else ""


def _resolved_changes(before: Report, after: Report) -> Iterator[ValueChange]:
    if before.resolved is None or after.resolved is None:
        return
    left, right = asdict(before.resolved), asdict(after.resolved)
    left |= left.pop(_RULE_FIELDS)
    right |= right.pop(_RULE_FIELDS)
    for name in sorted(left.keys() & right.keys()):
        if left[name] != right[name]:
            yield ValueChange(what=name, before=left[name], after=right[name])


def _default_changes(setup: Setup, old: Release, new: Release) -> Iterator[ValueChange]:
    left, right = old.table("engine_defaults"), new.table("engine_defaults")
    for name in _DEFAULTS_THAT_MATTER:
        if name not in setup.args and name in left and name in right and left[name] != right[name]:
            yield ValueChange(what=f"default of --{name.replace('_', '-')}", before=left[name], after=right[name])


def _additions(old: Release, new: Release) -> Iterator[AcceptedChoice]:
    for topic, kind in (("methods", "method"), ("spec_fields", "key")):
        known = old.table(topic)
        yield from (_choice(kind, name, history(topic, name)) for name in new.table(topic) if name not in known)
    fields = old.table("spec_fields")
    for name, field in new.table("spec_fields").items():
        known_values = fields.get(name, {}).get("choices")
        if name != "method" and known_values:
            for value in field.get("choices") or ():
                if value not in known_values:
                    spans = [span for span in history("spec_fields", name) if value in (span.value["choices"] or ())]
                    yield _choice(name, str(value), spans)


def _choice(kind: str, name: str, spans: Sequence[Span]) -> AcceptedChoice:
    until = spans[-1].until
    return AcceptedChoice(
        kind=kind,
        name=name,
        since=str(spans[0].since),
        until=None if until is None else str(until),
        source=spans[0].source,
    )
