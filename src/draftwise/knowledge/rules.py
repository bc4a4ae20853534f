"""Rules of vLLM that no parser can read from its source, each with its releases and its source.

The rows are in `data/rules/*.json`. What a rule *says* is data; `draftwise.plan` decides whether a configuration meets
it. A row's probe is a pattern that matches the named sources exactly in the releases in which the rule holds.
`python -m catalogue probe` checks all wheels and reports every outdated probe. A release that a user added was not
reviewed: there, a rule that its sources do not prove is unknown, and not applied.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from packaging.version import Version

from draftwise.core import Effect, Finding, Ruling, Severity, Stage
from draftwise.core.finding import join_names
from draftwise.knowledge.stored import read_folder
from draftwise.knowledge.vllm import Release, parse_version, releases

_PROBES = "probes"
_TEXTS = ("message", "where", "fix", "becomes")
_CITED = re.compile(r"vllm (\d[\d.]*\d)", re.IGNORECASE)


def is_within(spans: Iterable[tuple[str, str | None]], version: Version) -> bool:
    """Return whether a release lies in one of the spans, whose ends are included."""
    parse = parse_version
    return any(parse(first) <= version and (last is None or version <= parse(last)) for first, last in spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Where the source shows a rule."""

    files: tuple[str, ...]
    """Paths in the wheel; the first that exists is read, because modules move between releases."""
    pattern: str
    """Regular expression, searched with DOTALL and MULTILINE."""
    absent: bool = False
    """Whether the rule holds if the pattern is *not* found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmRule:
    """A behavior of some releases."""

    code: str
    title: str
    explains: str
    """The reason, and what it means for an operator, in a sentence or two."""
    message: str = ""
    """Message about a configuration that meets it: a full sentence that names its subject. `{name}` is a value of the
    case, and `{release}` the release that judges."""
    where: str = ""
    """Key, flag or file that the finding is about, with the same placeholders."""
    fix: str = ""
    """What to do, as a sentence, with the same placeholders."""
    becomes: str = ""
    """What runs instead, for `Effect.CHANGED`, with the same placeholders."""
    severity: Severity
    effect: Effect
    stage: Stage
    spans: tuple[tuple[str, str | None], ...]
    """Releases in which it holds: (first, last), both included; None means the newest known release."""
    source: str
    exception: str = ""
    methods: tuple[str, ...] = ()
    """Methods that it applies to; empty if it does not depend on the method."""
    probe: Probe | None = None
    decides: tuple[str, ...] = ()
    """Values of `Resolved` that it determines; if the rule is in doubt, they are unknown."""
    stands_for: tuple[str, ...] = ()
    """Keys of the tables `config_checks` and `config_fields` that the rule replaces, e.g. with a GPU's defaults."""
    says: tuple[str, ...] = ()
    """Parts of lines that are no validator's refusal, which vLLM logs or answers where the rule holds."""
    answers: tuple[str, ...] = ()
    """Rejections of the topic `validators` that the rule covers, in addition to that at its probe: parts of keys."""
    reads: tuple[str, ...] = ()
    """Inputs that it needs: `target` and `drafter` (their config.json), `weights` (tensors and tokenizers of both),
    `gpu`. Only for rules that stop a server or warn."""
    rests_on: Literal["source", "tables", "input"] = "source"
    """Its basis in addition to a probe: vLLM's source, which a person must read; tables generated from it; or only the
    input (files, texts, rules of other programs), for any release."""

    def holds(self, version: Version | None) -> bool:
        """Return whether the rule holds in a release; None means the newest known one."""
        if version is None:
            return self.spans[-1][1] is None
        return is_within(self.spans, version)

    def ruling(self, **values: object) -> Ruling:
        """Return the finding for a configuration that meets this rule, for any release.

        Args:
            values: values of the placeholders in the row's texts; commas join a collection. Values named `message`,
                `where`, `fix` and `becomes` replace the row's own texts.

        Raises:
            KeyError: a placeholder has no value.
        """
        spelled = {
            name: ", ".join(map(str, each)) if isinstance(each, Collection) and not isinstance(each, str) else each
            for name, each in values.items()
        }
        texts = {
            name: str(values[name]) if name in values else getattr(self, name).format_map(spelled) for name in _TEXTS
        }
        return Ruling(
            code=self.code,
            severity=self.severity,
            source=self.source,
            effect=self.effect,
            stage=self.stage,
            exception=self.exception,
            **texts,
        )


