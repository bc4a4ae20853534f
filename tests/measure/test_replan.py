"""What goes first when the time is short, and what never does."""

from dataclasses import replace

import pytest
from tests.support.made_runs import Truth, arm, closed, gains, make_run, workload
from tests.support.measuring import make_plan, make_workload

from draftwise.core import Arm, Counters, Prompt, RunPlan, SpecStats
from draftwise.measure.load.requests import fill_streams
from draftwise.measure.pilot import Pilot, make_estimate, spare_prompts
from draftwise.measure.readiness import WARM_UP_LENGTH, WarmUp
from draftwise.measure.replan import describe_lead, find_race, leave_out
from draftwise.measure.time_estimate import TextPace, TimeEstimate, expect_seconds, fit_plan
from draftwise.runs.turn_order import Turn, plan_turns

SECOND = 0.025
"""Of an output token, so that a prompt of 40 takes one second."""


def plan_of(num_prompts: int = 10, candidates: int = 1, repeats: int = 4, **settings) -> RunPlan:
    prompts = tuple(Prompt(id=f"p{i}", text="x", max_tokens=40) for i in range(num_prompts))
    workloads = (replace(make_workload(num_prompts=1), prompts=prompts),)
    return make_plan(candidates, **{"workloads": workloads, "repeats": repeats, "remembering": {}, **settings})


def estimate_of(plan: RunPlan) -> TimeEstimate:
    pace = {(each.name, condition.label): SECOND for each in plan.arms for condition in plan.conditions}
    return TimeEstimate(pace=pace, shares={})


def test_without_its_candidates_a_block_is_not_measured() -> None:
    plan = plan_of(candidates=2)
    turns = list(plan_turns(plan, plan.conditions, 1))
    assert {turn.arm for turn in leave_out(turns, {"candidate 1"})} == {"plain", "candidate 2"}
    assert leave_out(turns, {"candidate 1", "candidate 2"}) == []


def test_nothing_is_left_out_as_long_as_the_fewest_prompts_fit_everywhere() -> None:
    """Six prompts on two arms take 12 s; more are measured as long as there is time."""
    plan = plan_of(num_prompts=3000)
    assert fit_plan(plan, estimate_of(plan), 12.5) == (plan, [])


def test_the_least_plan_leaves_out_loads_then_candidates_and_never_prompts() -> None:
    plan = plan_of(num_prompts=300, candidates=3, conditions=closed(1, 4, 16, 32))
    estimate = estimate_of(plan)
    fitted, omissions = fit_plan(plan, estimate, 2000.0)
    assert [each.what for each in omissions] == ["load c=16"]
    assert omissions[0].reason.startswith("6 prompts of each workload would take ")
    assert fitted.workloads == plan.workloads
    tiny, omissions = fit_plan(plan, estimate, 13.0)
    assert [each.what for each in omissions][-2:] == ["candidate candidate 3", "candidate candidate 2"]
    assert [each.name for each in tiny.arms] == ["plain", "candidate 1"]
    assert [each.label for each in tiny.conditions] == ["c=1"]
    assert tiny.workloads == plan.workloads


@pytest.mark.parametrize("gains", [(1.0, 2.0, 1.5), (2.0, 1.0, 1.0), (1.2, 1.2, 1.2)])
def test_workloads_leave_the_least_promising_first(gains: tuple[float, ...]) -> None:
    prompts = tuple(Prompt(id=f"p{i}", text="x", max_tokens=40) for i in range(10))
    names = [f"w{n}" for n in range(len(gains))]
    plan = plan_of(workloads=tuple(replace(make_workload(name, 1), prompts=prompts) for name in names))
    per_token_s = {("plain", name): SECOND for name in names}
    per_token_s |= {("candidate 1", name): SECOND / gain for name, gain in zip(names, gains, strict=True)}
    texts = {(*place, "c=1"): TextPace(first_s=0.0, per_token_s=each) for place, each in per_token_s.items()}
    fitted, omissions = fit_plan(plan, replace(estimate_of(plan), texts=texts), 12.5)
    *gone, kept = sorted(names, key=lambda name: (gains[names.index(name)], -names.index(name)))
    assert [each.name for each in fitted.workloads] == [kept]
    assert [each.what for each in omissions] == [f"workload {name}" for name in gone]


