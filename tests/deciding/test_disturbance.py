"""Disturbed paired blocks count on no arm, and what looks like a disturbance and is none counts."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.support.combinations import tries
from tests.support.made_runs import Truth, arm, gains, make_run, workload

from draftwise.core import Answer, Arm, ReasonCode, Run, Timing, TurnRecord, Verdict
from draftwise.deciding.comparison.cell import make_cells
from draftwise.deciding.conclusions import conclude_run
from draftwise.deciding.disturbance import find_disturbances, find_lost_pairs, set_aside_disturbed
from draftwise.deciding.thresholds import Thresholds

ARMS = {"plain": Truth(), "ngram k=3": gains(1.3)}
QUIET = {"busy_s": 1.0, "own_s": 1.0, "steal_s": 0.0, "quota_stopped_s": 0.0, "waited_s": 0.0}
"""Growth of the counters in a turn of one second on two cores."""


def slow_down(timing: Timing, factor: float) -> Timing:
    begin = timing.sent
    chunks = tuple((begin + factor * (time - begin), count) for time, count in timing.chunks)
    return replace(timing, chunks=chunks, finished=chunks[-1][0])


def slow(run: Run, factor: float, which: Callable[[Answer], bool]) -> Run:
    def bend(answer: Answer) -> Answer:
        return replace(answer, timing=slow_down(answer.timing, factor)) if which(answer) else answer

    return replace(run, answers=tuple(map(bend, run.answers)))


def with_machine(run: Run, used: Callable[[TurnRecord], Mapping[str, float]], cores: int = 2) -> Run:
    """Return the run with turns of one second each, in which the machine's counters grew as told."""
    total: dict[str, float] = dict.fromkeys(QUIET, 0.0)
    turns = []
    for number, turn in enumerate(run.turns):
        growth = QUIET | used(turn)
        total = {name: value + growth[name] for name, value in total.items() if name in growth}
        device: dict[str, Any] = {"monotonic_s": float(number + 1), "cpu": {"cores": cores, **total}}
        turns.append(replace(turn, device=device, wall_s=1.0))
    return replace(run, turns=tuple(turns))


def place(turn: TurnRecord) -> tuple[str, int, int]:
    return turn.arm, turn.repeat, turn.block


def test_a_quiet_run_has_no_disturbance() -> None:
    for seed in range(20):
        assert list(find_disturbances(make_run(ARMS, seed=seed), Thresholds())) == []


def test_a_slow_turn_sets_its_block_aside_on_both_arms() -> None:
    run = make_run(ARMS)
    slowed = slow(run, 2.0, lambda each: (each.arm, each.repeat, each.prompt_id) == ("plain", 2, "code-5"))
    (found,) = find_disturbances(slowed, Thresholds())
    assert found.attempt_key == ("code", "c=1", 2, 5, 0)
    assert found.arm == "plain"
    assert re.fullmatch(
        r"the time of a decoding step was (1\.[89]|2\.[01])\dx that of the turns around it", found.reason
    )
    counted = set_aside_disturbed(slowed, Thresholds())
    assert {place(turn) for turn in counted.set_aside} == {("plain", 2, 5), ("ngram k=3", 2, 5)}
    assert {each.turn for each in counted.answers} == {turn.turn for turn in counted.turns}
    assert set_aside_disturbed(counted, Thresholds()) is counted
    assert conclude_run(slowed).run == counted


def three_arms() -> Run:
    arms = [Arm(name="plain"), arm(3), arm(5)]
    return make_run({**ARMS, "ngram k=5": gains(1.2)}, arms=arms)


def test_a_slow_turn_of_a_candidate_costs_no_other_candidate_anything() -> None:
    run = slow(three_arms(), 2.0, lambda each: (each.arm, each.repeat, each.prompt_id) == ("ngram k=5", 2, "code-5"))
    counted = set_aside_disturbed(run, Thresholds())
    assert {place(turn) for turn in counted.set_aside} == {("ngram k=5", 2, 5)}
    (lost,) = find_lost_pairs(counted)
    assert (lost.block, lost.candidate, lost.attempts) == (("code", "c=1", 2, 5), "ngram k=5", 1)
    (told,) = (each for each in conclude_run(run).decision.findings if each.code == "disturbed-blocks")
    assert (
        ": ngram k=5 1 of 36. The first pair (code, c=1) was lost because the time of a decoding step was"
        in told.message
    )


