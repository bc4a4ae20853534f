"""What counts in a cell: measured answers of turns that both arms finished, prompt by prompt."""

from collections import Counter
from dataclasses import replace

import pytest
from tests.support.made_runs import Truth, closed, gains, make_run, workload

from draftwise.core import Answer, Run
from draftwise.core.comparison import ALL
from draftwise.deciding.comparison.cell import Cell, make_cells
from draftwise.runs.turn_order import Turn

CANDIDATE = "ngram k=3"


def run(**settings) -> Run:
    return make_run({CANDIDATE: gains(1.5)}, **settings)


def only(made: Run) -> Cell:
    (cell,) = make_cells(made)
    return cell


def test_a_cell_per_workload_and_condition_and_the_pooled_ones() -> None:
    found = list(make_cells(run(workloads=[workload("code"), workload("prose")], conditions=closed(1, 4), repeats=1)))
    places = [(cell.workload, cell.condition.label) for cell in found]
    assert places == [(name, label) for name in ("code", "prose", ALL) for label in ("c=1", "c=4")]
    assert len(found[-1].units) == 24


def test_a_turn_that_only_one_arm_finished_has_no_partner() -> None:
    def keep(turn: Turn) -> bool:
        return not (turn.repeat == 2 and turn.block >= 5 and turn.arm == CANDIDATE)

    cell = only(run(repeats=2, keep=keep))
    assert len(cell.turns) == 2 * (12 + 5)
    assert all(a.block == b.block and a.repeat == b.repeat and a.arm != b.arm for a, b in cell.pair_turns())
    later = cell.units[-1]
    assert len(cell.outputs["plain", later]) == 1


def test_a_cell_without_any_pair_is_not_there() -> None:
    assert list(make_cells(run(keep=lambda turn: turn.arm == "plain"))) == []


def test_unmeasured_and_failed_answers_are_no_readings() -> None:
    made = run(repeats=1, conditions=closed(4))
    filler = replace(made.answers[0], measured=False)
    failed = replace(made.answers[1], error="broke")
    cell = only(replace(made, answers=(filler, failed, *made.answers[2:])))
    answered = [answer for unit in cell.units for answer in cell.outputs[filler.arm, unit]]
    assert filler not in answered
    assert failed not in answered
    assert failed in cell.requests[failed.arm]
    assert filler not in cell.requests[filler.arm]
    assert filler in cell.answers_by_turn[filler.turn]


def test_copies_and_repetitions_are_attempts_at_one_prompt_beside_their_partners() -> None:
    """16 requests a turn over 12 prompts, 2 repetitions: the first 4 prompts are sent twice in each."""
    cell = only(run(repeats=2, conditions=closed(4)))
    shared = cell.paired
    assert len(shared) == 2 * 16
    assert Counter(each.unit[1] for each in shared)["code-0"] == 4
    assert Counter(each.unit[1] for each in shared)["code-11"] == 2
    for each in shared:
        sides = [(a.prompt_id, a.repeat, a.copy) for a in (each.baseline, each.candidate)]
        assert sides[0] == sides[1]
        assert each.block == ("code", each.baseline.repeat, 0)


def test_a_request_that_failed_on_one_arm_is_still_one_that_both_were_sent() -> None:
    made = run(repeats=2)
    gone = next(a for a in made.answers if a.arm == CANDIDATE and a.prompt_id == "code-3" and a.repeat == 1)
    answers = tuple(replace(a, error="broke") if a is gone else a for a in made.answers)
    cell = only(replace(made, answers=answers))
    found = [(each.baseline.error, each.candidate.error) for each in cell.paired if each.unit[1] == "code-3"]
    assert found == [(None, "broke"), (None, None)]


def test_a_prompt_that_the_arms_answered_at_different_times_only_is_not_compared() -> None:
    """The candidate failed in the first repetition, the baseline in the second."""

    def broke(answer: Answer) -> bool:
        return answer.prompt_id == "code-3" and answer.repeat == (1 if answer.arm == CANDIDATE else 2)

    made = run(repeats=2)
    made = replace(made, answers=tuple(replace(a, error="broke") if broke(a) else a for a in made.answers))
    assert ("code", "code-3") not in only(made).units
    none = replace(made, answers=tuple(a for a in made.answers if a.prompt_id == "code-3"))
    assert list(make_cells(none)) == []


def test_counters_are_those_of_paired_turns() -> None:
    whole = only(run(repeats=2)).counters[CANDIDATE].generation_tokens
    half = only(run(repeats=2, keep=lambda turn: turn.repeat == 1 or turn.arm == CANDIDATE))
    assert whole is not None
    assert half.counters[CANDIDATE].generation_tokens == whole / 2
    assert half.repetitions == (1,)


def test_keeping_repetitions_keeps_those_of_answers_and_turns() -> None:
    cell = only(run(repeats=3)).keep_repetitions([2, 3])
    assert cell.repetitions == (2, 3)
    assert {answer.repeat for answer in cell.requests[CANDIDATE]} == {2, 3}


def test_a_candidate_that_failed_everywhere_makes_no_cell() -> None:
    broken = Truth(fails=frozenset(f"code-{i}" for i in range(12)))
    assert list(make_cells(make_run({CANDIDATE: broken}))) == []


@pytest.mark.parametrize("streams", [1, 4])
def test_answers_of_other_conditions_stay_out(streams: int) -> None:
    made = run(conditions=closed(1, 4), repeats=1)
    cell = next(each for each in make_cells(made) if each.condition.concurrency == streams)
    assert {answer.condition for turn in cell.answers_by_turn.values() for answer in turn} == {f"c={streams}"}


def test_a_pool_takes_the_repetitions_that_all_of_its_workloads_have() -> None:
    """Code was settled after one repetition: it would weigh a third of what prose does."""

    def keep(turn: Turn) -> bool:
        return turn.workload == "prose" or turn.repeat == 1

    *single, pooled = make_cells(run(workloads=[workload("code"), workload("prose")], keep=keep))
    assert [cell.repetitions for cell in single] == [(1,), (1, 2, 3)]
    assert pooled.repetitions == (1,)
    assert len(pooled.units) == 24


def test_a_load_that_was_added_for_one_workload_has_no_pool() -> None:
    found = make_cells(run(workloads=[workload("code"), workload("prose")], keep=lambda turn: turn.workload == "code"))
    assert [cell.workload for cell in found] == ["code"]
