"""A release's rulebook says what holds there, and nothing else."""

from __future__ import annotations

import pytest
from packaging.version import Version

from draftwise.knowledge.rules import Rulebook, all_rules, get_rule

PASSING = "drafter-on-one-stage"


def test_a_rule_is_said_in_its_releases_only() -> None:
    first, _ = get_rule(PASSING).spans[0]
    said = list(Rulebook(Version(first)).ruling(PASSING, where="model", fix="No."))
    assert [(each.code, each.where, each.fix) for each in said] == [(PASSING, "model", "No.")]
    assert list(Rulebook(Version("0.1")).ruling(PASSING)) == []
    assert not Rulebook(Version("0.1")).holds(PASSING)


def test_no_version_is_the_newest_release() -> None:
    assert Rulebook().holds("unknown-key") == (get_rule("unknown-key").spans[-1][1] is None)
    ended = next(rule.code for rule in all_rules().values() if rule.spans[-1][1] is not None)
    assert not Rulebook().holds(ended)
    assert list(Rulebook().ruling(ended)) == []


def test_a_code_without_a_row_is_an_error() -> None:
    with pytest.raises(KeyError):
        Rulebook().holds("no-such-rule")
    with pytest.raises(KeyError):
        list(Rulebook().ruling("no-such-rule"))
