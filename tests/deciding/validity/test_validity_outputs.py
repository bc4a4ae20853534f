"""Outputs that a candidate changes are told from ties and from what plain itself changes; poor material is named."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.validity import (
    ENDING,
    QUICKER,
    bend_answers,
    bend_turns,
    closed,
    codes,
    findings,
    graded,
    make_workload,
    run_of,
)

from draftwise.core import Answer, Counters, Run, Severity, Verdict
from draftwise.deciding.conclusions import conclude_run

LOAD = (closed(2),)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_of(tmp_path_factory.mktemp("runs") / "good")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Sixteen prompts, two streams, three passes."""
    path = tmp_path_factory.mktemp("runs") / "loaded"
    return run_of(path, conditions=LOAD, workloads=(make_workload(num_prompts=16),))


def changed(answer: Answer, token: int) -> Answer:
    return replace(answer, token_ids=(*answer.token_ids[:5], token, *answer.token_ids[6:]))


def wavering(run: Run, arm: str, prompts: range) -> Run:
    """Return the run with another output in each pass for some prompts of an arm."""
    names = {f"code-{number}" for number in prompts}
    salt = 0 if arm == "plain" else 10

    def change(answer: Answer) -> Answer:
        odd = answer.arm == arm and answer.prompt_id in names
        return changed(answer, 9000 + salt + answer.repeat) if odd else answer

    return bend_answers(run, change)


def test_an_unstable_plain_server_alone_with_its_prompt(good: Run) -> None:
    def change(answer: Answer) -> Answer:
        odd = (answer.arm, answer.repeat, answer.prompt_id) == ("plain", 2, "code-0")
        return replace(answer, token_ids=answer.token_ids[:-1]) if odd else answer

    run = bend_answers(good, change)
    assert graded(run) == {"plain-unstable": Severity.WARNING}
    assert "answers 1 of 8 prompts" in findings(run)["plain-unstable"].message


def test_under_load_batches_change_and_with_them_the_rounding(loaded: Run) -> None:
    def change(answer: Answer) -> Answer:
        odd = answer.arm == "plain" and answer.repeat == 2 and answer.prompt_id in ("code-0", "code-1")
        return changed(answer, 9000) if odd else answer

    run = bend_answers(loaded, change)
    assert graded(run) == {"plain-unstable": Severity.INFO}
    assert findings(run)["plain-unstable"].where == "c=2"
    assert "answers 2 of 16 prompts" in findings(run)["plain-unstable"].message


def test_an_answer_that_plain_gave_in_any_pass_is_no_difference(good: Run) -> None:
    def change(answer: Answer) -> Answer:
        odd = (answer.arm == "plain" and answer.repeat == 2) or (answer.arm != "plain" and answer.repeat == 3)
        return replace(answer, token_ids=answer.token_ids[:-1]) if odd else answer

    run = bend_answers(good, change)
    assert codes(run) == {"plain-unstable"}
    assert conclude_run(run).decision.comparisons[0].equal_outputs == (8, 8)


def test_differences_that_nobody_examined_are_no_error(loaded: Run) -> None:
    """Batches of other shapes round differently: what was not examined is not known."""
    run = wavering(loaded, "candidate 1", range(2))
    assert graded(run) == {"outputs-unexamined": Severity.WARNING}
    assert "2 of 16 outputs differ" in findings(run)["outputs-unexamined"].message
    assert conclude_run(run).decision.comparisons[0].verdict == "adopt"


