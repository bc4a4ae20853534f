"""A server that could remember answers is taken to do so until an equivalence test shows that it gains nothing."""

from dataclasses import replace

import pytest
from tests.support.made_runs import closed, gains, make_run, workload

from draftwise.core import Answer, Comparison, Run, Severity, TurnRecord, Verdict
from draftwise.deciding.comparison.cell import make_cells
from draftwise.deciding.comparison.recall import Recall, divide_cell
from draftwise.deciding.conclusions import conclude_run
from draftwise.deciding.thresholds import Thresholds

CANDIDATE = "ngram k=3"
FIRST_OR_NONE = ("first-answers-only", "memory-not-excluded")
WHY = {CANDIDATE: "it drafts from what it answered before"}
LIMITS = Thresholds()


def old_plan(num_prompts: int = 12, factor: float = 1.5, noise: float = 0.01, loads: tuple[int, ...] = (1,)) -> Run:
    """Return a run that asks prompts again in each repetition, of a candidate that could remember them."""
    truth = replace(gains(factor), noise=noise)
    run = make_run({CANDIDATE: truth}, workloads=[workload("code", num_prompts)], conditions=closed(*loads))
    return replace(run, plan=replace(run.plan, remembering=WHY))


def quicker_again(run: Run, prompts: frozenset[str]) -> Run:
    """Return the run with the candidate twice as fast on prompts that come back, in half as many steps."""

    def change(answer: Answer) -> Answer:
        if answer.turn not in turns:
            return answer
        timing = answer.timing
        first, *others = ((timing.sent + (time - timing.sent) / 2, count) for time, count in timing.chunks)
        pairs = zip(others[::2], others[1::2], strict=False)
        chunks = (first, *((later, one + two) for (_, one), (later, two) in pairs), *others[len(others) // 2 * 2 :])
        return replace(answer, timing=replace(timing, chunks=chunks, finished=chunks[-1][0]))

    def count(turn: TurnRecord) -> TurnRecord:
        tokens, spec = turn.counters.generation_tokens or 0, turn.counters.spec
        accepted = tokens - (tokens - spec.num_accepted_tokens) // 2
        counters = replace(turn.counters, spec=replace(spec, num_accepted_tokens=accepted))
        return replace(turn, counters=counters) if turn.turn in turns else turn

    mine = (each for each in run.answers if each.arm == CANDIDATE and each.repeat > 1)
    turns = {answer.turn for answer in mine if answer.prompt_id in prompts}
    return replace(run, answers=tuple(map(change, run.answers)), turns=tuple(map(count, run.turns)))


def only(run: Run) -> Comparison:
    (found,) = conclude_run(run).decision.comparisons
    return found


def codes(comparison: Comparison) -> dict[str, Severity]:
    return {each.code: each.severity for each in comparison.findings}


def recall(run: Run) -> Recall:
    return divide_cell(run, make_cells(run)[0], LIMITS).recall


def test_twelve_quiet_prompts_show_that_nothing_is_gained() -> None:
    run = old_plan()
    assert recall(run) is Recall.NONE
    assert only(run).repetitions == (1, 2, 3)
    assert codes(only(run)) == {}


@pytest.mark.parametrize("run", [old_plan(num_prompts=5), old_plan(noise=0.3)], ids=["few prompts", "much noise"])
def test_what_was_not_shown_is_presumed_and_first_answers_count(run: Run) -> None:
    assert recall(run) is Recall.PRESUMED
    found = only(run)
    assert found.repetitions == (1,)
    assert codes(found)["first-answers-only"] is Severity.INFO
    assert found.warm_speedup is None


def test_a_memory_that_six_prompts_cannot_show_adopts_nothing() -> None:
    """Half of the prompts come back much quicker: a t test of so few sees nothing, and nothing follows from that."""
    run = quicker_again(old_plan(num_prompts=6, factor=1.0), frozenset({"code-0", "code-2", "code-4"}))
    assert recall(run) is Recall.PRESUMED
    found = only(run)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.speedup.value == pytest.approx(1.0, abs=0.05)
    forgets = replace(run, plan=replace(run.plan, remembering={}))
    assert only(forgets).speedup.value > 1.2


def test_a_gain_that_is_seen_is_no_presumption() -> None:
    found = quicker_again(old_plan(), frozenset(f"code-{number}" for number in range(12)))
    assert recall(found) is Recall.SHOWN
    assert set(codes(only(found))) == {"repeated-prompts-warm-cache"}


def test_prompts_that_are_new_to_the_server_each_time_all_count() -> None:
    run = make_run({CANDIDATE: gains(1.5)}, workloads=[workload("code", 12)], remembering=WHY)
    assert recall(run) is Recall.PRESUMED
    found = only(run)
    assert (found.num_prompts, found.repetitions, found.verdict) == (12, (1,), Verdict.ADOPT)
    assert codes(found) == {}


def test_prompts_that_another_load_asked_before_are_not_new() -> None:
    run = old_plan(num_prompts=16, noise=0.3, loads=(1, 4))
    alone, loaded = conclude_run(run).decision.comparisons
    assert set(codes(alone)) == {"first-answers-only"}
    assert codes(loaded)["memory-not-excluded"] is Severity.ERROR
    assert loaded.verdict is not Verdict.ADOPT
    texts = [found.message for each in (alone, loaded) for found in each.findings if found.code in FIRST_OR_NONE]
    assert len(texts) == 2
    assert all(
        f"{WHY[CANDIDATE]}), and nothing shows that prompts gain nothing from repetition" in text for text in texts
    )


def test_blocks_whose_answers_were_set_aside_had_been_asked() -> None:
    run = old_plan(num_prompts=5)
    gone = next(turn for turn in run.turns if (turn.arm, turn.repeat, turn.block) == (CANDIDATE, 1, 0))
    lost = {turn.turn for turn in run.turns if (turn.repeat, turn.block) == (1, 0)}
    run = replace(
        run,
        turns=tuple(turn for turn in run.turns if turn.turn not in lost),
        answers=tuple(answer for answer in run.answers if answer.turn not in lost),
        set_aside=(gone,),
    )
    assert len(divide_cell(run, make_cells(run)[0], LIMITS).cell.units) == 4