def test_where_not_even_the_fewest_prompts_fit_this_is_said() -> None:
    plan = plan_of(num_prompts=30)
    fitted, (omission,) = fit_plan(plan, estimate_of(plan), 5.0)
    assert fitted == plan
    assert omission.what == "enough prompts for a verdict"
    assert omission.reason == "6 of each workload would take 0.2 min, but only 0.1 min are left"


def test_one_server_at_a_time_is_asked_the_same_prompts_in_two_repetitions_at_least() -> None:
    plan = plan_of(num_prompts=30, one_at_a_time=True)
    estimate = estimate_of(plan)
    for share, repeats, prompts, gone in (
        (0.3, 3, 12, "repetition 4"),
        (0.2, 2, 12, "repetitions 3 to 4"),
        (0.15, 2, 9, "repetitions 3 to 4"),
        (0.08, 2, 6, "repetitions 3 to 4"),
    ):
        fitted, omissions = fit_plan(plan, estimate, share * expect_seconds(plan, estimate))
        assert (fitted.repeats, len(fitted.workloads[0].prompts)) == (repeats, prompts)
        assert [each.what for each in omissions] == [gone]


def test_a_race_goes_by_what_each_prompt_gains_and_under_a_load_by_what_each_block_does() -> None:
    arms = [Arm(name="plain"), arm(3), replace(arm(5), name="slow")]
    truths = {"plain": Truth(), "ngram k=3": gains(1.5), "slow": gains(0.8)}
    run = make_run(truths, arms=arms, conditions=closed(1, 2), workloads=[workload(num_prompts=56)])
    alone, loaded = (find_race(run, ("code", label), ["ngram k=3", "slow"]) for label in ("c=1", "c=2"))
    assert {name: len(logs) for name, logs in alone.items()} == {"ngram k=3": 56, "slow": 56}
    assert {name: len(logs) for name, logs in loaded.items()} == {"ngram k=3": 21, "slow": 21}
    assert find_race(run, ("code", "c=1"), ["slow"]).keys() == {"slow"}
    few = make_run(truths, arms=arms, workloads=[workload(num_prompts=5)])
    assert find_race(few, ("code", "c=1"), ["ngram k=3", "slow"]) == {}


def test_a_forecast_follows_the_machine() -> None:
    plan = plan_of()
    estimate = estimate_of(plan)
    turns = list(plan_turns(plan, plan.conditions, 1))
    assert estimate.expect(turns[0]) == pytest.approx(1.0)
    for turn in turns[:6]:
        estimate.learn(turn, 4.0)
    assert estimate.expect(turns[10]) == pytest.approx(4.0)
    for turn in turns[6:20]:
        estimate.learn(turn, 1.0)
    assert estimate.expect(turns[0]) == pytest.approx(1.0, rel=0.3)


def test_answers_that_were_looked_at_tell_how_fast_a_text_is_drafted() -> None:
    """The warm-up, where every draft stands, makes 4 tokens a step; this text makes 2: half as fast.

    Under a load a prompt takes what it took of the warm-up's rounds there: 1 ms for each of 32 tokens.
    """
    counters = Counters(
        generation_tokens=400, spec=SpecStats(num_drafts=100, num_draft_tokens=300, num_accepted_tokens=300)
    )
    warm = WarmUp(
        pace={("candidate 1", "c=1"): 0.02, ("candidate 1", "c=4"): 0.004},
        decoding={("candidate 1", "c=1"): 0.01, ("candidate 1", "c=4"): 0.003},
        counters={"candidate 1": counters},
        unsteady={},
    )
    grown = Counters(
        generation_tokens=200, spec=SpecStats(num_drafts=100, num_draft_tokens=300, num_accepted_tokens=100)
    )
    pilot = Pilot(tokens=200, allowed=400, firsts_s=[0.1, 0.1, 3.0], decoding_s=4.8, counters=grown)
    plan = plan_of(conditions=closed(1, 4))
    estimate = make_estimate(plan, warm, {}, {("candidate 1", "code"): pilot}, 0.5)
    assert estimate.shares == {"code": 0.5}
    assert estimate.texts == {
        ("candidate 1", "code", "c=1"): TextPace(first_s=0.1, per_token_s=0.024),
        ("candidate 1", "code", "c=4"): TextPace(first_s=pytest.approx(0.032), per_token_s=0.006),
    }
    assert estimate.overhead_s == 0.5