def test_a_slow_turn_of_the_baseline_costs_all_candidates_the_block() -> None:
    run = slow(three_arms(), 2.0, lambda each: (each.arm, each.repeat, each.prompt_id) == ("plain", 2, "code-5"))
    counted = set_aside_disturbed(run, Thresholds())
    assert {turn.block_key for turn in counted.set_aside} == {("code", "c=1", 2, 5)}
    assert {each.candidate for each in find_lost_pairs(counted)} == {"ngram k=3", "ngram k=5"}


def test_each_candidate_is_compared_with_the_baseline_of_its_own_attempt() -> None:
    run = slow(three_arms(), 2.0, lambda each: (each.arm, each.repeat, each.prompt_id) == ("ngram k=5", 1, "code-5"))
    again = take_again(run, {5}, arms=("plain", "ngram k=5"))
    counted = set_aside_disturbed(again, Thresholds())
    mine = [turn for turn in counted.turns if (turn.repeat, turn.block) == (1, 5)]
    assert {(turn.arm, turn.attempt) for turn in mine} == {
        ("plain", 0),
        ("ngram k=3", 0),
        ("plain", 1),
        ("ngram k=5", 1),
    }
    for cell in make_cells(counted):
        attempts = {turn.arm: turn.attempt for turn in cell.turns if (turn.repeat, turn.block) == (1, 5)}
        assert attempts == dict.fromkeys(("plain", cell.candidate), int(cell.candidate == "ngram k=5"))
        assert len(cell.paired) == 36
        assert {each.baseline.turn for each in cell.paired} <= {turn.turn for turn in cell.turns}


def test_a_turn_that_is_faster_than_its_neighbours_is_as_far_from_them() -> None:
    run = slow(make_run(ARMS), 0.5, lambda each: (each.arm, each.repeat, each.prompt_id) == ("ngram k=3", 1, "code-7"))
    (found,) = find_disturbances(run, Thresholds())
    assert found.attempt_key == ("code", "c=1", 1, 7, 0)
    assert (found.arm, found.is_faster) == ("ngram k=3", True)


def test_a_long_disturbance_is_found_though_most_neighbours_have_it() -> None:
    run = slow(make_run(ARMS), 1.6, lambda each: each.repeat == 2 and 2 <= int(each.prompt_id[5:]) < 10)
    assert {each.block for each in find_disturbances(run, Thresholds()) if each.repeat == 2} == set(range(2, 10))
    assert {each.repeat for each in find_disturbances(run, Thresholds())} == {2}


def test_a_late_compilation_is_seen_in_the_first_token() -> None:
    def stall(answer: Answer) -> Answer:
        if (answer.arm, answer.repeat, answer.prompt_id) != ("ngram k=3", 1, "code-4"):
            return answer
        timing = answer.timing
        chunks = tuple((time + 2.0, count) for time, count in timing.chunks)
        return replace(answer, timing=replace(timing, chunks=chunks, finished=timing.finished + 2.0))

    run = make_run(ARMS)
    (found,) = find_disturbances(replace(run, answers=tuple(map(stall, run.answers))), Thresholds())
    assert (found.block, "time to the first token" in found.reason) == (4, True)


def test_a_prompt_that_is_slow_whenever_it_is_asked_counts() -> None:
    run = slow(make_run(ARMS), 3.0, lambda each: (each.arm, each.prompt_id) == ("ngram k=3", "code-3"))
    assert list(find_disturbances(run, Thresholds())) == []


def test_a_prompt_for_which_nothing_is_drafted_is_compared_with_nothing_else() -> None:
    """Steps that verify one token take half the time of those that verify four: the text's doing, once or always."""
    run = slow(make_run(ARMS), 0.5, lambda each: (each.arm, each.repeat, each.prompt_id) == ("ngram k=3", 1, "code-3"))

    def without_drafts(turn: TurnRecord) -> TurnRecord:
        if place(turn) != ("ngram k=3", 1, 3):
            return turn
        spec = replace(turn.counters.spec, num_draft_tokens=0)
        return replace(turn, counters=replace(turn.counters, spec=spec))

    assert list(find_disturbances(replace(run, turns=tuple(map(without_drafts, run.turns))), Thresholds())) == []


