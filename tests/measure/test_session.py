"""A session chooses how much to measure, and takes its servers down whatever happens."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support import virtual_time
from tests.support.made_windows import make_counters
from tests.support.measuring import FASTER, PLAIN, Recorder, make_plan, make_session, make_workload
from tests.support.production import PLAIN as SERVER_PLAIN
from tests.support.production import SPEC as SERVER_SPEC

from draftwise.core import BackendError, ClosedLoop, Condition, Finding, Load, OpenLoop, Phase, Prompt, Replay, Workload
from draftwise.measure import readiness
from draftwise.measure.readiness import WarmUp
from draftwise.measure.session import Session
from draftwise.measure.time_estimate import TimeEstimate, expect_seconds
from draftwise.runs import RunDirectory


@pytest.mark.parametrize("streams", [1, 4])
def test_the_time_told_is_the_time_it_takes(tmp_path: Path, streams: int) -> None:
    """Answers are of many lengths: under a load the last ones keep a turn going."""
    plan = make_plan(
        workloads=(make_workload(num_prompts=16, max_tokens=60),),
        conditions=(Condition(load=ClosedLoop(concurrency=streams)),),
    )
    scripts = [replace(each, shortest=0.1, first_token_s=1e-4) for each in (PLAIN, FASTER)]
    progress = Recorder()
    session = make_session(tmp_path / "run", plan, scripts, budget_s=120.0, progress=progress)
    virtual_time.run(session.run())
    run = RunDirectory(tmp_path / "run").read()
    taken = sum(window.wall_s for window in run.turns)
    assert run.estimates[0].left_s == pytest.approx(taken, rel=0.1)


@pytest.mark.parametrize(
    ("load", "seconds"),
    [
        (OpenLoop.steady(2.0), 8.0),  # 2 prompts, once a pass: 2 arms, 4 passes, 1 s each
        (OpenLoop.steady(0.01), 1600.0),  # the one request of a turn comes after 100 s, so that 2 turns make a pass
        (OpenLoop(phases=(Phase(start_per_s=1, end_per_s=1, duration_s=2),)), 16.0),
        (Replay(speed=2), 20.0),
    ],
)
def test_requests_that_come_when_they_come_take_their_time(load: Load, seconds: float) -> None:
    prompts = tuple(Prompt(id=str(i), text="x", max_tokens=1, arrival_s=5.0 * i) for i in range(2))
    workload = Workload(name="w", source="", prompts=prompts)
    condition = Condition(load=load)
    plan = make_plan(workloads=(workload,), conditions=(condition,), repeats=4, turn_s=1.0)
    pace = dict.fromkeys((("plain", condition.label), ("candidate 1", condition.label)), 1e-6)
    estimate = TimeEstimate(pace=pace, shares={"w": 1.0}, turn_s=plan.turn_s)
    assert expect_seconds(plan, estimate) == pytest.approx(seconds)


def test_prompts_are_asked_in_their_order_until_the_time_is_over(tmp_path: Path) -> None:
    progress = Recorder()
    plan = make_plan(workloads=(make_workload(num_prompts=200),), minutes=1 / 3)
    session = make_session(tmp_path / "run", plan, (PLAIN, FASTER), budget_s=20.0, progress=progress)
    virtual_time.run(session.run())
    run = RunDirectory(tmp_path / "run").read()
    assert session.plan == run.plan
    assert len(run.plan.workloads[0].prompts) == 200
    asked = [answer.prompt_id for answer in run.answers if (answer.arm, answer.repeat) == ("plain", 1)]
    assert 20 < len(asked) < 200
    assert asked == [prompt.id for prompt in run.plan.workloads[0].prompts[: len(asked)]]
    assert progress.told[0].startswith("2 arms x as many of 200 code prompts, drawn with seed 0, as ")
    again = [answer.prompt_id for answer in run.answers if (answer.arm, answer.repeat) == ("plain", 2)]
    assert 3 <= len(again) <= 6, "anchors"
    assert again == asked[: len(again)]


@pytest.mark.parametrize("context", [2, 4096])
def test_what_cannot_fit_the_smallest_context_is_asked_of_no_server_and_told(tmp_path: Path, context: int) -> None:
    work = make_workload(num_prompts=8)
    long = Prompt(id="log:5", text="a b " * 2_000_000, max_tokens=8)
    work = replace(work, prompts=(*work.prompts[:4], long, *work.prompts[4:]), population=18)
    progress = Recorder()
    scripts = [replace(PLAIN, max_model_len=10**9), replace(FASTER, max_model_len=context)]
    session = make_session(tmp_path / "run", make_plan(workloads=(work,), repeats=1), scripts, progress=progress)
    virtual_time.run(session.run())
    run = RunDirectory(tmp_path / "run").read()
    said = f"1 of 9 prompts do not fit into the server's context of {context:,} tokens: log:5"
    assert f"Left out of code: {said}." in "\n".join(progress.told)
    (kept,) = run.plan.workloads
    assert (said in kept.description, kept.population) == (True, 16)
    assert {each.prompt_id for each in run.answers} == {f"code-{i}" for i in range(8)}


def test_warm_ups_are_no_answers_and_use_no_prompt_of_the_workload(tmp_path: Path) -> None:
    session = make_session(tmp_path / "run", make_plan(repeats=1), (PLAIN, FASTER))
    virtual_time.run(session.run())
    # Greetings, warm-ups, two answers to look at, warm-ups at the end; the baseline is asked how long answers are,
    # with prompts that no cache can know later.
    asked = [backend.engine._num_requests for backend in session.backends]
    assert asked == [4 + 3 + 2 + 8 + 2 + 8, 4 + 3 + 2 + 8 + 2]
    for backend, disguised in zip(session.backends, (6, 0), strict=True):
        assert sum("Warm-up" in prompt for prompt in backend.engine._seen) == 7
        assert len(backend.engine._seen) == 7 + 2 + 8 + disguised
    assert len(RunDirectory(tmp_path / "run").read().answers) == 16


def test_servers_are_stopped_after_success_and_after_failure(tmp_path: Path) -> None:
    dying = replace(PLAIN, dies_after=9)
    for name, script in (("good", PLAIN), ("bad", dying)):
        session = make_session(tmp_path / name, make_plan(), (script, FASTER))
        try:
            virtual_time.run(session.run())
        except BackendError:
            assert name == "bad"
        assert all(backend._client is None for backend in session.backends)


@pytest.mark.parametrize("units", [0, 3, 30])
def test_a_run_that_is_asked_to_stop_keeps_what_it_has_and_can_be_continued(tmp_path: Path, units: int) -> None:
    path, plan = tmp_path / "run", make_plan(adaptive=False)
    session = make_session(path, plan, (PLAIN, FASTER), progress=Recorder(stop_after=units))
    virtual_time.run(session.run())
    assert session.is_stopped
    assert all(backend._client is None for backend in session.backends)
    has_run = (path / "manifest.json").exists()
    assert has_run == (units == 30)
    if has_run:
        before = RunDirectory(path).read()
        rest = make_session(path, plan, (PLAIN, FASTER), resume=True)
        virtual_time.run(rest.run())
        run = RunDirectory(path).read()
        assert (rest.is_stopped, len(run.answers)) == (False, 2 * 8 * 3)
        assert run.answers[: len(before.answers)] == before.answers


@pytest.mark.parametrize(
    ("step_s", "brings", "counted_s"),
    [(0.012, 8.0, 0.003), (0.040, 8.0, 0.010), (0.006, 2.0, 0.006), (0.002, 8.0, 0.002)],
)
def test_a_step_that_brings_far_more_may_take_longer(monkeypatch, step_s, brings, counted_s) -> None:
    """What a server remembers of the warm-up lets it draft more at the end: its longer steps are no change of pace."""

    async def answer(*_: object) -> SimpleNamespace:
        return SimpleNamespace(step=step_s, per_step=brings)

    monkeypatch.setattr(readiness, "_take_round", answer)
    late_s = asyncio.run(readiness.warm_up_again(None, make_plan(), 2, (0.003, 2.0)))  # type: ignore[arg-type]
    assert late_s == pytest.approx(counted_s)


def test_a_warm_up_without_a_steady_pace_or_rest_is_said() -> None:
    told: list[Finding] = []
    session: Any = SimpleNamespace(progress=SimpleNamespace(notice=told.append), _list_present=lambda _: make_plan())
    pace: Any = None
    counters = {"plain": make_counters(SERVER_PLAIN, 9.0), "candidate 1": make_counters(SERVER_SPEC, 9.0)}
    warm = WarmUp(pace=pace, decoding=pace, counters=counters, unsteady={"candidate 1": "4 in flight"})
    busy = "the idle servers still use 3.10 of this machine's cores"
    asyncio.run(Session._check_warm_up(session, SimpleNamespace(present=[]), warm, busy))  # type: ignore[arg-type]
    assert [each.code for each in told][-2:] == ["pace-unsteady", "machine-busy"]