def test_a_single_difference_that_was_not_asked_again_is_undecided(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", replace(QUICKER, differs_at=20, gap=2.0), plain=replace(ENDING, gap=2.0))
    seen = {each.prompt_id: each for each in run.divergences}.values()

    def judge(*again: bool | None) -> dict[str, Severity]:
        far = [replace(each, again=answer) for each, answer in zip(seen, again, strict=False)]
        near = [replace(each, gap=0.1) for each in [*seen][len(again) :]]
        return graded(replace(run, divergences=(*far, *near)))

    assert judge(None)["outputs-unexamined"] is Severity.ERROR
    assert "outputs-differ" not in judge(None)
    assert judge(True)["outputs-differ"] is judge(None, None)["outputs-differ"] is Severity.ERROR
    assert "outputs-differed-once" in judge(False)


def test_a_candidate_that_wavers_far_more_than_plain(loaded: Run) -> None:
    run = wavering(wavering(loaded, "plain", range(2)), "candidate 1", range(16))
    assert graded(run)["outputs-differ"] is Severity.ERROR


def test_differences_of_which_the_servers_are_sure_are_real_whatever_plain_does(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", replace(QUICKER, differs_at=5, gap=2.0), plain=replace(ENDING, gap=2.0))
    assert graded(wavering(run, "plain", range(8)))["outputs-differ"] is Severity.ERROR


def test_wrong_outputs_at_temperature_zero_block_the_candidate_at_every_temperature(tmp_path: Path) -> None:
    """Above 0 outputs are not compared: without counters nothing else tells another model there."""
    wrong = replace(QUICKER, differs_at=5, gap=2.0)
    conditions = (closed(1), closed(1, temperature=0.8))
    run = run_of(tmp_path / "run", wrong, plain=replace(ENDING, gap=2.0), conditions=conditions, repeats=2)
    servers = {name: replace(server, metric_names=None) for name, server in run.context.servers.items()}
    silent = bend_turns(run, lambda turn: replace(turn, counters=Counters()))
    silent = replace(silent, context=replace(run.context, servers=servers))
    for each in (run, silent):
        verdicts = {c.condition.temperature: c.verdict for c in conclude_run(each).decision.comparisons}
        assert verdicts == {0.0: Verdict.BLOCKED, 0.8: Verdict.BLOCKED}
    warm = conclude_run(run).decision.comparisons[1]
    (told,) = (each for each in warm.findings if each.code == "outputs-differ")
    assert "at temperature 0 (code, c=1)" in told.message


def test_rounding_is_measured_on_plain_decoding_itself(tmp_path: Path) -> None:
    """0.9 nats are beyond five times what bfloat16 is expected to move, and within what plain moves here."""
    apart = replace(QUICKER, differs_at=20, gap=1.2)
    run = run_of(tmp_path / "run", apart, plain=replace(ENDING, gap=1.2), workloads=(make_workload(num_prompts=12),))
    assert graded(run)["outputs-differ"] is Severity.ERROR
    seen = run.divergences[0]
    null = tuple(replace(seen, candidate="plain", prompt_id=f"code-{n}", gap=0.5) for n in range(8))
    assert graded(replace(run, divergences=run.divergences + null)) == {"numeric-ties": Severity.INFO}
    small = tuple(replace(each, gap=0.05) for each in null)
    assert graded(replace(run, divergences=run.divergences + small))["outputs-differ"] is Severity.ERROR


def test_rounding_does_not_move_most_outputs_as_far_as_it_reaches(tmp_path: Path) -> None:
    """Each may be rounding by itself, four times its scale: not all of them. Another quantization does that."""
    run = run_of(tmp_path / "run", replace(QUICKER, differs_at=20), workloads=(make_workload(num_prompts=12),))
    far, near = (tuple(replace(each, gap=gap) for each in run.divergences) for gap in (0.8, 0.5))
    assert graded(replace(run, divergences=far))["outputs-differ"] is Severity.ERROR
    assert graded(replace(run, divergences=near)) == {"numeric-ties": Severity.INFO}
    # It leaves many outputs as they are: what counts is how far those lie apart that differ.
    same = {each.prompt_id for each in run.divergences[4:]}
    plain = {each.prompt_id: each for each in run.answers if each.arm == "plain"}
    few = replace(
        run,
        divergences=far[:4],
        answers=tuple(
            replace(each, text=plain[each.prompt_id].text, token_ids=plain[each.prompt_id].token_ids)
            if each.arm != "plain" and each.prompt_id in same
            else each
            for each in run.answers
        ),
    )
    assert graded(few)["outputs-differ"] is Severity.ERROR


def lengthened(run: Run, tokens: Callable[[int], int]) -> Run:
    """Return the run with longer answers of the candidate: so many tokens more for each number of a prompt."""

    def change(answer: Answer) -> Answer:
        more = tokens(int(answer.prompt_id.rpartition("-")[2]))
        if answer.arm == "plain" or not more:
            return answer
        *before, (time, count) = answer.timing.chunks
        timing = replace(answer.timing, chunks=(*before, (time, count + more)))
        return replace(answer, timing=timing, text=answer.text + more * " more")

    # Counters would give it away as traffic of others.
    windows = tuple(replace(w, counters=replace(w.counters, generation_tokens=None)) for w in run.turns)
    return bend_answers(replace(run, turns=windows), change)


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("runs") / "sampled"
    return run_of(path, conditions=(closed(1, 0.7),), workloads=(make_workload(num_prompts=16),), repeats=2)


def test_answers_that_are_longer_on_the_whole_hint_at_another_sampling(sampled: Run) -> None:
    run = lengthened(sampled, lambda _: 8)
    assert graded(run)["lengths-differ"] is Severity.WARNING
    assert "over 16 prompts" in findings(run)["lengths-differ"].message
    assert conclude_run(run).decision.comparisons[0].verdict is Verdict.INCONCLUSIVE, "not what was asked for"


def test_greedy_answers_that_one_side_cuts_decide_nothing(tmp_path: Path) -> None:
    """Where the tokens part, both are likely: only the lengths tell."""
    run = run_of(tmp_path / "run", workloads=(make_workload(num_prompts=16),))
    found = conclude_run(lengthened(run, lambda _: 8)).decision.comparisons[0]
    assert "lengths-differ" in {each.code for each in found.findings}
    assert found.verdict in (Verdict.INCONCLUSIVE, Verdict.BLOCKED)


def test_answers_of_other_lengths_are_what_sampling_gives(sampled: Run) -> None:
    assert "lengths-differ" not in codes(lengthened(sampled, lambda number: 20 if number % 3 else 0 * number))


def test_outputs_that_loop(good: Run) -> None:
    loop = (7, 8, 9) * 20

    def change(answer: Answer) -> Answer:
        return replace(answer, token_ids=loop if answer.prompt_id in ("code-0", "code-1") else answer.token_ids)

    run = bend_answers(good, change)
    assert codes(run) == {"outputs-loop"}
    (quality,) = conclude_run(run).quality
    assert (quality.num_outputs, quality.loop_share) == (8, 0.25)
    assert quality.distinct_4grams < 0.9


def test_outputs_that_are_all_cut_off(good: Run) -> None:
    cut = bend_answers(good, lambda answer: replace(answer, finish_reason="length"))
    assert graded(cut) == {"outputs-cut": Severity.INFO}


def test_outputs_that_were_to_have_a_recorded_length(good: Run) -> None:
    cut = bend_answers(good, lambda answer: replace(answer, finish_reason="length"))
    forced = tuple(
        replace(each, prompts=tuple(replace(prompt, ignore_eos=True) for prompt in each.prompts))
        for each in good.plan.workloads
    )
    assert codes(replace(cut, plan=replace(good.plan, workloads=forced))) == set()


def test_outputs_with_drawn_acceptance_are_not_compared(tmp_path: Path) -> None:
    """Everything differs, at every position, and that is as it should be."""
    run = run_of(tmp_path / "run", replace(QUICKER, differs_at=5, gap=2.0), repeats=2)
    plain, candidate = run.plan.arms
    assert candidate.spec is not None
    drawn = candidate.with_spec(replace(candidate.spec, options={"rejection_sample_method": "synthetic"}))
    synthetic = replace(run, plan=replace(run.plan, arms=(plain, drawn)))
    (found,) = conclude_run(synthetic).decision.comparisons
    assert (found.verdict, found.equal_outputs, found.findings) == ("adopt", None, ())


def test_estimated_counts(good: Run) -> None:
    assert codes(bend_answers(good, lambda answer: replace(answer, counts_exact=False))) == {"token-counts-estimated"}


def test_too_few_prompts(good: Run) -> None:
    few = tuple(answer for answer in good.answers if answer.prompt_id < "code-4")
    windows = tuple(replace(w, counters=replace(w.counters, generation_tokens=None)) for w in good.turns)
    assert "few-prompts" in codes(replace(good, answers=few, turns=windows))


def test_prompts_that_repeat_each_other(good: Run) -> None:
    (workload,) = good.plan.workloads
    same = tuple(replace(prompt, text=f"code {number // 2}") for number, prompt in enumerate(workload.prompts))
    run = replace(good, plan=replace(good.plan, workloads=(replace(workload, prompts=same),)))
    assert graded(run) == {"repeated-prompts": Severity.WARNING}
    assert "4 of 8 prompts" in findings(run)["repeated-prompts"].message


def test_random_tokens_show_no_acceptance(good: Run) -> None:
    noise = tuple(replace(each, random_tokens=True) for each in good.plan.workloads)
    run = replace(good, plan=replace(good.plan, workloads=noise))
    assert graded(run) == {"random-tokens": Severity.ERROR}


def test_random_tokens_are_as_good_as_any_where_the_acceptance_was_set(good: Run) -> None:
    noise = tuple(replace(each, random_tokens=True) for each in good.plan.workloads)
    plain, candidate = good.plan.arms
    assert candidate.spec is not None
    synthetic = candidate.with_spec(replace(candidate.spec, options={"rejection_sample_method": "synthetic"}))
    run = replace(good, plan=replace(good.plan, workloads=noise, arms=(plain, synthetic)))
    assert graded(run) == {"acceptance-drawn": Severity.INFO}