def test_a_machine_that_slows_down_for_good_loses_only_the_blocks_of_the_change() -> None:
    run = slow(make_run(ARMS, workloads=[workload(num_prompts=20)], repeats=4), 4.0, lambda each: each.repeat > 2)
    assert len({each.attempt_key for each in find_disturbances(run, Thresholds())}) <= 8


def test_the_pace_of_a_drafting_server_without_counters_is_not_judged() -> None:
    run = slow(make_run(ARMS), 1.8, lambda each: (each.arm, each.repeat, each.prompt_id) == ("ngram k=3", 1, "code-3"))
    assert len(list(find_disturbances(run, Thresholds()))) == 1

    def uncounted(turn: TurnRecord) -> TurnRecord:
        return replace(turn, counters=replace(turn.counters, generation_tokens=None))

    assert list(find_disturbances(replace(run, turns=tuple(map(uncounted, run.turns))), Thresholds())) == []


@pytest.mark.parametrize(
    ("used", "cores", "words"),
    [
        ({"steal_s": 0.2}, 2, "the hypervisor gave other machines 17% of the CPU time"),
        ({"steal_s": 0.04}, 2, None),  # within the resolution of the counters
        ({"quota_stopped_s": 0.3}, 2, "CPU limit stopped processes for 0.30 s in every second"),
        ({"busy_s": 1.9, "own_s": 1.0, "waited_s": 0.8}, 2, "other processes used 0.90 of this machine's 2 cores"),
        ({"busy_s": 1.9, "own_s": 1.0, "waited_s": 0.01}, 2, None),  # on a core to spare
        ({"busy_s": 17.0, "own_s": 1.0, "waited_s": 0.02}, 64, None),
        ({"busy_s": 62.0, "own_s": 4.0, "waited_s": 0.7}, 64, "other processes used 58.00 of this machine's 64 cores"),
    ],
)
def test_what_the_machine_says(used: Mapping[str, float], cores: int, words: str | None) -> None:
    def in_one(turn: TurnRecord) -> Mapping[str, float]:
        return used if place(turn) == ("ngram k=3", 2, 4) else {}

    found = list(find_disturbances(with_machine(make_run(ARMS), in_one, cores), Thresholds()))
    assert [each.attempt_key for each in found] == ([("code", "c=1", 2, 4, 0)] if words else [])
    assert all(words in each.reason for each in found if words)


def test_a_neighbor_that_is_always_there_disturbs_no_turn() -> None:
    """It gets from half a core to a whole one, by what the servers leave; what comes on top of it disturbs."""

    def used(turn: TurnRecord) -> Mapping[str, float]:
        gets = 1.6 if place(turn) == ("plain", 2, 4) else (0.5, 0.55, 0.6, 1.0)[turn.turn % 4]
        return {"busy_s": 2.0, "own_s": 2.0 - gets, "waited_s": 0.9}

    (found,) = find_disturbances(with_machine(make_run(ARMS), used), Thresholds())
    assert (found.arm, found.reason) == ("plain", "other processes used 1.60 of this machine's 2 cores")


def test_without_pressure_information_a_machine_with_an_idle_core_is_not_crowded() -> None:
    def used(turn: TurnRecord, busy_s: float) -> Mapping[str, float]:
        return {"busy_s": busy_s, "own_s": 1.0} if place(turn) == ("plain", 2, 4) else {}

    for busy_s, count in ((1.5, 0), (2.0, 1)):
        run = with_machine(make_run(ARMS), lambda turn, busy_s=busy_s: used(turn, busy_s))
        turns = tuple(replace(t, device=t.device | {"cpu": without(t.device["cpu"], "waited_s")}) for t in run.turns)
        assert len(list(find_disturbances(replace(run, turns=turns), Thresholds()))) == count


def without(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != name}


def take_again(run: Run, blocks: set[int], attempt: int = 1, arms: Sequence[str] = tuple(ARMS)) -> Run:
    """Return the run with another attempt at some blocks of the first repetition, as fast as the second repetition."""
    again = [each for each in run.turns if each.repeat == 2 and each.block in blocks and not each.attempt]
    number = 1 + max(turn.turn for turn in run.turns)
    turns, answers = list(run.turns), list(run.answers)
    for turn in (each for each in again if each.arm in arms):
        turns.append(replace(turn, turn=number, repeat=1, attempt=attempt))
        answers += [replace(each, turn=number, repeat=1) for each in run.answers if each.turn == turn.turn]
        number += 1
    return replace(run, turns=tuple(turns), answers=tuple(answers))


