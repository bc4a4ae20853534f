from dataclasses import replace

import pytest
from tests.support.made_runs import Truth, closed, gains, make_run, workload

from draftwise.core import Condition, OpenLoop
from draftwise.deciding.comparison.latencies import trace_step_times

LONG = [workload(tokens=200)]


def test_a_step_is_as_long_as_it_was_under_each_number_of_streams():
    slower = Truth(step_s=lambda prompt_id, condition: 0.010 + 0.001 * (condition.concurrency or 0))
    run = make_run(
        {"plain": slower, "ngram k=3": gains(1.3, accepted=1)}, conditions=closed(1, 4), workloads=LONG, repeats=2
    )
    curves = trace_step_times(run)
    assert [count for count, _ in curves["plain"]] == [1, 4]
    assert [ms for _, ms in curves["plain"]] == pytest.approx([11, 14], rel=0.02)
    # 1.3 times as fast with two tokens a step: a step takes 2 / 1.3 times as long.
    assert [ms for _, ms in curves["ngram k=3"]] == pytest.approx([10 * 2 / 1.3] * 2, rel=0.02)


def test_without_counters_no_step_of_speculation_is_known():
    run = make_run({"ngram k=3": gains(1.3)}, workloads=LONG)
    turns = [replace(turn, counters=replace(turn.counters, generation_tokens=None)) for turn in run.turns]
    assert list(trace_step_times(replace(run, turns=tuple(turns)))) == ["plain"]


def test_arrivals_have_no_number_of_streams():
    run = make_run({"ngram k=3": gains(1.3)}, conditions=[Condition(load=OpenLoop.steady(1.0))])
    assert trace_step_times(run) == {}
