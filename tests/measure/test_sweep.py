"""An adaptive run rests where the verdict stands, finds the known crossover, and goes on where it was cut off."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support import virtual_time
from tests.support.fake_server import FakeScript, find_crossover
from tests.support.measuring import PLAIN, make_plan, make_session, make_workload

from draftwise.core import BackendError, ClosedLoop, Condition, Run
from draftwise.deciding.conclusions import conclude_run
from draftwise.runs import RunDirectory

BATCHING = FakeScript(first_token_s=0.004, step_s=0.004, row_s=0.0002, knee=12, jitter=0.02, seed=3)
SPECULATIVE = replace(BATCHING, k=3, rates=(0.7, 0.5, 0.35), step_s=0.0048, seed=4)


def at(*concurrencies: int) -> tuple[Condition, ...]:
    return tuple(Condition(load=ClosedLoop(concurrency=each)) for each in concurrencies)


def run_sweep(path: Path, *scripts: FakeScript, resume: bool = False, **settings) -> Run:
    plan = make_plan(len(scripts) - 1, adaptive=True, **settings)
    virtual_time.run(make_session(path, plan, scripts, resume=resume).run())
    return RunDirectory(path).read()


def test_a_cell_rests_when_its_verdict_stands_and_an_open_one_goes_on(tmp_path: Path) -> None:
    fast, equal = (
        replace(PLAIN, k=1, accepted=(1,), jitter=0.02),
        replace(PLAIN, k=1, accepted=(0, 1), step_s=0.0058, jitter=0.2),
    )
    run = run_sweep(tmp_path / "run", replace(PLAIN, jitter=0.02), fast, equal, repeats=5)
    passes = {arm: max(w.repeat for w in run.turns if w.arm == arm) for arm in ("plain", "candidate 1", "candidate 2")}
    assert passes == {"plain": 5, "candidate 1": 2, "candidate 2": 5}
    assert [(each.candidate, each.passes) for each in run.settled] == [("candidate 1", 2)]
    assert conclude_run(run).decision.unmeasured == ()


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
