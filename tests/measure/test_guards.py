"""A run without a fault has no finding, whatever its loads are, and an error takes away just what it is about."""

from dataclasses import replace
from pathlib import Path

import pytest
from guarding import bend_answers, bend_windows, closed, codes, opened, run_of

from draftwise.core import Answer, Run, Verdict
from draftwise.measure.decide import decide


def test_a_good_run_has_no_finding(tmp_path: Path) -> None:
    conditions = (closed(1), closed(4), closed(1, 0.7), opened(5.0))
    assert codes(run_of(tmp_path / "run", conditions=conditions, repeats=2)) == set()


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_of(tmp_path_factory.mktemp("runs") / "good", conditions=(closed(1), closed(4)))


def test_an_error_at_one_load_blocks_that_load_only(good: Run) -> None:
    assert {each.verdict for each in decide(good).comparisons} == {Verdict.ADOPT}
    late = bend_windows(
        good,
        lambda w: replace(w, client=replace(w.client, loop_delay_p99_s=0.1 if w.condition == "c=4" else 0.0)),
    )
    verdicts = {each.condition.label: each.verdict for each in decide(late).comparisons}
    assert verdicts == {"c=1": Verdict.ADOPT, "c=4": Verdict.BLOCKED}


def test_slow_tail_prompts_make_an_adoption_mixed(good: Run) -> None:
    def slow(answer: Answer) -> Answer:
        if answer.arm == "plain" or answer.prompt_id != "code-7":
            return answer
        sent = answer.timing.sent
        chunks = tuple((sent + 3 * (time - sent), count) for time, count in answer.timing.chunks)
        return replace(answer, timing=replace(answer.timing, chunks=chunks, finished=chunks[-1][0]))

    found = decide(bend_answers(good, slow)).comparisons[0]
    assert found.verdict is Verdict.MIXED
    assert found.tail is not None
    assert found.tail > 1.2
    assert found.share_slower == pytest.approx(1 / 8)
