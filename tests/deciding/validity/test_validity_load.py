"""A load that was not reached, waits in a queue, grows for ever or meets a cold server is not the load of its name."""

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
    opened,
    run_of,
)

from draftwise.core import Answer, Arm, Run, ServerLoad, Severity, TurnRecord, Verdict
from draftwise.deciding.conclusions import conclude_run

LONG = (make_workload(num_prompts=16, max_tokens=120),)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Run:
    conditions = (closed(1), closed(4), opened(4.0))
    return run_of(tmp_path_factory.mktemp("runs") / "good", conditions=conditions, repeats=2)


def test_loads_that_were_what_they_are_called(good: Run) -> None:
    assert codes(good) == set()


def test_withdrawn_requests_are_no_traffic_of_others(good: Run) -> None:
    """Fillers are cut off at the end of a turn, and the server writes a few tokens more for them."""
    assert any(not answer.measured for answer in good.answers)
    assert "other-traffic" not in codes(good)


def test_streams_that_stand_still(good: Run) -> None:
    """One of the four streams sends nothing: three quarters of the load."""
    kept: dict[int, int] = {}

    def is_kept(answer: Answer) -> bool:
        kept[answer.turn] = kept.get(answer.turn, -1) + 1
        return answer.condition != "c=4" or kept[answer.turn] % 4 > 0

    thin = replace(good, answers=tuple(filter(is_kept, good.answers)))
    found = findings(bend_turns(thin, without_counters))["load-not-reached"]
    assert found.severity is Severity.WARNING
    assert "at c=4" in found.message


def without_counters(window: TurnRecord) -> TurnRecord:
    return replace(window, counters=replace(window.counters, generation_tokens=None))


def queueing(folder: Path, *, plain: int | None, candidate: int | None, num_prompts: int = 16) -> Run:
    """Return a run with eight streams, on servers with a number of slots."""
    return run_of(
        folder / "run",
        replace(QUICKER, max_running=candidate),
        plain=replace(ENDING, max_running=plain),
        conditions=(closed(8),),
        workloads=(make_workload(num_prompts=num_prompts, max_tokens=120),),
        repeats=1,
    )


def test_streams_that_wait_in_the_server(tmp_path: Path) -> None:
    """Eight streams, places for two: three quarters of each request's time is the queue's."""
    run = queueing(tmp_path, plain=2, candidate=2)
    assert graded(run) == {"server-queues": Severity.WARNING}
    found = findings(run)["server-queues"]
    assert "never wrote more than 2 of 8 answers at a time" in found.message
    assert found.where == "c=8"


def test_a_shorter_queue_is_a_gain(tmp_path: Path) -> None:
    """Drafting shortens no first token, but the wait for a slot."""
    run = queueing(tmp_path, plain=2, candidate=2, num_prompts=80)
    (found,) = conclude_run(run).decision.comparisons
    assert found.ttft is not None
    assert found.ttft.high < 0.8
    assert found.verdict is Verdict.ADOPT


@pytest.mark.parametrize(("plain", "candidate"), [(2, None), (None, 2), (4, 2)])
def test_servers_that_queue_unlike_give_no_verdict(tmp_path: Path, plain: int | None, candidate: int | None) -> None:
    """What is measured is how many slots each of them has."""
    run = queueing(tmp_path, plain=plain, candidate=candidate)
    (found,) = conclude_run(run).decision.comparisons
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reason is not None
    assert found.reason.values["code"] == "server-queues"


def test_a_full_batch_is_no_queue(tmp_path: Path) -> None:
    """Every step is slower with eight streams, yet all of them are served."""
    run = run_of(
        tmp_path / "run",
        replace(QUICKER, row_s=0.001),
        plain=replace(ENDING, row_s=0.001),
        conditions=(closed(8),),
        workloads=LONG,
        repeats=1,
    )
    assert "server-queues" not in codes(run)


def test_copies_of_a_prompt_that_wait_longer_than_others_are_no_busy_machine(tmp_path: Path) -> None:
    """Of the copies of a turn every other one takes three times as long, in every repetition."""
    run = run_of(tmp_path / "run", conditions=(closed(16),), workloads=(make_workload(num_prompts=8),), repeats=3)
    copies: dict[tuple[int, str], int] = {}

    def wait(answer: Answer) -> Answer:
        copies[answer.turn, answer.prompt_id] = number = copies.get((answer.turn, answer.prompt_id), -1) + 1
        timing = answer.timing
        return replace(answer, timing=replace(timing, finished=timing.sent + (1 + 2 * (number % 2)) * timing.e2e_s))

    waited = bend_answers(run, wait)
    assert max(copies.values()) > 3
    assert "noisy-machine" not in codes(waited)
    slow = bend_answers(
        waited,
        lambda each: replace(each, timing=replace(each.timing, finished=each.timing.finished + (each.repeat == 2))),
    )
    assert "noisy-machine" in codes(slow)


