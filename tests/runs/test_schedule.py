"""Every arm answers everything, and no arm has the better place."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.measuring import make_plan, make_workload

from draftwise.core import ClosedLoop, Condition, OpenLoop, Origin, Phase, Prompt, Replay, RunPlan, Settled, Workload
from draftwise.runs.turn_order import Turn, arm_order, blocks, plan_turns


def schedule(plan: RunPlan) -> list[Turn]:
    return [turn for n in range(1, plan.repeats + 1) for turn in plan_turns(plan, plan.conditions, n)]


@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 4), st.sampled_from([1, 2, 3]))
def test_each_arm_answers_the_same_and_each_prompt_in_each_pass(
    candidates: int, prompts: int, repeats: int, concurrency: int
) -> None:
    workloads = (make_workload("a", prompts), make_workload("b", 2))
    plan = make_plan(candidates, workloads=workloads, repeats=repeats, concurrency=concurrency)
    asked = Counter((turn.arm, turn.repeat, prompt.id) for turn in schedule(plan) for prompt in turn.prompts)
    assert len(asked) == (candidates + 1) * (prompts + 2) * repeats
    if concurrency == 1:
        assert set(asked.values()) == {1}
    for (_, repeat, prompt), count in asked.items():
        assert count == asked["plain", repeat, prompt]


def test_a_short_workload_is_gone_through_until_the_load_is_up() -> None:
    (block,) = blocks(make_workload(num_prompts=3), Condition(load=ClosedLoop(concurrency=2)), 20)
    assert [prompt.id[-1] for prompt in block.prompts] == list("01201201")
    assert block.copies == (0, 0, 0, 1, 1, 1, 2, 2)


def test_a_long_workload_is_cut_into_turns() -> None:
    parts = list(blocks(make_workload(num_prompts=19), Condition(load=ClosedLoop(concurrency=2)), 20))
    assert [len(part.prompts) for part in parts] == [8, 8, 3]
    assert all(copy == 0 for part in parts for copy in part.copies)


def test_an_open_loop_gets_what_arrives_in_a_turn() -> None:
    ramp = OpenLoop(phases=(Phase(start_per_s=1, end_per_s=3, duration_s=4), Phase(start_per_s=2, end_per_s=2)))
    (part,) = blocks(make_workload(num_prompts=5), Condition(load=ramp), 10)
    assert len(part.prompts) == 4 * 2 + 10 * 2


def test_a_recording_is_replayed_as_a_whole() -> None:
    (part,) = blocks(make_workload(num_prompts=5), Condition(load=Replay()), 10)
    assert len(part.prompts) == 5


def recording(seconds: int, per_s: int = 2, stretches: int = 1) -> Workload:
    """A recording of so many requests a second, in stretches with an hour between them, in an order that was drawn."""
    prompts = [
        Prompt(
            id=f"{stretch}-{n}",
            text="x",
            max_tokens=8,
            arrival_s=3600.0 * stretch + n / per_s,
            origin=Origin(row=n, place=n, stretch=stretch),
        )
        for stretch in range(stretches)
        for n in range(seconds * per_s)
    ]
    Random(1).shuffle(prompts)
    return Workload(name="recording", source="test", prompts=tuple(prompts))


def test_a_long_recording_is_replayed_in_windows_that_are_drawn() -> None:
    parts = blocks(recording(200), Condition(load=Replay()), 20)
    assert len(parts) == 9, "the last one is cut off"
    begins = []
    for part in parts:
        times = [prompt.arrival_s for prompt in part.prompts]
        assert times == sorted(times)
        assert times[-1] - times[0] < 20
        assert len(part.prompts) == 40
        begins.append(times[0])
    assert begins != sorted(begins)
    drawn = [prompt.id for prompt in recording(200).prompts]
    assert drawn[0] in {prompt.id for prompt in parts[0].prompts}
    faster = blocks(recording(200), Condition(load=Replay(speed=2)), 20)
    assert {len(part.prompts) for part in faster} == {80}


def test_windows_do_not_reach_over_what_was_left_out_of_a_recording() -> None:
    parts = blocks(recording(50, stretches=3), Condition(load=Replay()), 20)
    assert [len({prompt.id[0] for prompt in part.prompts}) for part in parts] == [1] * 6


def test_settled_candidates_are_left_out_and_plain_rests_without_any() -> None:
    plan = make_plan(2, repeats=1)
    first, second = (Settled(workload="code", condition="c=1", candidate=f"candidate {i}", passes=0) for i in (1, 2))
    turns = list(plan_turns(plan, plan.conditions, 1, settled=[first], number=7))
    assert {turn.arm for turn in turns} == {"plain", "candidate 2"}
    assert [turn.number for turn in turns] == list(range(7, 7 + 16))
    assert list(plan_turns(plan, plan.conditions, 1, settled=[first, second])) == []


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


def test_two_arms_take_turns_at_coming_first() -> None:
    assert [arm_order(["a", "b"], block, 1)[0] for block in range(8)] == list("baabbaab")


def test_passes_are_outermost_so_that_an_early_end_leaves_whole_ones() -> None:
    plan = make_plan(workloads=(make_workload("a", 2), make_workload("b", 2)), repeats=2)
    assert [turn.repeat for turn in schedule(plan)] == sorted(turn.repeat for turn in schedule(plan))


def test_a_prompt_reaches_all_arms_before_the_next_one_is_asked() -> None:
    turns = list(schedule(make_plan(2, repeats=1)))
    for start in range(0, len(turns), 3):
        assert len({turn.prompts for turn in turns[start : start + 3]}) == 1