def test_the_last_undisturbed_attempt_stands_for_a_block() -> None:
    run = slow(make_run(ARMS), 2.0, lambda each: (each.arm, each.repeat, each.prompt_id) == ("plain", 1, "code-5"))
    counted = set_aside_disturbed(take_again(run, {5}), Thresholds())
    assert {turn.attempt for turn in counted.turns if (turn.repeat, turn.block) == (1, 5)} == {1}
    assert {turn.attempt_key for turn in counted.set_aside} == {("code", "c=1", 1, 5, 0)}
    assert len(counted.turns) == 2 * 12 * 3


def test_an_attempt_that_was_cut_off_does_not_replace_a_whole_one() -> None:
    again = take_again(make_run(ARMS), {5})
    cut = replace(again, turns=again.turns[:-1])
    counted = set_aside_disturbed(cut, Thresholds())
    assert {turn.attempt for turn in counted.turns} == {0}


def test_a_block_that_was_never_undisturbed_counts_for_nothing_and_says_so() -> None:
    run = slow(make_run(ARMS), 2.0, lambda each: (each.repeat, each.prompt_id) == (1, "code-5"))
    run = replace(run, turns=tuple(t for t in run.turns if place(t)[1:] != (1, 5) or t.arm == "plain"))
    counted = set_aside_disturbed(run, Thresholds())
    assert not [turn for turn in counted.turns if (turn.repeat, turn.block) == (1, 5)]
    assert [each.block for each in counted.disturbances] == [5]


@pytest.mark.parametrize("remembering", [{}, {"ngram k=3": "it may"}])
@pytest.mark.parametrize("factor", [1 / 4, 4])
def test_a_verdict_that_stands_only_without_what_its_pace_set_aside_is_none(factor: float, remembering) -> None:
    """A prompt may be slow, or fast, by itself: where there was no time to ask it again, nobody can tell."""
    truths = {"plain": Truth(), "ngram k=3": gains(1.12 if factor > 1 else 1 / 1.12)}
    run = make_run(truths, workloads=[workload(num_prompts=30)], repeats=1, remembering=remembering)
    assert conclude_run(run).decision.comparisons[0].verdict is (Verdict.ADOPT if factor > 1 else Verdict.REJECT)
    run = slow(run, factor, lambda each: (each.arm, each.prompt_id) == ("ngram k=3", "code-7"))
    found = conclude_run(run).decision.comparisons[0]
    assert found.num_prompts == 29
    assert found.verdict is Verdict.INCONCLUSIVE
    assert (found.reason.code, found.reason.values["prompt"]) == (ReasonCode.LOST_BY_PACE, "code-7")


def test_of_a_loss_with_and_without_what_its_pace_set_aside_the_weaker_word_stands() -> None:
    truths = {"plain": Truth(), "ngram k=3": gains(0.95)}
    run = make_run(truths, workloads=[workload(num_prompts=20)], repeats=1)
    assert conclude_run(run).decision.comparisons[0].verdict is Verdict.REJECT
    run = slow(run, 2.0, lambda each: (each.arm, each.prompt_id) == ("ngram k=3", "code-7"))
    found = conclude_run(run).decision.comparisons[0]
    assert (found.num_prompts, found.verdict, found.reason.code) == (19, Verdict.NO_GAIN, ReasonCode.NO_GAIN)


def test_a_server_slow_from_some_turn_on_was_not_disturbed_turn_by_turn() -> None:
    """What its pace sets aside of a server that is slow in the end is its pace from then on."""
    truths = {"plain": Truth(), "ngram k=3": gains(1.3)}
    run = make_run(truths, workloads=[workload(num_prompts=30)], repeats=1)
    late = sorted(turn.turn for turn in run.turns if turn.arm == "ngram k=3")[22:]
    run = slow(run, 1.6, lambda each: each.turn in late)
    found = conclude_run(run)
    assert len(found.run.set_aside) == 2 * len(late)
    assert found.decision.comparisons[0].verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(("drafts", "code"), [(1, ReasonCode.PACE_CHANGED), (2, ReasonCode.GAIN)])