@dataclass(frozen=True, slots=True)
class Rulebook:
    """The rules of one release."""

    version: Version | None = None
    """Release; None for the newest known one."""

    def holds(self, code: str) -> bool:
        """Return whether a rule holds in the release; KeyError for an unknown code."""
        return get_rule(code).holds(self.version)

    def applies(self, code: str, method: str | None) -> bool:
        """Return whether a rule holds in the release and applies to a method; KeyError for an unknown code."""
        about = get_rule(code).methods
        return (not about or method in about) and self.holds(code)

    def count_waiting(self, missing: str, *, method: str | None, drafts: bool) -> int:
        """Return how many rules of the release cannot be decided without an input.

        Args:
            missing: `target`, `drafter`, `weights` or `gpu`, as in `VllmRule.reads`.
            method: drafting method whose rules count; None without speculation, or if unknown.
            drafts: whether the setup names a separate drafter.
        """
        return sum(
            missing in rule.reads
            and rule.holds(self.version)
            and (drafts or "drafter" not in rule.reads)
            and (method in rule.methods or not rule.methods)
            and (method is not None or drafts or rule.stage is not Stage.CONFIG)
            for rule in all_rules().values()
        )

    def ruling(self, code: str, *, method: str | None = None, **values: object) -> tuple[Ruling, ...]:
        """Return the finding for a configuration that meets a rule; empty if the rule does not hold.

        Args:
            code: code of the rule, which sets severity, effect, stage, exception, source and texts.
            method: method of the setup; a rule for certain methods does not apply to others. None for any.
            values: values of the placeholders, and texts that replace the row's own: see `VllmRule.ruling`.

        Raises:
            KeyError: there is no such rule, or a placeholder of it has no value.
        """
        if not (self.holds(code) if method is None else self.applies(code, method)):
            return ()
        return (get_rule(code).ruling(**{"method": method, "release": self.version, **values}),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubts:
    """The rules that may or may not hold in a release, by code; empty for a shipped release."""

    changed: frozenset[str] = frozenset()
    """The release's sources differ from earlier ones: the rule, or its probe, no longer holds."""
    unproved: frozenset[str] = frozenset()
    """They rest on vLLM's source and have no probe, so only a reader could tell."""


def get_doubts(release: Release) -> Doubts:
    """Return the rules that may or may not hold in a release."""
    return Doubts() if release.added is None else _find_doubts(release.version, frozenset(_seen(release)))


def find_doubts(release: Release) -> Iterator[Finding]:
    """Yield findings about a release that the user added: how far unreviewed rules apply."""
    if release.added is None:
        return
    doubts = get_doubts(release)
    told = f" Changed: {', '.join(sorted(doubts.changed))}." if doubts.changed else ""
    yield Finding(
        code="facts-added",
        severity=Severity.WARNING if doubts.changed else Severity.INFO,
        message=f"You added vLLM {release} from its sources. Of the hand-written rules, "
        f"{len(_seen(release))} still hold, "
        f"{len(doubts.unproved)} have no pattern to prove them, and {len(doubts.changed)} have changed.{told} "
        "draftwise reports what depends on the last two kinds as unknown.",
        where="engine_version",
        fix="Update draftwise once it ships this release.",
        source=release.added.read_from,
    )
    yield from _find_unread(release)


_JUDGED, _MESSAGES = "judged", "messages"
_REFUSING = ("vllm/config", "vllm/engine/arg_utils.py", "vllm/transformers_utils")
"""Where the functions lie that refuse a configuration."""


def _find_unread(release: Release) -> Iterator[Finding]:
    """Yield that the functions in which vLLM refuses a configuration are other ones than in the release before."""
    before = next(
        (each for each in reversed(releases()) if each.added is None and each.version < release.version), None
    )
    if before is None or release not in releases(_JUDGED):
        return
    old, new = before.table(_JUDGED), release.table(_JUDGED)
    functions = [
        name
        for name, value in new.items()
        if _place(before if name in old else release, _JUDGED, name).startswith(_REFUSING)
        and (name not in old or any(old[name][part] != value[part] for part in ("refusals", "callers")))
    ]
    if not functions:
        return
    known = before.table(_MESSAGES)
    told = [
        text
        for text, value in (release.table(_MESSAGES) if release in releases(_MESSAGES) else {}).items()
        if text not in known
        and value["level"].endswith(("Error", "error"))
        and _place(release, _MESSAGES, text).partition(": ")[2] in functions
    ]
    examples = f", such as {told[0]!r}" if told else ""
    yield from Rulebook(release.version).ruling(
        "refusals-unread",
        before=before,
        functions=join_names(functions, most=4),
        examples=f"{examples}{f' and {len(told) - 1} more' if len(told) > 1 else ''}",
    )


def _place(release: Release, topic: str, key: str) -> str:
    """Return file and symbol of a table's row."""
    return release.source(topic, key).partition(", ")[2]


def of_release(finding: Finding, release: Release) -> Finding:
    """Return a finding as it applies to one release: with that release's source, and unknown if it is in doubt."""
    rule = all_rules().get(finding.code)
    if rule is None or not isinstance(finding, Ruling):
        return finding
    doubts = get_doubts(release)
    cited = replace(finding, source=_cite(rule, release)) if finding.source == rule.source else finding
    if finding.effect is Effect.UNKNOWN or rule.code not in doubts.changed | doubts.unproved:
        return cited
    return replace(
        cited,
        effect=Effect.UNKNOWN,
        message=f"Cannot tell whether this still holds in vLLM {release}: {finding.message}",
        exception="",
        becomes="",
    )


def _cite(rule: VllmRule, release: Release) -> str:
    """Return where a rule is seen in a release, else where it was read."""
    read_in = _CITED.match(rule.source)
    if read_in and read_in.group(1) == str(release):
        return rule.source
    seen = _seen(release).get(rule.code) if rule.probe else None
    if seen is not None:
        return f"vLLM {release}, {seen}"
    return f"read in {rule.source}" if read_in else rule.source


def _seen(release: Release) -> Mapping[str, str]:
    """Return where each rule with a probe is seen in a release. Nothing where that could not be read."""
    return release.table(_PROBES) if release in releases(_PROBES) else {}


@cache
def _find_doubts(version: Version, seen: frozenset[str]) -> Doubts:
    changed, unproved = set(), set()
    for rule in all_rules().values():
        if rule.probe is None:
            if rule.rests_on == "source" and rule.holds(version):
                unproved.add(rule.code)
        elif (rule.code in seen) is not rule.holds(version):
            changed.add(rule.code)
    return Doubts(changed=frozenset(changed), unproved=frozenset(unproved))


def get_rule(code: str) -> VllmRule:
    """Return a rule by its code; KeyError for an unknown one."""
    return all_rules()[code]


@cache
def all_rules() -> Mapping[str, VllmRule]:
    """Return every rule by its code."""
    rows: dict[str, VllmRule] = {}
    for name, content in read_folder("rules").items():
        for row in content:
            rule = _read(row)
            if rule.code in rows:
                raise ValueError(f"rule {rule.code} is written twice, the second time in {name}")
            rows[rule.code] = rule
    return rows


def _read(row: Mapping[str, Any]) -> VllmRule:
    probe = row.get("probe")
    parts = {
        "severity": Severity(row["severity"]),
        "effect": Effect(row["effect"]),
        "stage": Stage(row["stage"]),
        "spans": tuple((first, last) for first, last in row["spans"]),
        "answers": tuple(row.get("answers", ())),
        "says": tuple(row.get("says", ())),
        "reads": tuple(row.get("reads", ())),
        "probe": None if probe is None else Probe(**probe),
    }
    return VllmRule(**{**row, **parts})
