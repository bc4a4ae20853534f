"""Rules of vLLM that no parser can read off its source: each with the releases in which it holds, and its source.

The rows lie in `data/rules/*.json`. What a rule *says* is data; deciding whether a configuration meets it is the work
of `draftwise.plan`. A row's probe is a pattern that is found in the named sources exactly in the releases in which the
rule holds; the maintainer's `python -m catalogue probe` goes through all wheels and reports every probe that rots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from packaging.version import Version

from draftwise.core import Effect, Ruling, Severity, Stage
from draftwise.facts.stored import read_folder

__all__ = ["Probe", "Rule", "Rulebook", "all_rules", "get_rule"]

_version = cache(Version)
"""Parsed once: a judgement asks some hundred rules, which begin and end at the same few releases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Where a rule can be seen in the source."""

    files: tuple[str, ...]
    """Paths in the wheel; the first that exists is read, since modules move between releases."""
    pattern: str
    """Regular expression, searched with DOTALL and MULTILINE."""
    absent: bool = False
    """The rule holds where the pattern is *not* found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that some releases do."""

    code: str
    title: str
    explains: str
    """Why it is so and what it means for an operator, in a sentence or two."""
    severity: Severity
    effect: Effect
    stage: Stage
    spans: tuple[tuple[str, str | None], ...]
    """Releases in which it holds: first and last, both included; None stands for the newest one known."""
    source: str
    exception: str = ""
    methods: tuple[str, ...] = ()
    """Methods that it is about; empty for a rule that does not depend on the method."""
    probe: Probe | None = None

    def holds(self, version: Version | None) -> bool:
        """Say whether the rule holds in a release; None stands for the newest one known."""
        if version is None:
            return self.spans[-1][1] is None
        return any(
            _version(first) <= version and (last is None or version <= _version(last)) for first, last in self.spans
        )

    def ruling(self, message: str, *, where: str = "", fix: str = "", becomes: str = "") -> Ruling:
        """Return the finding that a configuration has met this rule, whatever the release."""
        return Ruling(
            code=self.code,
            severity=self.severity,
            message=message,
            where=where,
            fix=fix,
            source=self.source,
            effect=self.effect,
            stage=self.stage,
            exception=self.exception,
            becomes=becomes,
        )


@dataclass(frozen=True, slots=True)
class Rulebook:
    """The rules as one release has them."""

    version: Version | None = None
    """None stands for the newest release known."""

    def holds(self, code: str) -> bool:
        """Say whether a rule holds in the release; KeyError for an unknown code."""
        return get_rule(code).holds(self.version)

    def applies(self, code: str, method: str | None) -> bool:
        """Say whether a rule holds in the release and is about a method; KeyError for an unknown code."""
        about = get_rule(code).methods
        return (not about or method in about) and self.holds(code)

    def ruling(
        self,
        code: str,
        message: str,
        *,
        where: str = "",
        fix: str = "",
        becomes: str = "",
        method: str | None = None,
    ) -> tuple[Ruling, ...]:
        """Return the finding that a configuration has met a rule, and none where the rule does not hold.

        Args:
            code: of the rule; it decides severity, effect, stage, exception and source.
            message: a whole sentence that names its subject.
            where: key, flag or file that the finding is about.
            fix: what to do about it, as a sentence.
            becomes: what runs instead, for `Effect.CHANGED`.
            method: that the finding is about: a rule about certain methods is not met by others. None: any.

        Raises:
            KeyError: there is no such rule.
        """
        if not (self.holds(code) if method is None else self.applies(code, method)):
            return ()
        return (get_rule(code).ruling(message, where=where, fix=fix, becomes=becomes),)


def get_rule(code: str) -> Rule:
    """Return a rule by its code; KeyError for an unknown one."""
    return all_rules()[code]


@cache
def all_rules() -> Mapping[str, Rule]:
    """Return every rule by its code."""
    rows: dict[str, Rule] = {}
    for name, content in read_folder("rules").items():
        for row in content:
            rule = _read(row)
            if rule.code in rows:
                raise ValueError(f"rule {rule.code} is written twice, the second time in {name}")
            rows[rule.code] = rule
    return rows


def _read(row: Mapping[str, Any]) -> Rule:
    probe = row.get("probe")
    return Rule(
        code=row["code"],
        title=row["title"],
        explains=row["explains"],
        severity=Severity(row["severity"]),
        effect=Effect(row["effect"]),
        stage=Stage(row["stage"]),
        spans=tuple((first, last) for first, last in row["spans"]),
        source=row["source"],
        exception=row.get("exception", ""),
        methods=tuple(row.get("methods", ())),
        probe=None if probe is None else Probe(**{**probe, "files": tuple(probe["files"])}),
    )
