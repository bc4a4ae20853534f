import json
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwise.core import (
    Baseline,
    ClosedLoop,
    Condition,
    Counters,
    Expected,
    OpenLoop,
    ProbeAnswer,
    Relation,
    Rollback,
    RollbackBasis,
    SpecStats,
    Sums,
    UnreadableSource,
    Window,
)

SUM = "a" * 64
CONDITION = Condition(load=ClosedLoop(concurrency=8), temperature=0.7)
RULE = Rollback(
    workload="chat",
    arm="eagle3 k=3",
    metric="tokens_per_step",
    relation=Relation.BELOW,
    value=1.35,
    for_s=3600.0,
    basis=RollbackBasis.BREAK_EVEN,
    condition=CONDITION,
    measured=1.87,
)
STATS = SpecStats(num_drafts=10, num_draft_tokens=30, num_accepted_tokens=9, accepted_per_pos=(5, 3, 1))
FULL = Baseline(
    setup_sha256=SUM,
    run="2026-11-22",
    arm="eagle3 k=3",
    plain_arm="plain",
    expected=Expected(workload="chat", condition=CONDITION, counters=Counters(spec=STATS, generation_tokens=19)),
    curve_ms={"plain": ((1.0, 4.7), (8.0, 5.0)), "eagle3 k=3": ((1.0, 5.7),)},
    rollback=(RULE, replace(RULE, loads=(8.0, inf), condition=Condition(load=OpenLoop.steady(2.0)))),
    probe=(ProbeAnswer(prompt_id="0", num_tokens=64, num_steps=30, text_sha256=SUM),),
    probe_null=0.08,
    seen=Window(
        pool="spec",
        instance="",
        start_s=1.0,
        duration_s=30.0,
        counters=Counters(spec=STATS, generation_tokens=19),
        sums=Sums(finished=3.0, prompt_tokens=90.0),
        adapters=frozenset({"sql", "de"}),
    ),
    missing=("Nothing.",),
)

rates = st.floats(0.001, 1e6)
curves = st.dictionaries(
    st.text(max_size=8),
    st.lists(st.tuples(rates, rates), max_size=4, unique_by=lambda point: point[0]).map(
        lambda each: tuple(sorted(each))
    ),
    max_size=3,
)


@given(
    curves,
    st.sampled_from([(), (RULE,), FULL.rollback]),
    st.none() | st.floats(0, 1),
    st.sampled_from([None, FULL.seen]),
)
def test_what_is_written_is_read_again(curve, rules, null, seen):
    baseline = replace(FULL, curve_ms=curve, rollback=rules, probe_null=null, seen=seen)
    assert Baseline.from_json(baseline.to_json(), where="baseline.json") == baseline


def test_a_setup_that_nobody_measured_has_a_baseline_of_absences():
    nothing = Baseline(setup_sha256=SUM, missing=("Nobody has measured it.",))
    assert Baseline.from_json(nothing.to_json(), where="baseline.json") == nothing


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"format": "other"}, "is not a baseline"),
        ({"version": 2}, "has version 2; this draftwise reads version 1"),
        ({"probe_null": 1.5}, "probe_null is a share"),
        ({"seen": {}}, "seen: lacks the key 'pool'"),
        ({"setup_sha256": "12"}, "setup_sha256"),
        ({"curve_ms": {"a": [[8, 1.0], [1, 1.0]]}}, "the curve of a goes up"),
        ({"curve_ms": {"a": [[1, -1.0]]}}, "the curve of a is positive"),
        ({"curve_ms": {"a": [["1", 2]]}}, "curve_ms.a[0][0]: must be a finite number, not '1'"),
        ({"rollback": [{}]}, "rollback[0]: lacks the key 'workload'"),
        ({"probe": [{"prompt_id": "0", "num_tokens": 1, "num_steps": 2, "text_sha256": SUM}]}, "a step gives"),
        ({"more": 1}, "has the unknown key 'more'"),
    ],
)
def test_what_is_no_baseline_is_refused_by_name(changes, named):
    row = json.loads(FULL.to_json()) | changes
    with pytest.raises(UnreadableSource) as raised:
        Baseline.from_json(json.dumps(row), where="baseline.json")
    assert named in str(raised.value)
    assert raised.value.findings[0].code == "not-a-baseline"


@pytest.mark.parametrize("text", ["", "[]", "{}", "no JSON", '{"format": "draftwise-baseline"}'])
def test_foreign_text_is_refused(text):
    with pytest.raises(UnreadableSource, match=r"that `draftwise deploy` wrote|Write it again from the run"):
        Baseline.from_json(text, where="x")


def test_more_accepted_than_drafted_is_no_reading():
    with pytest.raises(ValueError, match="more tokens were accepted than drafted"):
        replace(FULL.expected, counters=Counters(spec=replace(STATS, num_accepted_tokens=31)))
