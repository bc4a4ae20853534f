"""What a machine does to a run is told from its counters, and only from their growth while the run was on."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.support.validity import bend_answers, bend_turns, codes, findings, graded, run_of

from draftwise.core import Answer, Run, Severity, TurnRecord

Device = dict[str, Any]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_of(tmp_path_factory.mktemp("runs") / "good")


def with_device(run: Run, make: Callable[[int, TurnRecord], Device]) -> Run:
    """Return the run with a machine's state after each turn of 1 s."""
    number = {window.turn: n for n, window in enumerate(run.turns)}

    def change(window: TurnRecord) -> TurnRecord:
        n = number[window.turn]
        device = {"monotonic_s": 1000.0 + n, **make(n, window)}
        for each in device.get("gpus", ()):
            each.setdefault("read_s", 1000.0 + n)
        return replace(window, device=device, wall_s=1.0)

    return bend_turns(run, change)


def cpu(**counters: float) -> Device:
    return {"cpu": {"cores": 4, **counters}}


def gpu(**state: Any) -> Device:
    return {"gpus": [{"index": 0, "sm_mhz": 1980, "reasons": [], **state}]}


def test_a_machine_that_serves_its_own_run(good: Run) -> None:
    """Its counters were not zero when the run began."""
    quiet = with_device(
        good,
        lambda n, _: (
            cpu(
                busy_s=5e5 + 1.3 * n,
                own_s=7.0 + 1.2 * n,
                steal_s=900.0,
                quota_stopped_s=55.0,
                thermal_stops=12,
                mhz=3400,
            )
            | gpu(limited_s={"sw_power_cap": 1e4, "sw_thermal_slowdown": 7.0}, reasons=["sw_power_cap"])
        ),
    )
    assert codes(quiet) == set()


@pytest.mark.parametrize(
    ("code", "state", "number"),
    [
        ("machine-shared", lambda n: cpu(busy_s=1.9 * n, own_s=1.1 * n), "0.80 of this machine's 4 cores"),
        ("cpu-stolen", lambda n: cpu(steal_s=0.2 * n), "5.0%"),
        ("cpu-quota", lambda n: cpu(quota_stopped_s=0.05 * n), "0.05 s in every second"),
        ("cpu-throttled", lambda n: cpu(thermal_stops=3 + (n > 20)), "1 time."),
        ("gpu-throttled", lambda n: gpu(limited_s={"hw_thermal_slowdown": 0.03 * n}), "3.0% of the time"),
        ("gpu-throttled", lambda n: gpu(reasons=["hw_slowdown"] if n % 12 == 0 else []), "at 4 of 48 readings"),
        ("clock-fell", lambda n: gpu(sm_mhz=1980 - 8 * n), "GPU clock fell"),
        ("clock-fell", lambda n: cpu(mhz=3400 if n < 24 else 2600), "from 3400 to 2600 MHz"),
    ],
)
def test_what_disturbs_is_a_warning(good: Run, code: str, state: Callable[[int], Device], number: str) -> None:
    run = with_device(good, lambda n, _: state(n))
    found = graded(run)
    # What takes much of a single turn also sets its paired block aside.
    found.pop("disturbed-blocks", None)
    assert found == {code: Severity.WARNING}
    assert number in findings(run)[code].message


def test_the_power_limit_is_part_of_the_truth(good: Run) -> None:
    """Only the speculating arm reaches it: half of its turns' time."""
    capped = {window.turn: 0.0 for window in good.turns}
    total = 0.0
    for window in good.turns:
        total += 0.5 * (window.arm != "plain")
        capped[window.turn] = total
    run = with_device(good, lambda _, window: gpu(limited_s={"sw_power_cap": capped[window.turn]}))
    assert graded(run) == {"gpu-power-capped": Severity.INFO}
    assert "(in long turns: candidate 1 50%, plain 0%)" in findings(run)["gpu-power-capped"].message


def test_gpus_that_are_not_asked_after_every_turn(good: Run) -> None:
    """The same reading stays for four turns, so that nobody knows which arm it was."""
    run = with_device(good, lambda n, _: gpu(limited_s={"sw_power_cap": 0.5 * (n // 4 * 4)}, read_s=float(n // 4 * 4)))
    assert graded(run) == {"gpu-power-capped": Severity.INFO}
    assert "power limit for 50% of the time. Its clock" in findings(run)["gpu-power-capped"].message


def test_what_a_gpu_did_between_two_sessions_is_not_asked(good: Run) -> None:
    run = with_device(
        good, lambda n, _: gpu(limited_s={"hw_thermal_slowdown": 3e3 * (n >= 24)}, read_s=n + 9e3 * (n >= 24))
    )
    assert codes(run) == set()


def test_an_idle_gpu_is_not_a_slow_one(good: Run) -> None:
    idle = with_device(good, lambda n, _: gpu(sm_mhz=1980 if n < 24 else 345, reasons=["gpu_idle"] if n >= 24 else []))
    assert codes(idle) == set()


def test_servers_of_others_may_use_the_machine(good: Run) -> None:
    """A server that draftwise did not start is none of its children, so its CPU cannot be told from a stranger's."""
    arms = tuple(replace(arm, url=f"http://127.0.0.1:{8000 + n}") for n, arm in enumerate(good.plan.arms))
    run = replace(good, plan=replace(good.plan, arms=arms))
    assert codes(with_device(run, lambda n, _: cpu(busy_s=1.9 * n, own_s=1.1 * n))) == set()


def test_a_new_session_counts_anew(good: Run) -> None:
    """After a reboot every counter is small again; nothing is concluded across it."""
    run = with_device(
        good, lambda n, _: cpu(steal_s=900.0 if n < 24 else 0.0, busy_s=1.0 * (n % 24), own_s=1.0 * (n % 24))
    )
    assert codes(run) == set()


def test_what_others_did_between_two_sessions_is_not_asked(good: Run) -> None:
    """An hour lies between them, in which the machine worked for somebody else."""
    run = with_device(
        good,
        lambda n, _: cpu(busy_s=n + 9e3 * (n >= 24), own_s=n + 5 * (n >= 24)) | {"monotonic_s": n + 3600.0 * (n >= 24)},
    )
    assert codes(run) == set()


def with_jump(run: Run, jump_s: float) -> Run:
    turn = run.turns[5].turn
    return bend_turns(run, lambda w: replace(w, client=replace(w.client, clock_jump_s=jump_s * (w.turn == turn))))


def test_clocks_that_are_slewed_do_not_jump(good: Run) -> None:
    assert codes(with_jump(good, 0.02)) == set()


@pytest.mark.parametrize(("jump_s", "told"), [(-0.4, "-0.40 s"), (1800.0, "+1800.00 s")])
def test_clocks_that_jump(good: Run, jump_s: float, told: str) -> None:
    run = with_jump(good, jump_s)
    assert graded(run) == {"clock-jump": Severity.WARNING}
    assert told in findings(run)["clock-jump"].message


def slowed(answer: Answer) -> Answer:
    factor = 2 if answer.repeat == 2 else 1
    sent, finished = answer.timing.sent, answer.timing.finished
    return replace(answer, timing=replace(answer.timing, finished=sent + factor * (finished - sent)))


def test_a_busy_machine(good: Run) -> None:
    assert codes(bend_answers(good, slowed)) == {"noisy-machine"}