def test_steps_that_draft_more_take_longer_at_the_same_pace(drafts: int, code: ReasonCode) -> None:
    truths = {"plain": Truth(), "ngram k=3": gains(1.3)}
    run = make_run(truths, workloads=[workload(num_prompts=40)], repeats=1)
    late = sorted(turn.turn for turn in run.turns if turn.arm == "ngram k=3")[20:]
    run = slow(run, 1.2, lambda each: each.turn in late)

    def draft(turn: TurnRecord) -> TurnRecord:
        spec = replace(turn.counters.spec, num_draft_tokens=drafts * turn.counters.spec.num_draft_tokens)
        return replace(turn, counters=replace(turn.counters, spec=spec)) if turn.turn in late else turn

    found = conclude_run(replace(run, turns=tuple(map(draft, run.turns)))).decision.comparisons[0]
    assert found.reason.code is code


def remembering_run() -> tuple[Run, list[TurnRecord]]:
    """Return a run in which a candidate that may remember was asked one prompt again, and its turns there."""
    run = take_again(make_run(ARMS | {"ngram k=3": gains(1.12)}, workloads=[workload(num_prompts=30)], repeats=2), {7})
    turns = tuple(turn for turn in run.turns if turn.repeat == 1)
    answers = tuple(each for each in run.answers if each.turn in {turn.turn for turn in turns})
    plan = replace(run.plan, repeats=1, remembering={"ngram k=3": "it may"})
    mine = [turn for turn in turns if turn.block == 7 and turn.arm != "plain"]
    return replace(run, plan=plan, turns=turns, answers=answers), mine


@pytest.mark.parametrize("factor", [1, 4])
def test_a_second_answer_of_what_may_remember_tells_whether_a_prompt_is_slow_by_itself(factor: float) -> None:
    run, (first, second) = remembering_run()
    run = slow(slow(run, 4, lambda each: each.turn == first.turn), factor, lambda each: each.turn == second.turn)
    (found,) = conclude_run(run).decision.comparisons
    assert found.num_prompts == (29 if factor == 1 else 30)
    assert found.verdict is (Verdict.ADOPT if factor == 1 else Verdict.INCONCLUSIVE)


def test_a_second_answer_that_nothing_is_like_does_not_clear_the_first() -> None:
    run, (first, second) = remembering_run()
    run = slow(run, 4, lambda each: each.turn == first.turn)
    drafts = replace(second.counters.spec, num_draft_tokens=9 * second.counters.spec.num_draft_tokens)
    other = replace(second, counters=replace(second.counters, spec=drafts))
    run = replace(run, turns=tuple(other if each is second else each for each in run.turns))
    (found,) = conclude_run(run).decision.comparisons
    assert (found.verdict, found.reason.code) == (Verdict.INCONCLUSIVE, ReasonCode.LOST_BY_PACE)


def test_what_the_machine_set_aside_does_not_count_for_a_verdict() -> None:
    def used(turn: TurnRecord) -> Mapping[str, float]:
        return {"steal_s": 0.5} if place(turn)[::2] == ("ngram k=3", 7) else {}

    run = make_run({"plain": Truth(), "ngram k=3": gains(1.12)}, workloads=[workload(num_prompts=30)], repeats=1)
    run = slow(run, 4, lambda each: (each.arm, each.prompt_id) == ("ngram k=3", "code-7"))
    assert conclude_run(with_machine(run, used)).decision.comparisons[0].verdict is Verdict.ADOPT


def test_disturbances_that_hit_turns_at_random_move_no_verdict() -> None:
    """A fifth of all turns takes 1.3 to 4 times as long: what is kept says what the run would have said without."""
    moved = []
    for seed in range(tries(30)):
        rng, quiet = np.random.default_rng(seed), make_run(ARMS, seed=seed)
        hit = {turn.turn: rng.uniform(1.3, 4) for turn in quiet.turns if rng.random() < 0.2}
        disturbed = quiet
        for number, factor in hit.items():
            disturbed = slow(disturbed, factor, lambda each, number=number: each.turn == number)
        found, truth = (conclude_run(run).decision.comparisons[0].speedup.value for run in (disturbed, quiet))
        moved.append(np.log(found / truth))
    # (A prompt that is hit alike in all three repetitions, as one is here, passes for slow by itself.)
    assert abs(np.mean(moved)) < 0.01
    assert np.quantile(np.abs(moved), 0.9) < 0.02
