"""Events of a stream are no tokens where a server speculates: another unit is found, the same for all arms, or none."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.support.made_runs import gains, make_run, workload

from draftwise.core import Answer, Run, Severity, Verdict
from draftwise.deciding.conclusions import conclude_run
from draftwise.deciding.token_unit import count_soundly

CANDIDATE = "ngram k=3"


def run_of(factor: float) -> Run:
    """Servers that write the same texts, about four characters a token."""
    run = make_run({CANDIDATE: gains(factor)}, workloads=[workload(num_prompts=30)], repeats=1)

    def write(answer: Answer) -> Answer:
        number = int(answer.prompt_id.rpartition("-")[2])
        return replace(answer, text="word " * (40 + number), token_ids=())

    return replace(run, answers=tuple(map(write, run.answers)))


def without_usage(run: Run, arms: tuple[str, ...]) -> Run:
    """Return the run as a client sees it that counts each event of a stream as a token."""

    def strip(answer: Answer) -> Answer:
        if answer.arm not in arms:
            return answer
        events = tuple((time, 1) for time, _ in answer.timing.chunks)
        return replace(
            answer, timing=replace(answer.timing, chunks=events), counts_exact=False, total_exact=False, token_ids=()
        )

    return replace(run, answers=tuple(map(strip, run.answers)))


def without_counters(run: Run) -> Run:
    silent = (replace(turn, counters=replace(turn.counters, generation_tokens=None)) for turn in run.turns)
    return replace(run, turns=tuple(silent))


ARMS = [("plain", CANDIDATE), (CANDIDATE,), ("plain",)]


@pytest.mark.parametrize("arms", ARMS, ids=["both", "the candidate", "the baseline"])
@pytest.mark.parametrize("factor", [1.8, 1.27, 0.7])
def test_a_stream_without_usage_is_counted_by_counters(factor: float, arms: tuple[str, ...]) -> None:
    whole, stripped = run_of(factor), without_usage(run_of(factor), arms)
    truth, found = (conclude_run(each).decision.comparisons[0] for each in (whole, stripped))
    assert found.speedup.value == pytest.approx(truth.speedup.value, rel=1e-6)
    assert found.verdict is truth.verdict
    assert [each.code for each in count_soundly(stripped).findings] == ["unit-by-counters"]


@pytest.mark.parametrize("arm", ["plain", CANDIDATE])
def test_counters_that_tell_half_of_what_a_server_wrote_are_no_unit(arm: str) -> None:
    stripped = without_usage(run_of(1.0), ("plain", CANDIDATE))
    halved = tuple(
        replace(turn, counters=replace(turn.counters, generation_tokens=(turn.counters.generation_tokens or 0) // 2))
        if turn.arm == arm
        else turn
        for turn in stripped.turns
    )
    half = replace(stripped, turns=halved)
    assert [each.code for each in count_soundly(half).findings] == ["unit-by-text"]
    assert conclude_run(half).decision.comparisons[0].speedup.value == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("arms", ARMS, ids=["both", "the candidate", "the baseline"])
@pytest.mark.parametrize("factor", [1.8, 1.27, 0.7])
def test_without_counters_text_is_the_unit_of_all_arms(factor: float, arms: tuple[str, ...]) -> None:
    stripped = without_counters(without_usage(run_of(factor), arms))
    found = count_soundly(stripped)
    assert [each.code for each in found.findings] == ["unit-by-text"]
    comparison = conclude_run(stripped).decision.comparisons[0]
    truth = conclude_run(run_of(factor)).decision.comparisons[0]
    assert comparison.speedup.value == pytest.approx(truth.speedup.value, rel=0.02)
    assert comparison.verdict is not (Verdict.REJECT if factor > 1 else Verdict.ADOPT)


def test_without_text_there_is_no_verdict_either_way() -> None:
    for factor in (1.8, 0.5):
        stripped = without_counters(without_usage(run_of(factor), ("plain", CANDIDATE)))
        empty = replace(stripped, answers=tuple(replace(each, text="") for each in stripped.answers))
        (found,) = count_soundly(empty).findings
        assert (found.code, found.severity) == ("unit-unsound", Severity.ERROR)
        assert conclude_run(empty).decision.comparisons[0].verdict not in (Verdict.ADOPT, Verdict.REJECT)


def test_servers_that_count_the_same_texts_differently_are_measured_by_text() -> None:
    run = run_of(1.0)

    def double(answer: Answer) -> Answer:
        if answer.arm == "plain":
            return answer
        chunks = tuple((time, 2 * count) for time, count in answer.timing.chunks)
        return replace(answer, timing=replace(answer.timing, chunks=chunks))

    doubled = replace(run, answers=tuple(map(double, run.answers)))
    assert [each.code for each in count_soundly(doubled).findings] == ["unit-by-text"]
    assert conclude_run(doubled).decision.comparisons[0].speedup.value == pytest.approx(1.0, abs=0.03)


def test_sound_counts_are_left_as_they_are() -> None:
    run = run_of(1.5)
    assert count_soundly(run).run is run
    assert count_soundly(run).findings == ()


def count_more(run: Run, arm: str, count: Callable[[int], int]) -> Run:
    """Return the run with another number of tokens in each answer of an arm, all in its last chunk."""

    def change(answer: Answer) -> Answer:
        *chunks, (time, last) = answer.timing.chunks
        total = answer.timing.num_tokens
        timing = replace(answer.timing, chunks=(*chunks, (time, last + count(total) - total)))
        return replace(answer, timing=timing) if answer.arm == arm else answer

    return replace(run, answers=tuple(map(change, run.answers)))


@pytest.mark.parametrize("arm", ["plain", CANDIDATE])
@pytest.mark.parametrize("more", [1, 2, 10])
def test_a_closing_token_that_one_server_counts_is_no_speed(arm: str, more: int) -> None:
    run = count_more(run_of(1.0), arm, lambda tokens: tokens + more)
    assert [each.code for each in count_soundly(run).findings] == ["unit-by-text"]
    truth, found = (conclude_run(each).decision.comparisons[0].speedup.value for each in (run_of(1.0), run))
    assert found == pytest.approx(truth, rel=0.003)


def write_own(run: Run) -> Run:
    """Return the run with texts that no two answers have in common, as above temperature 0."""
    written = (replace(each, text=f"{each.text}{each.arm[0]}") for each in run.answers)
    return replace(run, answers=tuple(written))


@pytest.mark.parametrize("times", [0.75, 1.3])
def test_another_tokenizer_is_told_by_texts_that_differ_too(times: float) -> None:
    run = count_more(write_own(run_of(1.0)), CANDIDATE, lambda tokens: round(times * tokens))
    assert [each.code for each in count_soundly(run).findings] == ["unit-by-text"]
    truth, found = (conclude_run(each).decision.comparisons[0].speedup.value for each in (run_of(1.0), run))
    assert found == pytest.approx(truth, rel=0.02)


def test_texts_that_differ_with_as_much_in_a_token_are_counted_as_they_are() -> None:
    run = write_own(run_of(1.5))
    assert count_soundly(run).run is run
