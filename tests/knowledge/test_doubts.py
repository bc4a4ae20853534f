"""Rules that are written by hand, in a release that nobody has read: applied where it proves them, else unknown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from packaging.version import Version

from draftwise.core import Effect, Finding, Ruling, Setup, Severity, SpecConfig
from draftwise.knowledge.rules import all_rules, find_doubts, get_doubts, get_rule, of_release
from draftwise.knowledge.vllm import Release, get_release, releases
from draftwise.plan.check import check

Add = Callable[..., Release]
Rows = Mapping[str, tuple[Any, str]]
JUDGED = "SpeculativeConfig.__post_init__"
LOOKUP = Setup(
    target="meta-llama/Llama-3.1-8B-Instruct",
    engine="vllm",
    engine_version="99.1",
    spec=SpecConfig.parse({"method": "ngram", "num_speculative_tokens": 3}),
)


def change_digest(table: Rows, *, part: str) -> Rows:
    value, source = table[JUDGED]
    return {**table, JUDGED: ({**value, part: "other"}, source)}


PROBED = "unknown-key"
UNPROBED = "requests-refused"


def _ruling(code: str) -> Ruling:
    return get_rule(code).ruling(message="The key is bad.", where="key", fix="", becomes="")


def test_every_rule_of_a_shipped_release_is_seen_where_it_holds() -> None:
    for release in releases():
        seen = release.table("probes")
        for rule in all_rules().values():
            if rule.probe is not None:
                assert (rule.code in seen) == rule.holds(release.version), f"{rule.code}: run python -m catalogue probe"


def test_a_shipped_release_leaves_no_doubt() -> None:
    for release in releases():
        assert not get_doubts(release).changed | get_doubts(release).unproved
        assert list(find_doubts(release)) == []


def test_rules_without_a_probe_are_doubtful_unless_they_rest_on_what_is_known(add_like_newest: Add) -> None:
    doubts = get_doubts(add_like_newest("99.1"))
    assert not doubts.changed
    assert UNPROBED in doubts.unproved
    assert not doubts.unproved & {"unknown-method", "flag-unknown", "duplicate-key", "target-not-here"}
    held = {code for code in doubts.unproved if get_rule(code).holds(Version("99.1"))}
    assert held == doubts.unproved


def test_a_probe_that_sees_another_thing_than_before_is_told(add_like_newest: Add) -> None:
    ended = next(rule.code for rule in all_rules().values() if rule.probe and rule.spans[-1][1] is not None)
    release = add_like_newest(
        "99.1",
        probes=lambda table: {key: row for key, row in table.items() if key != PROBED} | {ended: ("vllm/a.py", "x")},
    )
    assert get_doubts(release).changed == {PROBED, ended}
    (finding,) = find_doubts(release)
    assert (finding.code, finding.severity) == ("facts-added", Severity.WARNING)
    assert PROBED in finding.message
    assert ended in finding.message


def test_a_function_that_refuses_otherwise_is_named_and_makes_the_outcome_unknown(add_like_newest: Add) -> None:
    """A new `raise` where a configuration is judged: the setup may be refused, and nobody has read for what."""

    def say(table: Rows) -> Rows:
        row = ({"level": "ValueError"}, f"vllm/config/speculative.py: {JUDGED}")
        return {**table, "Odd drafters are refused.": row}

    release = add_like_newest("99.1", judged=partial(change_digest, part="refusals"), messages=say)
    (finding,) = (each for each in find_doubts(release) if each.code == "refusals-unread")
    assert isinstance(finding, Ruling)
    assert (finding.effect, finding.severity) == (Effect.UNKNOWN, Severity.WARNING)
    assert JUDGED in finding.message
    assert "such as 'Odd drafters are refused.'" in finding.message
    assert check(LOOKUP).accepted is None
    assert check(replace(LOOKUP, engine_version=str(releases()[-2]))).accepted is True


@pytest.mark.parametrize("part", ["code", "callers"])
def test_what_refuses_as_before_is_no_doubt_unless_its_callers_changed(add_like_newest: Add, part: str) -> None:
    release = add_like_newest("99.1", judged=partial(change_digest, part=part))
    assert ("refusals-unread" in {each.code for each in find_doubts(release)}) is (part == "callers")


def test_a_default_that_a_release_may_have_changed_is_unknown(add_like_newest: Add) -> None:
    release = add_like_newest(
        "99.1", probes=lambda table: {key: row for key, row in table.items() if key != "lookup-default"}
    )
    assert "lookup-default" in get_doubts(release).changed
    resolved = check(LOOKUP).resolved
    assert resolved is not None
    assert (resolved.prompt_lookup_min, resolved.prompt_lookup_max) == (None, None)
    given = SpecConfig.parse({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 5})
    resolved = check(replace(LOOKUP, spec=given)).resolved
    assert resolved is not None
    assert resolved.prompt_lookup_max == 5


def test_without_probes_every_rule_with_one_is_doubtful(add_like_newest: Add) -> None:
    release = add_like_newest("99.1", probes=lambda _table: None)
    assert {rule.code for rule in all_rules().values() if rule.probe and rule.holds(release.version)} == set(
        get_doubts(release).changed
    )


def test_a_doubtful_rule_is_unknown_and_says_so(add_like_newest: Add) -> None:
    release = add_like_newest("99.1", probes=lambda table: {k: row for k, row in table.items() if k != PROBED})
    told = of_release(_ruling(PROBED), release)
    assert isinstance(told, Ruling)
    assert (told.effect, told.severity, told.exception) == (Effect.UNKNOWN, Severity.ERROR, "")
    assert told.message == "Cannot tell whether this still holds in vLLM 99.1: The key is bad."
    assert of_release(told, release) == told


def test_a_proved_rule_is_applied_and_cites_the_release(add_like_newest: Add) -> None:
    release = add_like_newest("99.1", probes=lambda table: {**table, PROBED: ("vllm/b.py: f", "vllm/b.py: f")})
    told = of_release(_ruling(PROBED), release)
    assert isinstance(told, Ruling)
    assert (told.effect, told.message) == (Effect.REJECTED, "The key is bad.")
    assert told.source == "vLLM 99.1, vllm/b.py: f"


@pytest.mark.parametrize("version", ["0.9.2", "0.16.0", "0.19.1"])
def test_a_rule_cites_the_file_of_the_release_that_is_judged(version: str) -> None:
    release = get_release(version)
    for code, where in release.table("probes").items():
        source = of_release(_ruling(code), release).source
        assert source in (f"vLLM {version}, {where}", get_rule(code).source)
        assert source.startswith(f"vLLM {version}")


def test_a_source_that_was_read_elsewhere_says_so() -> None:
    rule = get_rule(UNPROBED)
    assert rule.source.startswith("vLLM 0.33.0, ")
    assert of_release(_ruling(UNPROBED), get_release("0.20.0")).source == f"read in {rule.source}"
    assert of_release(_ruling(UNPROBED), get_release("0.33.0")).source == rule.source


def test_what_is_no_rule_stays() -> None:
    finding = Finding(code="no-rule", severity=Severity.INFO, message="m", source="vLLM 0.33.0, x")
    assert of_release(finding, get_release("0.19.1")) == finding
