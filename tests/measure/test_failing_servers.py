"""A candidate whose server fails before anything is measured is left out with its finding, and tried again later."""

import asyncio
from collections import Counter
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest
from tests.support import virtual_time
from tests.support.fake_server import FakeBackend, FakeScript
from tests.support.measuring import FASTER, PLAIN, Recorder, make_plan, make_session, make_workload
from tests.support.reports import write_report

from draftwise.backends import LineUp, OneAtATime
from draftwise.core import BackendError, ClosedLoop, Condition, InvalidSetup, Omission, Run, RunPlan, Severity, Verdict
from draftwise.deciding.conclusions import conclude_run
from draftwise.reporting.conditions import describe_unmeasured
from draftwise.runs import RunDirectory

FOREVER = 1e6
LOG = "Its last lines (servers/x.log):\n  | RuntimeError: out of memory"
SCRIPTS = (PLAIN, FASTER, replace(FASTER, seed=3))


class Failing(FakeBackend):
    """A fake that does not come up."""

    def __init__(self, name: str, script: FakeScript, error: Exception | None, after_s: float = 0.0) -> None:
        super().__init__(name, script)
        self._error, self._after_s = error, after_s

    async def start(self) -> None:
        await asyncio.sleep(self._after_s)
        if self._error is not None:
            raise self._error
        await super().start()


def broken(name: str) -> BackendError:
    return BackendError(f"{name}: the server ended with status 1. {LOG}")


def measure(path: Path, *failures: str, plan: RunPlan | None = None, late: str = "", **settings) -> list[str]:
    """Measure with servers that fail at their start, by name; return what was told."""
    progress = Recorder()
    plan = plan or make_plan(2)
    session = make_session(path, plan, SCRIPTS, **{"progress": progress, **settings})
    session.backends = [
        Failing(arm.name, script, broken(arm.name) if arm.name in failures else None, FOREVER * (arm.name == late))
        for arm, script in zip(plan.arms, SCRIPTS, strict=True)
    ]
    virtual_time.run(session.run(), limit_s=10_000)
    return progress.told


def read(path: Path) -> Run:
    return RunDirectory(path).read()


def test_the_others_are_measured_and_the_report_says_why_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "run"
    told = measure(path, "candidate 1")
    run = read(path)
    assert [arm.name for arm in run.plan.arms] == ["plain", "candidate 1", "candidate 2"]
    assert {turn.arm for turn in run.turns} == {"plain", "candidate 2"}
    decision = conclude_run(run).decision
    assert [(each.candidate, each.verdict) for each in decision.comparisons] == [("candidate 2", Verdict.ADOPT)]
    (found,) = (each for each in decision.findings if each.code == "server-failed")
    assert (found.severity, found.where) == (Severity.ERROR, "candidate 1")
    assert "out of memory" in found.message
    assert describe_unmeasured(decision) == ["candidate candidate 1: its server failed before the measurement began"]
    assert any("Left out: candidate candidate 1" in line and "out of memory" in line for line in told)


def test_what_its_log_said_stands_in_every_form_of_the_report(tmp_path: Path) -> None:
    path = tmp_path / "run"
    measure(path, "candidate 2")
    write_report(RunDirectory(path))
    assert "out of memory" in (path / "report.html").read_text()
    assert "out of memory" in (path / "summary.json").read_text()


def test_a_server_that_dies_in_the_warm_up_is_left_out_as_well(tmp_path: Path) -> None:
    for requests in (0, 2, 5, 8):
        path, dying = tmp_path / str(requests), replace(FASTER, dies_after=requests)
        virtual_time.run(make_session(path, make_plan(2), (PLAIN, dying, FASTER)).run())
        assert {turn.arm for turn in read(path).turns} == {"plain", "candidate 2"}
        assert [each.candidate for each in read(path).omissions] == ["candidate 1"]


def test_a_crossover_of_the_others_is_bisected(tmp_path: Path) -> None:
    plain = FakeScript(first_token_s=0.004, step_s=0.004, row_s=0.0002, knee=12)
    drafting = replace(plain, k=3, rates=(0.7, 0.5, 0.35), step_s=0.0048)
    conditions = tuple(Condition(load=ClosedLoop(concurrency=streams)) for streams in (1, 32))
    plan = make_plan(2, adaptive=True, conditions=conditions, repeats=2, workloads=(make_workload(max_tokens=10),))
    session = make_session(tmp_path / "run", plan, (plain, drafting, plain))
    session.backends[2] = Failing("candidate 2", plain, broken("candidate 2"))
    virtual_time.run(session.run())
    run = read(tmp_path / "run")
    assert run.added
    assert {turn.arm for turn in run.turns} == {"plain", "candidate 1"}


def test_without_the_baseline_there_is_nothing_to_compare_with(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="plain: the server ended"):
        measure(tmp_path / "run", "plain")


def test_without_any_candidate_the_run_ends_with_all_that_went_wrong(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"(?s)candidate 1: the server ended.*candidate 2: the server ended"):
        measure(tmp_path / "run", "candidate 1", "candidate 2")


