"""The load generator's own delay is told from the server's, by what it is a share of."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.support.made_runs import with_context
from tests.support.validity import bend_answers, bend_turns, closed, codes, findings, graded, opened, run_of

from draftwise.core import Answer, Run, Severity, TurnRecord


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """40 to 47 tokens a request, 4 ms between the chunks of plain, 20 ms to the first."""
    return run_of(tmp_path_factory.mktemp("runs") / "good", conditions=(closed(2),))


def with_health(run: Run, **health: Any) -> Run:
    return bend_turns(run, lambda window: replace(window, client=replace(window.client, **health)))


def with_busy(run: Run, share: float, processes: int = 1) -> Run:
    def change(window: TurnRecord) -> TurnRecord:
        cpu_s = share * window.wall_s * processes
        return replace(window, client=replace(window.client, cpu_s=cpu_s, processes=processes))

    return bend_turns(with_context(run, hardware={"cpu": "imaginary", "cores": 256}), change)


@pytest.mark.parametrize(
    ("share", "found"),
    [
        (0.5, {}),
        (0.8, {"client-busy": Severity.WARNING}),
        (0.97, {"client-saturated": Severity.ERROR}),
    ],
)
@pytest.mark.parametrize("processes", [1, 4])
def test_its_cpu_counts_per_process(good: Run, share: float, processes: int, found: Mapping[str, Severity]) -> None:
    assert graded(with_busy(good, share, processes)) == found


def test_one_slow_turn_is_not_the_rule(good: Run) -> None:
    first = good.turns[0].turn
    late = {True: 1.0, False: 0.0}
    hiccup = bend_turns(good, lambda w: replace(w, client=replace(w.client, loop_delay_p99_s=late[w.turn == first])))
    assert codes(hiccup) == set()


@pytest.mark.parametrize(
    ("delay_s", "found"),
    [
        (0.0005, {}),
        (0.002, {"client-reads-late": Severity.WARNING}),
        (0.012, {"client-reads-late": Severity.WARNING}),
        (0.022, {"client-reads-late": Severity.ERROR}),
    ],
)
def test_late_readings_are_a_share_of_the_gaps(good: Run, delay_s: float, found: Mapping[str, Severity]) -> None:
    assert graded(with_health(good, loop_delay_p99_s=delay_s)) == found


def test_arrivals_that_the_kernel_times_are_not_read_late(good: Run) -> None:
    """Only chunks that come closer together than the loop looks are merged; requests take 0.1 s or so."""
    linux = with_context(good, software={"os": "Linux-6.8-x86_64"})
    assert codes(with_health(linux, loop_delay_p99_s=0.002)) == set()
    assert graded(with_health(linux, loop_delay_p99_s=0.030)) == {"client-reads-late": Severity.WARNING}
    assert "inter-token" in findings(with_health(linux, loop_delay_p99_s=0.030))["client-reads-late"].message
    assert graded(with_health(linux, loop_delay_p99_s=0.200)) == {"client-reads-late": Severity.ERROR}
    arms = tuple(replace(arm, url="https://far.example") for arm in good.plan.arms[:1]) + good.plan.arms[1:]
    behind_tls = replace(linux, plan=replace(linux.plan, arms=arms))
    assert graded(with_health(behind_tls, loop_delay_p99_s=0.002)) == {"client-reads-late": Severity.WARNING}


def test_the_numbers_are_in_the_message(good: Run) -> None:
    message = findings(with_health(good, loop_delay_p99_s=0.002))["client-reads-late"].message
    assert "up to 2.0 ms late" in message
    assert "with 4.0 ms between chunks and 20 ms to the first" in message


@pytest.fixture(scope="module")
def arriving(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_of(tmp_path_factory.mktemp("runs") / "arriving", conditions=(opened(4.0),), repeats=1)


@pytest.mark.parametrize(("lag_s", "found"), [(0.002, {}), (0.006, {"client-sends-late": Severity.WARNING})])
def test_late_sendings_are_a_share_of_the_first_token(
    arriving: Run, lag_s: float, found: Mapping[str, Severity]
) -> None:
    assert graded(with_health(arriving, send_lag_p99_s=lag_s)) == found


def test_sendings_that_are_usually_late_are_what_is_measured(arriving: Run) -> None:
    """Everything was to be sent 30 ms earlier: half of the time to first token is the client's."""

    def change(answer: Answer) -> Answer:
        return replace(answer, timing=replace(answer.timing, intended=answer.timing.start - 0.03))

    late = bend_answers(arriving, change)
    assert graded(late)["client-sends-late"] is Severity.ERROR
    assert "30.0 ms after their time" in findings(late)["client-sends-late"].message


def test_cores_taken_from_a_server_on_the_same_machine(good: Run) -> None:
    busy = bend_turns(good, lambda w: replace(w, client=replace(w.client, cpu_s=w.wall_s / 2)))
    assert graded(busy) == {"client-beside-server": Severity.WARNING}
    assert "0.50 of the 2 cores" in findings(busy)["client-beside-server"].message


def test_cores_are_its_own_when_the_servers_are_elsewhere(good: Run) -> None:
    arms = tuple(replace(arm, url=f"http://gpu{number}.example:8000") for number, arm in enumerate(good.plan.arms))
    far = replace(good, plan=replace(good.plan, arms=arms))
    assert codes(bend_turns(far, lambda w: replace(w, client=replace(w.client, cpu_s=w.wall_s / 2)))) == set()