def test_arrivals_faster_than_answers(tmp_path: Path) -> None:
    """Plain answers 2 requests in 0.32 s or so (6 a second) and gets 9 a second; speculation answers twice as many."""
    run = run_of(
        tmp_path / "run",
        replace(QUICKER, max_running=2),
        plain=replace(ENDING, max_running=2),
        conditions=(opened(9.0),),
        workloads=LONG,
        repeats=2,
    )
    assert graded(run) == {"overload": Severity.WARNING}
    message = findings(run)["overload"].message
    assert message.startswith("plain cannot keep up with 9/s")


@pytest.mark.parametrize("seed", [0, 1])
def test_a_busy_queue_that_does_not_grow(tmp_path: Path, seed: int) -> None:
    """Two thirds of what plain can do: bursts queue up and drain again."""
    run = run_of(
        tmp_path / "run",
        replace(QUICKER, max_running=2),
        plain=replace(ENDING, max_running=2),
        conditions=(opened(4.0),),
        workloads=LONG,
        repeats=2,
        seed=seed,
    )
    assert codes(run) == set()


def test_traffic_of_others(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", plain=replace(ENDING, foreign_tokens_per_s=50.0), repeats=1)
    assert graded(run) == {"other-traffic": Severity.ERROR}
    assert [each.verdict for each in conclude_run(run).decision.comparisons] == ["blocked"]


def test_requests_of_others(good: Run) -> None:
    def busy(window: TurnRecord) -> TurnRecord:
        if window.arm != "plain" or window.block % 4:
            return window
        return replace(window, before=ServerLoad(running=3.0, waiting=1.0))

    run = bend_turns(good, busy)
    assert graded(run) == {"other-requests": Severity.WARNING}
    assert "up to 3 running, 1 waiting" in findings(run)["other-requests"].message


@pytest.mark.parametrize(
    ("urls", "same"),
    [
        (("http://h:8000", "http://h:8000/v1/"), True),
        (("http://localhost:8000", "http://127.0.0.1:8000"), True),
        (("http://h:8000", "http://h:8001"), False),
        ((None, None), False),
    ],
)
def test_two_arms_at_one_address(good: Run, urls: tuple[str | None, str | None], same: bool) -> None:
    arms: tuple[Arm, ...] = tuple(replace(arm, url=url) for arm, url in zip(good.plan.arms, urls, strict=True))
    run = replace(good, plan=replace(good.plan, arms=arms))
    assert graded(run) == ({"same-server": Severity.ERROR} if same else {})


def test_failed_requests_are_left_out_and_said(good: Run) -> None:
    """One of a hundred or so, on one side; the prompt's other answers stay."""
    unlucky = next(
        a for a in good.answers if (a.condition, a.repeat, a.prompt_id) == ("c=4", 2, "code-3") and a.measured
    )
    failed = bend_answers(good, lambda answer: replace(answer, error="no pages") if answer is unlucky else answer)
    assert graded(failed) == {"failed-requests": Severity.WARNING}
    assert {each.num_prompts for each in conclude_run(failed).decision.comparisons} == {8}


def test_many_failed_requests_leave_a_selection(good: Run) -> None:
    def change(answer: Answer) -> Answer:
        lost = answer.arm == "candidate 1" and answer.condition == "c=4" and answer.prompt_id == "code-3"
        return replace(answer, error="no pages") if lost else answer

    run = bend_answers(good, change)
    assert graded(run) == {"failed-requests": Severity.WARNING, "too-many-failures": Severity.ERROR}
    assert "0% of plain's, 12% of candidate 1's" in findings(run)["too-many-failures"].message
    blocked = {each.condition.label for each in conclude_run(run).decision.comparisons if each.verdict == "blocked"}
    assert blocked == {"c=4"}


@pytest.mark.parametrize(("factor", "code"), [(1.4, "warm-up-short"), (1.6, "server-cold")])
def test_a_cold_start(good: Run, factor: float, code: str) -> None:
    """The first requests take so much longer, then it is warm."""
    first = {window.turn for window in sorted(good.turns, key=lambda window: window.turn)[:6]}

    def slow(answer: Answer) -> Answer:
        times = factor if answer.turn in first else 1.0
        timing = answer.timing
        return replace(answer, timing=replace(timing, finished=timing.sent + times * (timing.finished - timing.sent)))

    run = bend_answers(good, slow)
    assert graded(run) == {code: Severity.WARNING}
    assert f"took {factor:.2f}x the time" in findings(run)[code].message


def test_a_drift_is_no_cold_start(tmp_path: Path) -> None:
    """A machine that gets slower all the time; turns take turns, so that both arms meet it."""
    run = run_of(tmp_path / "run", replace(QUICKER, drift_per_s=0.01), plain=replace(ENDING, drift_per_s=0.01))
    assert "warm-up-short" not in codes(run)
