"""Who judges the refusals of vLLM's validators."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from draftwise.knowledge.rules import all_rules
from draftwise.knowledge.stored import read_rows
from draftwise.knowledge.validators import Coverage, ReadRefusal, find_refusal, list_refusals
from draftwise.knowledge.vllm import all_keys, get_release, releases
from draftwise.verbs.facts import KnownValidators, facts

KNOWN = [
    ("0.33.0", "EPLBConfig._validate_eplb_config: ", Coverage.READ),
    ("0.33.0", "SpeculativeConfig._verify_args: FLy requires num_speculative", Coverage.BY_RULE),
    ("0.33.0", "ModelConfig.verify_with_parallel_config: Decode context parallelism", Coverage.BY_RULE),
    ("0.33.0", "VllmConfig._verify_trace_replay_config: trace replay requires", Coverage.BY_RULE),
    ("0.33.0", "MultiModalConfig._validate_multimodal_config: FP8 scale file", Coverage.WAITS),
    ("0.33.0", "IrOpPriorityConfig.compute_hash: ", Coverage.UNREACHED),
    ("0.33.0", "ProfilerConfig._validate_profiler_config: proton_graph_attribution is incompat", Coverage.BY_RULE),
    ("0.33.0", "ParallelConfig._validate_parallel_config: Fault tolerance requires", Coverage.BY_RULE),
]


@pytest.mark.parametrize(("version", "begin", "answered"), KNOWN)
def test_a_refusal_is_read_or_told_by_a_rule_or_left(version: str, begin: str, answered: Coverage) -> None:
    found = [each for key, each in list_refusals(get_release(version))[1].items() if key.startswith(begin)]
    assert answered in found


def test_what_a_rule_answers_is_a_refusal_of_some_release() -> None:
    keys = all_keys("validators")
    lost = [
        (rule.code, part)
        for rule in all_rules().values()
        for part in rule.answers
        if not any(part in key for key in keys)
    ]
    assert lost == []


def test_every_refusal_of_every_release_is_counted_once() -> None:
    answer = facts(validators=True).answer
    assert isinstance(answer, KnownValidators)
    assert [row.version for row in answer.validators] == [str(each) for each in releases("validators")]
    for row in answer.validators:
        table = get_release(row.version).table("validators")
        assert row.known + row.refusals == len(table)
        assert row.read + row.by_rules + row.waiting + row.unreached + len(row.unread) == row.refusals
        assert row.known == sum(": " not in key for key in table) > 40


def test_a_condition_that_nobody_can_decide_is_not_read() -> None:
    for release in releases("validators"):
        table = release.table("config_checks")
        unknown = {row["says"] for key, row in table.items() if re.search(r"(?<!\w)_\w*[.( ]", key.partition(": ")[2])}
        sure = {row["says"] for key, row in table.items() if not re.search(r"(?<!\w)_\w*", key.partition(": ")[2])}
        only = {re.sub(r"\{[^{}]*\}", "{}", text) for text in unknown - sure}
        found = list_refusals(release)[1]
        for key, coverage in found.items():
            text = key.partition(": ")[2]
            assert text not in only or coverage is not Coverage.READ or " if " in key_of(table, text), key


def key_of(table: Mapping[str, Mapping[str, str]], text: str) -> str:
    return next(key for key, row in table.items() if re.sub(r"\{[^{}]*\}", "{}", row["says"]) == text)


@pytest.mark.parametrize("row", [row for row in read_rows("refusals") if "told" in row], ids=lambda row: row["refusal"])
def test_what_judges_a_refusal_elsewhere_exists_in_each_release(row: Mapping[str, Any]) -> None:
    rules = re.findall(r"[a-z0-9]+(?:-[a-z0-9]+)+", row["told"]) if row["told"].startswith("the rule") else []
    tables = re.findall(r"the table (\w+)", row["told"])
    assert {*rules} <= {*all_rules()}
    for release in releases("validators"):
        if find_refusal(release, ReadRefusal(**row)):
            assert not rules or any(all_rules()[code].holds(release.version) for code in rules), str(release)
            assert all(release.table(table) for table in tables)
