"""A server that could remember answers is asked no prompt twice, and is still paired with the baseline throughout."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.measuring import make_plan, make_workload

from draftwise.core import ClosedLoop, Condition, OpenLoop, Prompt, Replay, RunPlan, Settled, Workload
from draftwise.runs.turn_order import Turn, count_needed, plan_turns

REMEMBERING = {"candidate 2": "it drafts from what it answered before"}


def at(*concurrencies: int, temperature: float = 0.0) -> tuple[Condition, ...]:
    return tuple(Condition(load=ClosedLoop(concurrency=each), temperature=temperature) for each in concurrencies)


def remembering_plan(*sizes: int, **settings) -> RunPlan:
    """One candidate that cannot remember and one that can."""
    workloads = tuple(make_workload(f"w{number}", size) for number, size in enumerate(sizes))
    return make_plan(2, **{"workloads": workloads, "remembering": REMEMBERING, "repeats": 5, **settings})


def schedule(plan: RunPlan, added: Sequence[Condition] = (), settled: Sequence[Settled] = ()) -> list[Turn]:
    """Return all turns of a run that adds its conditions after the planned ones."""
    return [
        turn
        for conditions in (plan.conditions, *((each,) for each in added))
        for repeat in range(1, plan.repeats + 1)
        for turn in plan_turns(plan, conditions, repeat, added=added, settled=settled)
    ]


def asked(turns: Sequence[Turn], arm: str = "candidate 2") -> list[tuple[str, str]]:
    """Return what an arm is sent, in its order: also what only keeps the load up."""
    return [
        (turn.workload, prompt.id)
        for turn in turns
        if turn.arm == arm
        for prompt in (*turn.prompts, *(turn.background or ()))
    ]


conditions = st.lists(
    st.sampled_from(
        [*at(1, 2, 3, 4, 8), *at(1, 2, temperature=0.7), Condition(load=OpenLoop.steady(0.3)), Condition(load=Replay())]
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda each: each.label,
)


@given(
    sizes=st.lists(st.integers(1, 70), min_size=1, max_size=2),
    planned=conditions,
    added=conditions,
    repeats=st.integers(1, 6),
    seed=st.integers(0, 3),
    passes=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=3),
)
def test_no_prompt_is_asked_twice_and_every_turn_has_its_partner(
    sizes: list[int],
    planned: list[Condition],
    added: list[Condition],
    repeats: int,
    seed: int,
    passes: list[tuple[int, int]],
) -> None:
    later = [each for each in added if each.label not in {known.label for known in planned}]
    plan = remembering_plan(*sizes, conditions=tuple(planned), repeats=repeats, seed=seed)
    settled = [
        Settled(workload="w0", condition=planned[place % len(planned)].label, candidate="candidate 2", passes=count)
        for place, count in passes[:1]
    ]
    turns = schedule(plan, later, settled)
    assert max(Counter(asked(turns)).values(), default=1) == 1
    of_baseline = {turn.key[1:]: turn for turn in turns if turn.arm == "plain"}
    for turn in turns:
        partner = of_baseline[turn.key[1:]]
        assert (turn.prompts, turn.copies, turn.background) == (partner.prompts, partner.copies, partner.background)


def test_all_prompts_come_in_the_first_repetition_and_none_again() -> None:
    turns = schedule(remembering_plan(64))
    assert Counter(turn.repeat for turn in turns if turn.arm == "candidate 2") == {1: 64}
    assert [prompt for _, prompt in asked(turns)] == [f"w0-{n}" for n in range(64)], "in the order that was drawn"


def test_the_other_arms_go_on_as_before() -> None:
    turns = schedule(remembering_plan(16))
    for arm in ("plain", "candidate 1"):
        assert set(Counter(asked(turns, arm)).values()) == {5}


def test_the_baseline_rests_where_nobody_takes_part() -> None:
    plan = remembering_plan(16)
    alone = replace(plan, arms=(plan.arms[0], plan.arms[2]))
    assert Counter(turn.arm for turn in schedule(alone)) == {"plain": 16, "candidate 2": 16}


def test_each_condition_has_prompts_of_its_own() -> None:
    turns = schedule(remembering_plan(64, conditions=at(1, 4)))
    of = {
        label: {prompt for turn in turns if turn.condition.label == label for prompt in asked([turn])}
        for label in ("c=1", "c=4")
    }
    assert {label: len(prompts) for label, prompts in of.items()} == {"c=1": 32, "c=4": 32}
    assert not of["c=1"] & of["c=4"]


def test_a_workload_that_is_too_short_for_all_loads_carries_the_light_ones() -> None:
    plan = remembering_plan(64, conditions=at(1, 4, 16))
    labels = {turn.condition.label for turn in schedule(plan) if turn.arm == "candidate 2"}
    assert labels == {"c=1", "c=4"}
    assert count_needed(plan.workloads[0], plan.conditions[2], plan.turn_s) == 128
    longer = remembering_plan(128 + 32 + 2, conditions=at(1, 4, 16))
    assert {turn.condition.label for turn in schedule(longer) if turn.arm == "candidate 2"} == {"c=1", "c=4", "c=16"}


def test_under_load_prompts_of_their_own_come_before_and_after_the_measured_ones() -> None:
    turns = [turn for turn in schedule(remembering_plan(64, conditions=at(4))) if turn.arm == "candidate 2"]
    assert [(len(turn.prompts), len(turn.background or ())) for turn in turns] == [(8, 8)] * 4
    assert all(turn.copies == () for turn in turns)


def test_a_recording_is_replayed_to_it_once() -> None:
    turns = schedule(remembering_plan(10, conditions=(Condition(load=Replay()),)))
    assert [(turn.repeat, len(turn.prompts)) for turn in turns if turn.arm == "candidate 2"] == [(1, 10)]


def test_a_load_that_is_added_gets_what_a_settled_cell_left() -> None:
    plan = remembering_plan(64, conditions=at(1, 4))
    assert not [
        turn for turn in schedule(plan, added=at(2)) if (turn.arm, turn.condition.label) == ("candidate 2", "c=2")
    ]
    settled = [Settled(workload="w0", condition="c=1", candidate="candidate 2", passes=0, blocks=12)]
    turns = schedule(plan, at(2), settled)
    assert sum(turn.arm == "candidate 2" and turn.condition.label == "c=2" for turn in turns) >= 2
    assert max(Counter(asked(turns)).values()) == 1


@pytest.mark.parametrize("stop", [0, 7, 50])
def test_what_is_left_does_not_depend_on_where_a_run_was_cut_off(stop: int) -> None:
    plan = remembering_plan(64, conditions=at(1, 4))
    whole = schedule(plan)
    done = {turn.key for turn in whole[:stop]}
    assert [turn for turn in schedule(plan) if turn.key not in done] == whole[stop:]


def test_a_workload_that_repeats_a_prompt_asks_it_as_often_and_a_second_workload_not_again() -> None:
    prompts = tuple(Prompt(id=str(number), text=f"text {number % 4}", max_tokens=8) for number in range(8))
    log = Workload(name="log", source="test", prompts=prompts)
    other = Workload(
        name="other",
        source="test",
        prompts=(
            *prompts[:2],
            Prompt(id="new", text="new", max_tokens=8),
            Prompt(id="newer", text="newer", max_tokens=8),
        ),
    )
    plan = remembering_plan(1, workloads=(log, other))
    assert sorted(asked(schedule(plan))) == [*(("log", str(n)) for n in range(8)), ("other", "new"), ("other", "newer")]


def test_chats_are_dealt_like_texts() -> None:
    chats = tuple(Prompt(id=str(n), messages=({"role": "user", "content": f"{n}"},), max_tokens=8) for n in range(10))
    plan = remembering_plan(1, workloads=(Workload(name="chats", source="test", prompts=chats),))
    assert len(asked(schedule(plan))) == 10
