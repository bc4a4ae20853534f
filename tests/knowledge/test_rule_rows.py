from __future__ import annotations

import re
from itertools import pairwise

import pytest
from packaging.version import Version

from draftwise.core import Effect, Severity
from draftwise.knowledge.rules import all_rules, get_rule
from draftwise.knowledge.vllm import Release, releases

RULES = tuple(all_rules().values())
KNOWN = [str(release) for release in releases()]


def test_every_rule_is_complete() -> None:
    for rule in RULES:
        assert re.fullmatch(r"[a-z0-9.]+(-[a-z0-9.]+)*", rule.code)
        assert rule.title, rule.code
        assert rule.explains.endswith((".", "?")), rule.code
        assert rule.source, rule.code
        assert rule.spans, rule.code


def test_spans_name_known_releases_in_order() -> None:
    for rule in RULES:
        ends = [end for first, last in rule.spans for end in (first, last or KNOWN[-1])]
        assert set(ends) <= set(KNOWN), f"{rule.code} names a version that is no release"
        assert ends == sorted(ends, key=Version), rule.code
        for (_, last), (first, _) in pairwise(rule.spans):
            assert last is not None, f"{rule.code} goes on after a span without an end"
            assert last != first, rule.code


def test_a_rule_holds_in_as_many_releases_as_its_spans_are_long() -> None:
    for rule in RULES:
        length = sum(KNOWN.index(last or KNOWN[-1]) - KNOWN.index(first) + 1 for first, last in rule.spans)
        assert sum(rule.holds(release.version) for release in releases()) == length, rule.code


def test_what_is_refused_is_an_error() -> None:
    assert [rule.code for rule in RULES if rule.effect is Effect.REJECTED and rule.severity is not Severity.ERROR] == []


def test_probes_can_be_used() -> None:
    for rule in RULES:
        if rule.probe:
            re.compile(rule.probe.pattern, re.DOTALL | re.MULTILINE)
            assert rule.probe.files, rule.code
            assert all(path.startswith("vllm/") for path in rule.probe.files), rule.code


def test_an_unknown_code_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        get_rule("no-such-rule")


def _rejects_unknown_keys(release: Release) -> bool:
    return bool(release.table("spec_rules")["unknown_keys"] == "rejected")


def _takes_dashes(release: Release) -> bool:
    return bool(release.table("spec_rules")["dashes_in_keys"] == "accepted")


def _lists_targets(release: Release) -> bool:
    return bool(release.table("aux_targets"))


@pytest.mark.parametrize(
    ("code", "holds"),
    [
        ("unknown-key", _rejects_unknown_keys),
        ("dashed-key", _takes_dashes),
        ("target-not-for-hidden-states", _lists_targets),
    ],
)
def test_rules_written_by_hand_agree_with_what_was_read(code: str, holds: object) -> None:
    assert callable(holds)
    for release in releases():
        assert get_rule(code).holds(release.version) == holds(release), str(release)