@pytest.mark.parametrize(("times", "first_s"), [(0.1, 0.032), (2, 0.064), (40, 0.1)])
def test_longer_prompts_take_longer_under_a_load_but_no_longer_than_alone(times: float, first_s: float) -> None:
    prompts = tuple(Prompt(id=f"p{i}", text="x" * int(times * WARM_UP_LENGTH), max_tokens=40) for i in range(10))
    plan = plan_of(conditions=closed(1, 4), workloads=(replace(make_workload(num_prompts=1), prompts=prompts),))
    warm = WarmUp(
        pace={("plain", "c=1"): 0.02, ("plain", "c=4"): 0.004},
        decoding={("plain", "c=1"): 0.01, ("plain", "c=4"): 0.003},
        counters={"plain": Counters(generation_tokens=400)},
        unsteady={},
    )
    pilot = Pilot(tokens=200, allowed=400, firsts_s=[0.1], decoding_s=4.8, counters=Counters(generation_tokens=200))
    estimate = make_estimate(plan, warm, {}, {("plain", "code"): pilot}, 0.0)
    assert estimate.texts["plain", "code", "c=4"].first_s == pytest.approx(first_s, rel=0.01)


@pytest.mark.parametrize(("load", "like"), [(2, 1), (12, 8), (40, 32), (200, 32)])
def test_a_load_that_was_added_is_expected_to_be_like_the_next_smaller_one(load: int, like: int) -> None:
    """Its streams write at that one's pace, and where that one is slower than it was expected to be, it is as well."""
    plan = plan_of(conditions=closed(1, 8, 32))
    pace = {(each.name, f"c={streams}"): SECOND / streams for each in plan.arms for streams in (1, 8, 32)}
    estimate = TimeEstimate(pace=pace, shares={}, conditions=plan.conditions)

    def first(streams: int) -> Turn:
        return next(plan_turns(plan, closed(streams), 1))

    def count_s(streams: int) -> float:
        return fill_streams(first(streams), streams, lambda prompt: prompt.max_tokens)[1] * streams * SECOND / like

    assert estimate.expect(first(load)) == pytest.approx(count_s(load))
    for each in plan.conditions:
        estimate.learn(
            first(each.concurrency), (1 + (each.concurrency == like)) * estimate.expect_first(first(each.concurrency))
        )
    assert estimate.expect(first(load)) == pytest.approx(2 * count_s(load))
    estimate.learn(first(load), 3 * count_s(load))
    assert estimate.expect(first(load)) == pytest.approx(3 * count_s(load))


def test_answers_whose_length_is_known_are_expected_to_take_as_long() -> None:
    """p0 has 10 tokens, p1 has 30 and the others half of what they may have: 20."""
    plan = plan_of()
    lengths = {("code", "p0"): 10, ("code", "p1"): 30}
    pace = {("plain", "c=1"): 0.5, ("candidate 1", "c=1"): SECOND}
    warm = WarmUp(pace=pace, decoding=pace, counters={}, unsteady={})
    estimate = make_estimate(plan, warm, lengths, {}, 0.0)
    assert estimate.shares == {"code": 0.5}
    turns = [turn for turn in plan_turns(plan, plan.conditions, 1) if turn.arm == "candidate 1"]
    assert [round(estimate.expect(turn) / SECOND) for turn in turns[:4]] == [10, 30, 20, 20]


def test_prompts_are_spared_for_servers_that_could_remember_them() -> None:
    plan = plan_of(num_prompts=30)
    assert spare_prompts(plan) == (plan, {})
    short = replace(plan_of(num_prompts=10), remembering={"candidate 1": "it could"})
    assert spare_prompts(short) == (short, {})
    left, spared = spare_prompts(replace(plan, remembering={"candidate 1": "it could"}))
    assert [prompt.id for prompt in spared["code"]] == ["p28", "p29"]
    assert len(left.workloads[0].prompts) == 28


def test_the_result_so_far_names_the_leader_of_every_workload() -> None:
    run = make_run({"plain": Truth(), "ngram k=3": gains(1.5)})
    assert describe_lead(run).startswith("So far: code c=1: ngram k=3 1.4")
    assert describe_lead(run).endswith(", 12 prompts)."), "no verdict before the end"
