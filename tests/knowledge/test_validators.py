"""Who judges the refusals of vLLM's validators."""

from __future__ import annotations

import pytest

from draftwise.knowledge.rules import all_rules
from draftwise.knowledge.validators import Coverage, list_refusals
from draftwise.knowledge.vllm import all_keys, get_release, releases
from draftwise.verbs.facts import KnownValidators, facts

KNOWN = [
    ("0.33.0", "EPLBConfig._validate_eplb_config: ", Coverage.READ),
    ("0.33.0", "SpeculativeConfig._verify_args: FLy requires num_speculative", Coverage.BY_RULE),
    ("0.33.0", "ModelConfig.verify_with_parallel_config: Decode context parallelism", Coverage.BY_RULE),
    ("0.33.0", "VllmConfig._verify_trace_replay_config: trace replay requires", Coverage.BY_RULE),
    ("0.33.0", "MultiModalConfig._validate_multimodal_config: FP8 scale file", Coverage.WAITS),
    ("0.33.0", "IrOpPriorityConfig.compute_hash: ", Coverage.UNREACHED),
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
