"""Rulings on checkpoints by the code of their rule, for one release of vLLM or for the newest."""

from __future__ import annotations

from collections.abc import Iterable

from packaging.version import Version

from draftwise.core import Finding, Ruling
from draftwise.facts.rules import all_rules, get_rule

__all__ = ["keep_holding", "rule_on"]


def rule_on(code: str, message: str, *, where: str = "", fix: str = "", becomes: str = "") -> Ruling:
    """Return the finding that a checkpoint has met a rule of `facts/data/rules/checkpoint.json`."""
    return get_rule(code).ruling(message, where=where, fix=fix, becomes=becomes)


def keep_holding(findings: Iterable[Finding], version: Version | None) -> tuple[Finding, ...]:
    """Return the findings whose rules hold in a release (None: the newest), and those that rest on no release."""
    rules = all_rules()

    def holds(code: str) -> bool:
        rule = rules.get(code)
        if rule is None:
            return True
        return rule.spans[-1][1] is None if version is None else rule.holds(version)

    return tuple(finding for finding in findings if holds(finding.code))
