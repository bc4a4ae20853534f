"""Every arm answers everything, and no arm has the better place."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measuring import make_plan, make_workload

from draftwise.measure.schedule import arm_order, schedule


@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 4), st.sampled_from([1, 2, 3]))
def test_each_arm_answers_each_prompt_once_a_pass(candidates: int, prompts: int, repeats: int, concurrency: int):
    workloads = (make_workload("a", prompts), make_workload("b", 2))
    plan = make_plan(candidates, workloads=workloads, repeats=repeats, concurrency=concurrency)
    asked = Counter((turn.arm, turn.repeat, prompt.id) for turn in schedule(plan) for prompt in turn.prompts)
    assert set(asked.values()) == {1}
    assert len(asked) == (candidates + 1) * (prompts + 2) * repeats


@pytest.mark.parametrize("arms", [["a", "b"], ["a", "b", "c"], list("abcde")])
def test_over_as_many_passes_as_arms_each_prompt_meets_each_arm_in_each_place(arms: list[str]) -> None:
    for block in range(7):
        orders = [arm_order(arms, block, repeat) for repeat in range(1, len(arms) + 1)]
        for place in zip(*orders, strict=True):
            assert sorted(place) == arms


def test_no_arm_always_follows_the_same_one() -> None:
    arms = list("abcde")
    before = {(order[i - 1], "c") for block in range(10) for order in [arm_order(arms, block, 1)] for i in range(1, 5)
              if order[i] == "c"}  # fmt: skip
    assert {name for name, _ in before} == {"b", "d"}


def test_passes_are_outermost_so_that_an_early_end_leaves_whole_ones() -> None:
    plan = make_plan(workloads=(make_workload("a", 2), make_workload("b", 2)), repeats=2)
    assert [turn.repeat for turn in schedule(plan)] == sorted(turn.repeat for turn in schedule(plan))


def test_a_prompt_reaches_all_arms_before_the_next_one_is_asked() -> None:
    turns = list(schedule(make_plan(2, repeats=1)))
    for start in range(0, len(turns), 3):
        assert len({turn.prompts for turn in turns[start : start + 3]}) == 1