def test_the_only_candidate_that_is_refused_says_so_as_ever(tmp_path: Path) -> None:
    session = make_session(tmp_path / "run", make_plan(), (PLAIN, FASTER))
    refusal = InvalidSetup.because("server-refused", "the drafter does not fit.", where="candidate 1")
    session.backends = [session.backends[0], Failing("candidate 1", FASTER, refusal)]
    with pytest.raises(InvalidSetup, match="the drafter does not fit"):
        virtual_time.run(session.run())


def test_a_server_that_never_gets_up_is_not_waited_for_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "run"
    plan = make_plan(2, workloads=(make_workload(num_prompts=100),))
    told = measure(path, late="candidate 2", plan=plan, budget_s=60.0)
    run = read(path)
    assert [each.candidate for each in run.omissions if each.error] == ["candidate 2"]
    assert "was not up after 18 s" in run.omissions[0].error
    assert len([line for line in told if line.startswith("Left out: candidate candidate 2")]) == 1
    assert conclude_run(run).decision.comparisons[0].verdict is Verdict.ADOPT


def test_what_failed_is_tried_again_beside_the_baseline_when_the_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "run"
    measure(path, "candidate 1")
    before = read(path)
    measure(path, resume=True)
    run = read(path)
    new = run.turns[len(before.turns) :]
    assert {turn.attempt for turn in new} == {1}
    assert Counter(turn.arm for turn in new) == {"plain": 24, "candidate 1": 24}
    assert run.omissions == ()
    assert "candidate 1" in run.context.servers
    decision = conclude_run(run).decision
    assert {each.candidate: each.verdict for each in decision.comparisons} == {
        "candidate 1": Verdict.ADOPT,
        "candidate 2": Verdict.ADOPT,
    }
    assert decision.unmeasured == ()
    assert not decision.has_error


def test_one_that_fails_again_is_left_out_again(tmp_path: Path) -> None:
    path = tmp_path / "run"
    measure(path, "candidate 1")
    before = read(path)
    measure(path, "candidate 1", resume=True)
    assert read(path).turns == before.turns
    assert [each.candidate for each in read(path).omissions] == ["candidate 1"]


def test_servers_that_answer_one_at_a_time_do_without_one_as_well(tmp_path: Path) -> None:
    path, plan = tmp_path / "run", make_plan(2, one_at_a_time=True, repeats=4, adaptive=False)

    def go(error: Exception | None, **settings) -> Run:
        session = make_session(path, plan, SCRIPTS, **settings)
        line_up = LineUp()
        servers = [Failing(arm.name, script, None) for arm, script in zip(plan.arms, SCRIPTS, strict=True)]
        servers[1] = Failing("candidate 1", FASTER, error)
        session.backends, session.line_up = [OneAtATime(each, line_up) for each in servers], line_up
        virtual_time.run(session.run())
        return read(path)

    run = go(broken("candidate 1"))
    assert {turn.arm for turn in run.turns} == {"plain", "candidate 2"}
    assert conclude_run(run).decision.comparisons[0].verdict is Verdict.ADOPT
    done = len(run.turns)
    again = go(None, resume=True).turns[done:]
    assert {turn.arm for turn in again} == {"plain", "candidate 1"}
    assert {turn.attempt for turn in again} == {1}
    stretches = [arm for arm, _ in groupby(again, key=lambda turn: turn.arm)]
    assert len(stretches) == 1 + 4


def test_where_a_command_replaces_servers_none_is_left_out(tmp_path: Path) -> None:
    """Nobody knows which one is up once it has failed."""
    plan = make_plan(2, one_at_a_time=True)
    plan = replace(plan, arms=tuple(replace(arm, url="http://127.0.0.1:1") for arm in plan.arms))
    session = make_session(tmp_path / "run", plan, SCRIPTS)
    line_up = LineUp()
    servers = [Failing(arm.name, script, None) for arm, script in zip(plan.arms, SCRIPTS, strict=True)]
    servers[1] = Failing("candidate 1", FASTER, broken("candidate 1"))
    session.backends, session.line_up = [OneAtATime(each, line_up) for each in servers], line_up
    with pytest.raises(BackendError, match="candidate 1: the server ended"):
        virtual_time.run(session.run())


def test_what_was_left_out_for_lack_of_time_is_struck_when_it_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "run"
    plan = make_plan(workloads=(make_workload(num_prompts=30),), repeats=2)
    virtual_time.run(make_session(path, plan, SCRIPTS[:2], budget_s=30.0).run())
    for is_final in (False, True):
        RunDirectory(path).add(Omission(what=f"{is_final}", reason="time was short", is_final=is_final))
    cut = read(path)
    virtual_time.run(make_session(path, cut.plan, SCRIPTS[:2], resume=True).run())
    run = read(path)
    assert all(each.is_final for each in run.omissions)
    assert [each for each in cut.omissions if each.is_final] == list(run.omissions)
    assert conclude_run(run).decision.unmeasured == ()
