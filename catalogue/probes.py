"""Looks for the patterns of rules and known defects in every wheel, and reports those whose releases disagree."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from packaging.version import Version

from catalogue.build import find_wheels
from draftwise.extract.judged_functions import find_rule
from draftwise.extract.tree import Tree
from draftwise.knowledge.defects import Defect, all_defects
from draftwise.knowledge.rules import Probe, VllmRule, all_rules

__all__ = ["ServerProbe", "Verdict", "judge", "report", "report_defects"]


class ServerProbe(Protocol):
    """What a probe can tell of a release: a rule, or a known defect."""

    @property
    def code(self) -> str:
        """Its name."""

    @property
    def probe(self) -> Probe | None:
        """Where it can be seen."""

    def holds(self, version: Version | None) -> bool:
        """Say whether a release is said to have it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the wheels say about one rule."""

    code: str
    missing: tuple[str, ...] = ()
    """Releases in which the rule is said to hold and the probe does not see it."""
    surplus: tuple[str, ...] = ()
    """Releases in which the probe sees it and the rule is said not to hold."""
    error: str = ""
    """Why the probe cannot be used at all."""

    @property
    def rotten(self) -> bool:
        """Whether the rule or its probe must be looked at."""
        return bool(self.missing or self.surplus or self.error)


def judge(rule: ServerProbe, folder: Path, releases: Sequence[str]) -> Verdict:
    """Compare a rule's spans with what its probe finds in each release under a folder."""
    assert rule.probe is not None
    try:
        re.compile(rule.probe.pattern)
    except re.error as problem:
        return Verdict(rule.code, error=f"the pattern is no regular expression: {problem}")
    trees = {name: Tree(folder / name, name) for name in releases}
    if not any(tree.find(*rule.probe.files) for tree in trees.values()):
        return Verdict(rule.code, error=f"no release has {' or '.join(rule.probe.files)}")
    seen = {name: find_rule(rule.probe, tree) is not None for name, tree in trees.items()}
    said = {name: rule.holds(Version(name)) for name in releases}
    return Verdict(
        rule.code,
        missing=tuple(name for name in releases if said[name] and not seen[name]),
        surplus=tuple(name for name in releases if seen[name] and not said[name]),
    )


def report(folder: Path, rules: Mapping[str, VllmRule] | None = None) -> int:
    """Print a table of all rules against the wheels under a folder; 1 when any has rotted."""
    rules = all_rules() if rules is None else rules
    releases = [about["version"] for about in find_wheels(folder)]
    verdicts = [judge(rule, folder, releases) for rule in rules.values() if rule.probe]
    width = max((len(code) for code in rules), default=0)
    for verdict in sorted(verdicts, key=lambda verdict: (not verdict.rotten, verdict.code)):
        print(f"{verdict.code:{width}}  {_words(verdict, releases)}")
    rotten = sum(verdict.rotten for verdict in verdicts)
    unproved = len(rules) - len(verdicts)
    print(f"\n{len(verdicts)} probes over {len(releases)} releases: {rotten} disagree; {unproved} rules have no probe.")
    return int(rotten > 0)


def report_defects(folder: Path, defects: Mapping[str, Defect] | None = None) -> int:
    """Print how the rows of the ledger agree with the wheels under a folder; 1 when any has to be looked at.

    Releases before the first that a row names say nothing: the method may not have been there. A row that ends with the
    newest release and is no longer seen there was perhaps mended: give it a `last`.
    """
    defects = all_defects() if defects is None else defects
    releases = [about["version"] for about in find_wheels(folder)]
    rotten = 0
    for row in defects.values():
        if row.probe is not None:
            verdict = judge(row, folder, [name for name in releases if Version(name) >= row.first_release])
            rotten += verdict.rotten
            print(f"{row.code}  {_words(verdict, releases)}")
    probed = sum(row.probe is not None for row in defects.values())
    without = len(defects) - probed
    newest = Version(releases[-1])
    unknown = sum(row.state_in(newest) == "later" for row in defects.values())
    print(f"\n{probed} probes over {len(releases)} releases: {rotten} disagree; {without} rows have none.")
    print(f"Of {unknown} rows it is not known whether {newest} still has them.")
    return int(rotten > 0)


def _words(verdict: Verdict, releases: Sequence[str]) -> str:
    if not verdict.rotten:
        return "ok"
    parts = [verdict.error] if verdict.error else []
    parts += [f"not seen in {_ranges(verdict.missing, releases)}"] if verdict.missing else []
    parts += [f"also seen in {_ranges(verdict.surplus, releases)}"] if verdict.surplus else []
    return "ROT: " + "; ".join(parts)


def _ranges(names: Iterable[str], releases: Sequence[str]) -> str:
    """Write releases as ranges of neighbours: `0.16.0-0.17.1, 0.20.0`."""
    order = {name: index for index, name in enumerate(releases)}
    runs: list[list[str]] = []
    for name in names:
        if runs and order[name] == order[runs[-1][-1]] + 1:
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
