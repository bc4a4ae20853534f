"""An adaptive run rests where the verdict stands, finds the known crossover, and goes on where it was cut off."""

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support import virtual_time
from tests.support.fake_server import FakeScript, find_crossover
from tests.support.measuring import PLAIN, make_plan, make_session, make_workload

from draftwise.core import BackendError, ClosedLoop, Condition, Run
from draftwise.deciding.conclusions import conclude_run, gather_evidence
from draftwise.runs import RunDirectory

BATCHING = FakeScript(first_token_s=0.004, step_s=0.004, row_s=0.0002, knee=12, jitter=0.02, seed=3)
SPECULATIVE = replace(BATCHING, k=3, rates=(0.7, 0.5, 0.35), step_s=0.0048, seed=4)


def at(*concurrencies: int) -> tuple[Condition, ...]:
    return tuple(Condition(load=ClosedLoop(concurrency=each)) for each in concurrencies)


def run_sweep(path: Path, *scripts: FakeScript, resume: bool = False, **settings) -> Run:
    plan = make_plan(len(scripts) - 1, adaptive=True, **settings)
    virtual_time.run(make_session(path, plan, scripts, resume=resume).run())
    return RunDirectory(path).read()


def test_a_candidate_that_is_behind_leaves_the_race_and_the_best_goes_on(tmp_path: Path) -> None:
    fast, equal = (
        replace(PLAIN, k=1, accepted=(1,), jitter=0.02),
        replace(PLAIN, k=1, accepted=(0, 1), step_s=0.0058, jitter=0.2),
    )
    run = run_sweep(tmp_path / "run", replace(PLAIN, jitter=0.02), fast, equal, repeats=5)
    turns = Counter(turn.arm for turn in run.turns)
    assert turns["candidate 2"] == 6, "the first look"
    assert turns["candidate 1"] == turns["plain"] >= 13, "the look at a third of the plan"
    assert [(each.candidate, each.reason) for each in run.settled] == [
        ("candidate 2", "behind"),
        ("candidate 1", "settled"),
    ]
    decision = conclude_run(run).decision
    assert decision.unmeasured == ()
    assert [each.reason.code for each in decision.comparisons if each.reason is not None] == ["gain", "behind"]


def test_a_settled_cell_has_spent_error_only_where_it_was_looked_at(tmp_path: Path) -> None:
    fast = replace(PLAIN, k=1, accepted=(1,), jitter=0.02)
    run = run_sweep(tmp_path / "run", replace(PLAIN, jitter=0.02), fast, repeats=5)
    ((pairs, planned),) = [(each.pairs, each.planned) for each in run.looks]
    assert planned == pytest.approx(40, abs=2)
    (estimates,) = gather_evidence(run).estimates
    assert (estimates.done, estimates.is_end) == (pairs, False)
    assert estimates.level < 0.002
    (alone,) = gather_evidence(replace(run, looks=(), settled=())).estimates
    assert alone.level == pytest.approx(0.05)


def test_the_time_of_settled_cells_goes_to_others_and_what_is_left_to_the_best(tmp_path: Path) -> None:
    """One workload is settled at once, the other is noisy: it gets the time, and nothing of it is left over."""
    plain, fast = replace(PLAIN, jitter=0.02), replace(PLAIN, k=1, accepted=(1,), jitter=0.02)
    slow = replace(PLAIN, k=1, accepted=(0,), jitter=0.02)
    workloads = (make_workload("a", 400), make_workload("b", 400))
    plan = make_plan(2, adaptive=True, workloads=workloads, minutes=1.0)
    session = make_session(tmp_path / "run", plan, (plain, fast, slow), budget_s=60.0)
    clock: list[float] = []

    async def work() -> None:
        await session.run()
        clock.append(asyncio.get_running_loop().time())

    virtual_time.run(work())
    run = RunDirectory(tmp_path / "run").read()
    assert clock[0] > 0.85 * 60.0
    assert {each.reason for each in run.settled if each.candidate == "candidate 2"} <= {"behind", "no-gain"}
    last = max(run.turns, key=lambda each: each.turn)
    assert last.arm in ("plain", "candidate 1")
    asked = Counter((turn.workload, turn.arm) for turn in run.turns)
    assert asked["a", "candidate 1"] == pytest.approx(asked["b", "candidate 1"], abs=8)
    assert asked["a", "candidate 2"] < 10


def test_without_adaptation_every_pass_is_measured(tmp_path: Path) -> None:
    plan = make_plan(repeats=4)
    virtual_time.run(make_session(tmp_path / "run", plan, (PLAIN, replace(PLAIN, k=1, accepted=(1,)))).run())
    run = RunDirectory(tmp_path / "run").read()
    assert len(run.turns) == 2 * 8 * 4
    assert run.settled == ()


def test_the_crossover_is_bisected_and_lies_in_its_interval(tmp_path: Path) -> None:
    truth = find_crossover(BATCHING, SPECULATIVE)
    assert 4 < truth < 32
    workloads = (make_workload(num_prompts=16, max_tokens=24),)
    run = run_sweep(tmp_path / "run", BATCHING, SPECULATIVE, conditions=at(1, 32), workloads=workloads, repeats=3)
    assert run.added, "between 1 and 32 nothing is known without a measurement"
    assert all(1 < (each.concurrency or 0) < 32 for each in run.added)
    (crossover,) = conclude_run(run).decision.crossovers
    # (While a request waits for its first token it is in no batch: a few percent more streams fill the same batch.)
    assert crossover.low <= 1.03 * truth
    assert truth <= crossover.high
    assert crossover.high / crossover.low < 3


def test_nothing_is_added_where_one_setting_wins_everywhere(tmp_path: Path) -> None:
    always = replace(BATCHING, k=1, rates=(0.9,), row_s=0.0)
    run = run_sweep(tmp_path / "run", BATCHING, always, conditions=at(1, 8), repeats=2)
    assert run.added == ()


def test_a_sweep_that_a_dying_server_ended_goes_on_without_measuring_twice(tmp_path: Path) -> None:
    path, settings = tmp_path / "run", {"conditions": at(1, 16), "repeats": 3}
    with pytest.raises(BackendError):
        run_sweep(path, BATCHING, replace(SPECULATIVE, dies_after=150), **settings)
    before = RunDirectory(path).read()
    assert before.turns
    run = run_sweep(path, BATCHING, SPECULATIVE, resume=True, **settings)
    keys = [(w.arm, w.workload, w.condition, w.repeat, w.block) for w in run.turns]
    assert len(set(keys)) == len(keys)
    assert run.turns[: len(before.turns)] == before.turns
    assert conclude_run(run).decision.unmeasured == ()
    again = run_sweep(path, BATCHING, SPECULATIVE, resume=True, **settings)
    assert again == run
