"""Guards on runs whose raw readings are bent by hand: each one notices its own fault and nothing else."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from measuring import FASTER, PLAIN, make_plan, make_session

from draftwise.backends import virtual_time
from draftwise.core import Answer, ClientHealth, Run, Window
from draftwise.measure.decide import decide
from draftwise.measure.guards import text_quality
from draftwise.measure.run_directory import RunDirectory


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("runs") / "good"
    virtual_time.run(make_session(path, make_plan(), (PLAIN, FASTER)).run())
    return RunDirectory(path).read()


def codes(run: Run) -> set[str]:
    decision = decide(run)
    of_cells = {finding.code for each in decision.comparisons for finding in each.findings}
    return of_cells | {finding.code for finding in decision.findings}


def bend_answers(run: Run, change: Callable[[Answer], Answer]) -> Run:
    return replace(run, answers=tuple(map(change, run.answers)))


def bend_windows(run: Run, change: Callable[[Window], Window]) -> Run:
    return replace(run, windows=tuple(map(change, run.windows)))


def with_hits(window: Window, share: float) -> Window:
    hits = int(share * (window.counters.prefix_queries or 0))
    return replace(window, counters=replace(window.counters, prefix_hits=hits))


def test_a_good_run_has_no_finding(good: Run) -> None:
    assert codes(good) == set()


def test_lost_prefix_hits(good: Run) -> None:
    bent = bend_windows(good, lambda w: with_hits(w, 0.5 if w.arm == "plain" else 0.1))
    assert codes(bent) == {"prefix-hits-lost"}


def test_prefix_hits_of_later_passes(good: Run) -> None:
    assert codes(bend_windows(good, lambda w: with_hits(w, 0.9 if w.repeat > 1 else 0))) == {"prefix-cache-warm"}


def test_a_busy_load_generator(good: Run) -> None:
    assert codes(bend_windows(good, lambda w: replace(w, client=ClientHealth(cpu_s=w.wall_s / 2)))) == {
        "client-saturated"
    }


def test_traffic_of_others(good: Run) -> None:
    def more(window: Window) -> Window:
        generated = (window.counters.generation_tokens or 0) * 2
        return replace(window, counters=replace(window.counters, generation_tokens=generated))

    bent = bend_windows(good, lambda w: more(w) if w.arm == "plain" else w)
    assert codes(bent) == {"other-traffic"}
    assert [each.verdict for each in decide(bent).comparisons] == ["blocked"]


def test_failed_requests_are_left_out_and_said(good: Run) -> None:
    failed = bend_answers(good, lambda a: replace(a, error="no pages") if a.prompt_id == "code-3" else a)
    assert codes(failed) == {"failed-requests"}
    assert decide(failed).comparisons[0].num_prompts == 7


def with_more_accepted(window: Window) -> Window:
    spec = window.counters.spec
    accepted = spec.num_accepted_tokens + 8
    return replace(window, counters=replace(window.counters, spec=replace(spec, num_accepted_tokens=accepted)))


def test_better_drafts_for_the_same_answers_are_memory(good: Run) -> None:
    bent = bend_windows(good, lambda w: with_more_accepted(w) if w.repeat > 1 and w.arm != "plain" else w)
    assert codes(bent) == {"repeated-prompts-warm-cache"}


def test_better_drafts_for_other_answers_are_not(good: Run) -> None:
    changed = {a.turn for a in good.answers if a.arm != "plain" and a.repeat > 1 and a.prompt_id > "code-4"}
    bent = bend_windows(good, lambda w: with_more_accepted(w) if w.turn in changed else w)
    bent = bend_answers(bent, lambda a: replace(a, token_ids=(*a.token_ids, 1)) if a.turn in changed else a)
    assert "repeated-prompts-warm-cache" not in codes(bent)


def test_a_busy_machine(good: Run) -> None:
    def slow(answer: Answer) -> Answer:
        factor = 2 if answer.repeat == 2 else 1
        sent, finished = answer.timing.sent, answer.timing.finished
        return replace(answer, timing=replace(answer.timing, finished=sent + factor * (finished - sent)))

    assert codes(bend_answers(good, slow)) == {"noisy-machine"}


def test_estimated_counts(good: Run) -> None:
    assert codes(bend_answers(good, lambda a: replace(a, counts_exact=False))) == {"token-counts-estimated"}


def test_too_few_prompts(good: Run) -> None:
    few = tuple(answer for answer in good.answers if answer.prompt_id < "code-4")
    assert "few-prompts" in codes(replace(good, answers=few))


def test_outputs_that_loop(good: Run) -> None:
    loop = (7, 8, 9) * 20

    def change(answer: Answer) -> Answer:
        return replace(answer, token_ids=loop if answer.prompt_id in ("code-0", "code-1") else answer.token_ids)

    bent = bend_answers(good, change)
    assert codes(bent) == {"outputs-loop"}
    (quality,) = text_quality(bent)
    assert (quality.num_outputs, quality.loop_share) == (8, 0.25)
    assert quality.distinct_4grams < 0.9


def test_an_unstable_plain_server(good: Run) -> None:
    def change(answer: Answer) -> Answer:
        odd = (answer.arm, answer.repeat, answer.prompt_id) == ("plain", 2, "code-0")
        return replace(answer, token_ids=answer.token_ids[:-1]) if odd else answer

    assert codes(bend_answers(good, change)) == {"plain-unstable"}


def test_an_answer_that_plain_gave_in_any_pass_is_no_difference(good: Run) -> None:
    def change(answer: Answer) -> Answer:
        odd = (answer.arm == "plain" and answer.repeat == 2) or (answer.arm != "plain" and answer.repeat == 3)
        return replace(answer, token_ids=answer.token_ids[:-1]) if odd else answer

    bent = bend_answers(good, change)
    assert codes(bent) == {"plain-unstable"}
    assert decide(bent).comparisons[0].equal_outputs == (8, 8)


def test_a_server_without_counters_proves_nothing(good: Run) -> None:
    def silent(window: Window) -> Window:
        return replace(window, counters=type(window.counters)())

    bent = bend_windows(good, lambda w: silent(w) if w.arm != "plain" else w)
    assert codes(bent) == {"not-speculating"}


def test_slow_tail_prompts_make_an_adoption_mixed(good: Run) -> None:
    def slow(answer: Answer) -> Answer:
        if answer.arm == "plain" or answer.prompt_id != "code-7":
            return answer
        sent = answer.timing.sent
        chunks = tuple((sent + 3 * (time - sent), count) for time, count in answer.timing.chunks)
        return replace(answer, timing=replace(answer.timing, chunks=chunks, finished=chunks[-1][0]))

    (found,) = decide(bend_answers(good, slow)).comparisons
    assert found.verdict == "mixed"
    assert found.tail is not None
    assert found.tail > 1.2
    assert found.share_slower == pytest.approx(1 / 8)
