"""What `check` makes of a release that a user added: judged where its sources prove it, else called unknown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from draftwise.core import Effect, Ruling, Setup, SpecConfig
from draftwise.knowledge.added import MissingFacts
from draftwise.knowledge.vllm import Release
from draftwise.plan.check import Report, check, judge
from draftwise.plan.explanations import explain
from draftwise.plan.release_changes import compare_releases
from draftwise.setups.read import read_setups

Add = Callable[..., Release]
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
SPEC = '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}'


def _judge(version: str, **spec: Any) -> Report:
    return check(_setup(version, spec))


def _setup(version: str, spec: dict[str, Any]) -> Setup:
    config = SpecConfig.keep({"method": "ngram", "num_speculative_tokens": 3, **spec})
    return Setup(target=LLAMA, engine="vllm", engine_version=version, spec=config)


def _without(*keys: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda table: {key: row for key, row in table.items() if key not in keys}


def _with_zap(table: dict[str, Any]) -> dict[str, Any]:
    return {**table, "zap": ({"group": "x"}, "vllm/new.py: Zap")}


def _with_zap_as_choice(table: dict[str, Any]) -> dict[str, Any]:
    row, source = table["method"]
    return {**table, "method": ({**row, "choices": [*row["choices"], "zap"]}, source)}


def _codes(report: Report) -> set[str]:
    return {finding.code for finding in report.findings}


def test_a_release_that_changes_nothing_is_judged_as_the_one_before(add_like_newest: Add) -> None:
    before = _judge("newest")
    add_like_newest("99.1")
    after = _judge("99.1")
    assert (after.version, after.accepted) == ("99.1", before.accepted)
    assert after.resolved == before.resolved
    assert _codes(after) == _codes(before) | {"facts-added"}
    for finding in after.findings:
        assert "vLLM 99.1" in finding.source or finding.source.startswith("read in") or finding.code == "facts-added"


def test_a_new_method_that_nobody_knows_does_not_pass_for_an_old_one(add_like_newest: Add) -> None:
    add_like_newest("99.1", methods=_with_zap, spec_fields=_with_zap_as_choice)
    report = _judge("99.1", method="zap")
    assert report.accepted is None
    assert "method-not-known" in _codes(report)
    assert explain("zap")[0].text.startswith("draftwise knows only the name of this method")


def test_a_refusal_that_the_sources_do_not_prove_is_no_verdict(add_like_newest: Add) -> None:
    add_like_newest("99.1", probes=_without("unknown-key"))
    report = _judge("99.1", no_such_key=1)
    (ruling,) = [each for each in report.findings if each.code == "unknown-key"]
    assert isinstance(ruling, Ruling)
    assert ruling.effect is Effect.UNKNOWN
    assert report.accepted is None


@pytest.mark.parametrize("topic", ["spec_fields", "runner_v2", "async_scheduling", "architectures"])
def test_a_missing_table_is_told_and_nothing_is_accepted(add_like_newest: Add, topic: str) -> None:
    add_like_newest("99.1", **{topic: lambda _table: None})
    (reading,) = read_setups(f"vllm serve {LLAMA} -sc {SPEC!r}", engine_version="99.1")
    report = judge(reading)
    assert report.accepted is None
    (gap,) = [each for each in report.findings if each.code == "facts-missing"]
    assert f"The {topic} of vLLM 99.1 are unknown" in gap.message


def test_a_table_without_which_a_command_line_cannot_be_read_is_an_error(add_like_newest: Add) -> None:
    add_like_newest("99.1", flags=lambda _table: None)
    with pytest.raises(MissingFacts, match=r"The flags of vLLM 99\.1 are unknown"):
        check(_setup("99.1", {}))


def test_a_table_that_check_does_not_read_is_not_missed(add_like_newest: Add) -> None:
    add_like_newest("99.1", metrics=lambda _table: None)
    assert _judge("99.1").accepted is True


def test_upgrade_to_an_added_release(add_like_newest: Add) -> None:
    add_like_newest("99.1", spec_fields=_without("prompt_lookup_max"))
    before, after = (
        read_setups(f"vllm serve {LLAMA} -sc {SPEC!r}", engine_version=each)[0] for each in ("0.33.0", "99.1")
    )
    told = compare_releases(before, after)
    assert [each.code for each in told.breaks] == ["unknown-key"]
    assert [choice.name for choice in told.removed] == ["prompt_lookup_max"]
