"""What is missing is said in words: passes that were cut off, and nothing that was settled on purpose."""

from dataclasses import replace

from tests.support.made_runs import closed, gains, make_run, workload

from draftwise.core import Run, Settled
from draftwise.deciding.conclusions import conclude_run
from draftwise.reporting.conditions import describe_scope, describe_unmeasured
from draftwise.runs.turn_order import Turn

CANDIDATE = "ngram k=3"


def unmeasured(run: Run) -> list[str]:
    return describe_unmeasured(conclude_run(run).decision)


def test_a_whole_run_lacks_nothing() -> None:
    assert unmeasured(make_run({CANDIDATE: gains(1.5)}, conditions=closed(1, 4))) == []


def test_passes_that_were_cut_off_are_counted() -> None:
    def keep(turn: Turn) -> bool:
        return turn.repeat < 3 or (turn.repeat == 3 and turn.block < 5 and turn.condition.concurrency == 1)

    run = make_run({CANDIDATE: gains(1.5)}, conditions=closed(1, 4), repeats=5, keep=keep)
    assert unmeasured(run) == [
        "ngram k=3, code, c=1: 2 of 5 repetitions and 5 of the 36 paired blocks of the others",
        "ngram k=3, code, c=4: 2 of 5 repetitions",
    ]
    single, loaded = conclude_run(run).decision.unmeasured
    assert (single.repetitions, single.planned, single.odd_blocks, single.blocks_each) == (2, 5, 5, 12)
    assert (loaded.condition.label, loaded.odd_blocks) == ("c=4", 0)


def test_blocks_that_were_disturbed_were_measured() -> None:
    """They count for no number, which is said beside the numbers, and nobody has to measure what is missing."""
    run = make_run({CANDIDATE: gains(1.5)}, conditions=closed(1))
    lost = [turn for turn in run.turns if turn.block % 3 == 0]
    aside = replace(run, turns=tuple(turn for turn in run.turns if turn not in lost), set_aside=tuple(lost))
    assert unmeasured(replace(aside, set_aside=())) == [
        "ngram k=3, code, c=1: 0 of 3 repetitions and 24 of the 36 paired blocks of the others"
    ]
    assert unmeasured(aside) == []


def test_a_turn_counts_when_both_arms_finished_it() -> None:
    run = make_run(
        {CANDIDATE: gains(1.5)}, conditions=closed(4), keep=lambda turn: turn.repeat < 3 or turn.arm == "plain"
    )
    assert unmeasured(run) == ["ngram k=3, code, c=4: 2 of 3 repetitions"]


def test_a_settled_cell_had_all_it_needed_and_its_neighbour_not() -> None:
    run = make_run(
        {CANDIDATE: gains(1.5)},
        workloads=[workload("code"), workload("prose")],
        conditions=closed(4),
        keep=lambda turn: turn.repeat < 3,
    )
    run = replace(run, settled=(Settled(workload="code", condition="c=4", candidate=CANDIDATE, passes=2),))
    assert unmeasured(run) == ["ngram k=3, prose, c=4: 2 of 3 repetitions"]


def test_a_load_that_was_added_is_expected_too() -> None:
    run = replace(make_run({CANDIDATE: gains(1.5)}), added=closed(2))
    assert unmeasured(run) == ["ngram k=3, code, c=2: 0 of 3 repetitions"]


def test_answers_of_turns_that_were_cut_off_are_mentioned() -> None:
    run = replace(make_run({CANDIDATE: gains(1.5)}), num_unfinished=7)
    assert unmeasured(run) == ["7 answers of interrupted turns are on disk but do not count"]


ONCE = {CANDIDATE: "it drafts from what it answered before"}


def test_loads_for_which_a_workload_is_too_short_are_named_with_what_they_need() -> None:
    run = make_run(
        {CANDIDATE: gains(1.5)}, workloads=[workload("code", 40)], conditions=closed(1, 4, 16), remembering=ONCE
    )
    assert unmeasured(run) == [
        "ngram k=3, code, c=16: it may remember answers, so it needs 128 prompts that no other load uses"
    ]
    (cell,) = conclude_run(run).decision.unmeasured
    assert (cell.planned, cell.repetitions, cell.needed) == (0, 0, 128)


def test_prompts_that_the_time_was_too_short_for_are_no_lack() -> None:
    """Prompts are drawn: the time decides how many, and the numbers say on how many they rest."""
    run = make_run(
        {CANDIDATE: gains(1.5)}, conditions=closed(1, 4), keep=lambda turn: (turn.repeat, turn.block) < (1, 8)
    )
    run = replace(run, plan=replace(run.plan, minutes=1.0))
    assert unmeasured(run) == []
    none = [turn for turn in run.turns if turn.condition == "c=1"]
    assert unmeasured(replace(run, turns=tuple(none))) == ["ngram k=3, code, c=4: 0 of 3 repetitions"]


def test_a_load_that_was_added_without_new_prompts_is_named() -> None:
    run = replace(
        make_run({CANDIDATE: gains(1.5)}, conditions=closed(1, 4), workloads=[workload("code", 64)], remembering=ONCE),
        added=closed(2),
    )
    (line,) = unmeasured(run)
    assert line.startswith("ngram k=3, code, c=2: it may remember answers, so it needs 16 prompts")


def test_prompts_that_repeat_are_part_of_the_scope() -> None:
    texts = workload("code", 8)
    twice = replace(
        texts, prompts=tuple(replace(each, text="the same") if n < 3 else each for n, each in enumerate(texts.prompts))
    )
    scope = conclude_run(make_run({CANDIDATE: gains(1.5)}, workloads=[twice])).decision.scope
    assert describe_scope(scope)[0] == "traffic: code (8 prompts, 2 of them repeats of others)"
