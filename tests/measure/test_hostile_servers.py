"""Servers as they are: without time, gone for a while, with empty answers, slow to start, many on few cores."""

import asyncio
import json
import re
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path

import httpx
import pytest
from tests.measure.test_failing_servers import Failing
from tests.support import virtual_time
from tests.support.fake_server import FakeBackend
from tests.support.hostile_server import Hostile
from tests.support.measuring import FASTER, PLAIN, Recorder, make_plan, make_session, make_workload

from draftwise.backends import LineUp, OneAtATime, UrlBackend
from draftwise.backends.patience import Patience, read_retry_after
from draftwise.core import BackendError, Condition, InvalidSetup, OpenLoop, Run, Verdict
from draftwise.deciding.conclusions import conclude_run
from draftwise.measure.measurement import _Waits
from draftwise.runs import RunDirectory

LONG = (make_workload(num_prompts=40),)


def measure(path: Path, *, urls: bool = True, plan=None, budget_s: float = 120.0, **spoiled) -> tuple[Run, Recorder]:
    progress, plan = Recorder(), plan or make_plan(workloads=LONG)
    if urls:
        arms = (replace(arm, url=f"http://10.0.0.{n}:8000") for n, arm in enumerate(plan.arms, 1))
        plan = replace(plan, arms=tuple(arms))
    session = make_session(path, plan, (PLAIN, FASTER), progress=progress, budget_s=budget_s)
    session.backends = [Hostile("plain", PLAIN), Hostile("candidate 1", FASTER, **spoiled)]
    virtual_time.run(session.run(), limit_s=10_000)
    return RunDirectory(path).read(), progress


def test_a_rate_limit_is_respected_from_the_greeting_to_the_end_and_said(tmp_path: Path) -> None:
    run, _ = measure(tmp_path / "run", busy=range(3, 60, 4))
    decision = conclude_run(run).decision
    assert decision.comparisons[0].verdict is Verdict.ADOPT
    assert not any(answer.error for answer in run.answers)
    assert sum(answer.refusals for answer in run.answers) > 3
    assert "rate-limited" in {each.code for each in decision.comparisons[0].findings}


def test_the_pause_is_what_the_server_says(tmp_path: Path) -> None:
    plan = make_plan(workloads=LONG)
    session = make_session(tmp_path / "run", plan, (PLAIN, FASTER), budget_s=120.0)
    limited = Hostile("candidate 1", FASTER, busy=(4, 9, 12), retry_after="3")
    session.backends = [FakeBackend("plain", PLAIN), limited]
    virtual_time.run(session.run())
    for at in limited.refused_at:
        assert min(later - at for later in limited.asked_at if later > at) > 2.99


def test_under_a_load_a_limit_is_what_was_measured_and_decides_nothing(tmp_path: Path) -> None:
    run, _ = measure(tmp_path / "run", plan=make_plan(workloads=LONG, concurrency=4), busy=range(60, 400, 7))
    (each,) = conclude_run(run).decision.comparisons
    assert each.verdict is Verdict.INCONCLUSIVE
    assert each.reason.values["code"] == "rate-limited"


def test_an_open_loop_waits_for_nobody(tmp_path: Path) -> None:
    plan = make_plan(workloads=LONG, conditions=(Condition(load=OpenLoop.steady(2.0)),), turn_s=10.0)
    run, _ = measure(tmp_path / "run", plan=plan, budget_s=300.0, busy=range(40, 4000, 5))
    assert any(answer.error for answer in run.answers)
    assert not any(answer.refusals for answer in run.answers)


@pytest.mark.parametrize("number", range(1, 12))
def test_one_empty_answer_before_the_first_turn_ends_nothing(tmp_path: Path, number: int) -> None:
    run, _ = measure(tmp_path / "run", plan=make_plan(), empty=(number,))
    assert conclude_run(run).decision.comparisons[0].verdict is Verdict.ADOPT


def test_a_server_that_restarts_in_the_middle_is_waited_for_warmed_up_and_asked_again(tmp_path: Path) -> None:
    run, progress = measure(tmp_path / "run", away=(40, 12.0))
    assert conclude_run(run).decision.comparisons[0].verdict is Verdict.ADOPT
    assert any("failed and answered again after 12 s" in line for line in progress.told)
    assert any("failed" in each.reason for each in run.omissions)
    blocks: dict[tuple[str, int, int], set[str]] = {}
    for turn in run.turns:
        blocks.setdefault((turn.workload, turn.repeat, turn.block), set()).add(turn.arm)
    assert all(len(arms) == 2 for arms in blocks.values())


def test_one_that_stays_away_ends_the_run_with_its_data(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="closed by the server"):
        measure(tmp_path / "run", away=(40, 1e6))
    assert RunDirectory(tmp_path / "run").read().turns


@pytest.mark.parametrize(
    ("text", "seconds"), [("7", 7.0), ("0", 0.0), ("1.5", 1.5), ("-1", None), ("soon", None), ("", None), ("inf", None)]
)
def test_retry_after_is_read_or_not_gone_by(text: str, seconds: float | None) -> None:
    assert read_retry_after(text) == seconds


def test_retry_after_may_be_a_date() -> None:
    assert (read_retry_after(formatdate(4102444800, usegmt=True)) or 0) > 0
    assert read_retry_after(formatdate(0, usegmt=True)) == 0


def test_patience_ends() -> None:
    patience, pauses = Patience(10.0), []
    while (pause := patience.pause_s()) is not None:
        pauses.append(pause)
    assert pauses == sorted(pauses)
    assert sum(pauses) <= 10.0
    assert Patience(10.0).pause_s("3600") is None


def test_what_can_be_asked_twice_is(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [
        httpx.ReadError("closed"),
        httpx.Response(429, headers={"Retry-After": "0"}),
        httpx.RemoteProtocolError("x"),
    ]

    def answer(request: httpx.Request) -> httpx.Response:
        if answers:
            if isinstance(found := answers.pop(0), Exception):
                raise found
            return found
        return httpx.Response(200, content=json.dumps({"data": [{"id": "m"}]}))

    async def describe() -> str:
        backend = UrlBackend("plain", "http://127.0.0.1:1")
        backend._open(httpx.MockTransport(answer))
        return (await backend.describe()).model

    assert virtual_time.run(describe()) == "m"


def test_servers_that_share_cores_start_in_turn_those_without_weights_first_and_late_ones_are_left_out(
    tmp_path: Path,
) -> None:
    plan = make_plan(5, workloads=LONG)
    scripts = (PLAIN, *(replace(FASTER, seed=n) for n in range(5)))
    progress = Recorder()
    session = make_session(tmp_path / "run", plan, scripts, progress=progress, budget_s=100.0, starts_at_once=1)
    session.backends = [Failing(arm.name, script, None, 6.0) for arm, script in zip(plan.arms, scripts, strict=True)]
    virtual_time.run(session.run())
    run = RunDirectory(tmp_path / "run").read()
    measured = {turn.arm for turn in run.turns}
    assert {"plain", "candidate 1"} <= measured < {arm.name for arm in plan.arms}
    late = {each.candidate for each in run.omissions}
    assert measured | late == {arm.name for arm in plan.arms}
    assert conclude_run(run).decision.comparisons


def test_a_wait_is_named_by_the_servers_that_are_waited_for() -> None:
    told: list[str] = []
    waits = _Waits(told.append)
    waits.report("plain", "importing vLLM (3 s)")
    waits.report("eagle", "compiling (9 s)")
    waits.report("plain", "")
    waits.report("eagle", "compiling (10 s)")
    waits.report("eagle", "")
    assert told[0] == "plain is starting: importing vLLM (3 s)"
    assert told[1] == "plain is starting: importing vLLM (3 s); also eagle"
    assert told[-1] == "eagle is starting: compiling (10 s)"


class Differing(FakeBackend):
    """A fake whose outputs are not the others' for some of its requests, by their numbers."""

    numbers: range

    async def stream(self, path, body, received=None):
        if body:
            self.count = getattr(self, "count", 0) + 1
            differs_at = 5 if self.count in self.numbers else None
            self.engine.script = replace(self.engine.script, differs_at=differs_at, gap=4.0)
        return await super().stream(path, body, received)


@pytest.mark.parametrize(
    ("numbers", "code"), [(range(10_000), "outputs-differ"), (range(30, 45), "outputs-differed-once")]
)
def test_outputs_that_differ_are_asked_for_again_before_they_are_called_different(tmp_path, numbers, code) -> None:
    session = make_session(tmp_path / "run", make_plan(workloads=LONG), (PLAIN, FASTER), budget_s=90.0)
    differing = Differing("candidate 1", FASTER)
    differing.numbers = numbers
    session.backends = [FakeBackend("plain", replace(PLAIN, gap=4.0)), differing]
    virtual_time.run(session.run())
    run = RunDirectory(tmp_path / "run").read()
    (each,) = conclude_run(run).decision.comparisons
    codes = {finding.code for finding in each.findings}
    assert code in codes
    again = [row.again for row in run.divergences if row.again is not None]
    assert again
    assert set(again) == {code == "outputs-differ"}
    assert each.verdict is (Verdict.BLOCKED if code == "outputs-differ" else Verdict.ADOPT)


@pytest.mark.parametrize("name", ["plain", "candidate 1"])
@pytest.mark.parametrize("first", [12, 20, 26])
def test_a_restart_before_the_first_turn_is_waited_for_too(tmp_path: Path, name: str, first: int) -> None:
    plan = make_plan(workloads=(make_workload(num_prompts=20),))
    arms = (replace(arm, url=f"http://10.0.0.{n}:8000") for n, arm in enumerate(plan.arms, 1))
    plan, progress = replace(plan, arms=tuple(arms)), Recorder()
    session = make_session(tmp_path / "run", plan, (PLAIN, FASTER), progress=progress, budget_s=400.0)
    session.backends = [
        Hostile(arm.name, script, away=(first, 45.0) if arm.name == name else None)
        for arm, script in zip(plan.arms, (PLAIN, FASTER), strict=True)
    ]
    virtual_time.run(session.run(), limit_s=10_000)
    run = RunDirectory(tmp_path / "run").read()
    assert conclude_run(run).decision.comparisons[0].verdict is Verdict.ADOPT
    assert any("answered again after" in line for line in progress.told)
    assert any("failed and answered again" in each.reason for each in run.omissions)


def test_while_a_server_is_away_the_operator_reads_for_how_long_and_what_to_do(tmp_path: Path) -> None:
    progress = Recorder()
    plan = make_plan(workloads=LONG)
    arms = (replace(arm, url=f"http://10.0.0.{n}:8000") for n, arm in enumerate(plan.arms, 1))
    session = make_session(
        tmp_path / "run", replace(plan, arms=tuple(arms)), (PLAIN, FASTER), progress=progress, budget_s=200.0
    )
    session.backends = [Hostile("plain", PLAIN, away=(30, 1e6)), FakeBackend("candidate 1", FASTER)]
    with pytest.raises(BackendError, match=r"\nIt did not come back within \d+ s\.") as gone:
        virtual_time.run(session.run(), limit_s=10_000)
    waited = int(str(gone.value).split("within ")[1].split(" s")[0])
    assert 20 <= waited <= 50
    assert any(f"Waiting up to {waited} s for it. Ctrl-C keeps all measurements." in line for line in progress.told)


def test_one_that_breaks_again_and_again_ends_the_run(tmp_path: Path) -> None:
    class Crashing(Hostile):
        async def stream(self, path, body, received=None):
            if self.away is None and self.count > 20:
                self.away = (self.count + 3, 5.0)
            return await super().stream(path, body, received)

    progress, plan = Recorder(), make_plan(workloads=LONG)
    arms = (replace(arm, url=f"http://10.0.0.{n}:8000") for n, arm in enumerate(plan.arms, 1))
    session = make_session(
        tmp_path / "run", replace(plan, arms=tuple(arms)), (PLAIN, FASTER), progress=progress, budget_s=400.0
    )
    session.backends = [Crashing("plain", PLAIN, away=(25, 5.0)), FakeBackend("candidate 1", FASTER)]
    with pytest.raises(BackendError, match="came back 3 times before"):
        virtual_time.run(session.run(), limit_s=10_000)


SLOW = replace(PLAIN, first_token_s=3.0, step_s=1.5)


@pytest.mark.parametrize("candidates", [1, 5])
def test_a_machine_that_is_too_slow_says_so_within_a_minute_and_what_to_give(tmp_path: Path, candidates: int) -> None:
    plan = make_plan(candidates, workloads=(make_workload(num_prompts=40, max_tokens=96),))
    scripts = (SLOW, *(replace(SLOW, k=3, rates=(0.6, 0.4, 0.2), seed=n) for n in range(candidates)))

    async def run() -> float:
        session = make_session(tmp_path / "run", plan, scripts, budget_s=420.0, starts_at_once=2)
        clock = asyncio.get_running_loop().time
        began = clock()
        with pytest.raises(InvalidSetup) as refusal:
            await session.run()
        (said,) = refusal.value.findings
        assert said.code == "machine-too-slow"
        given = re.findall(r"--minutes (\d+)", said.fix)
        assert int(given[0]) >= 15
        assert (len(given) == 2) == (candidates > 1)
        return clock() - began

    assert virtual_time.run(run(), limit_s=10_000) < 60


class Starved(Failing):
    """A fake whose processes get so little of the cores that a start takes a known time at least."""

    def __init__(self, name: str, script, after_s: float, least_s: float) -> None:
        super().__init__(name, script, None, after_s)
        self._least_s = least_s

    def least_start_s(self) -> float:
        return self._least_s


def start_slowly(path: Path, after_s: float, least_s: float, *, in_turn: bool, later_s: float = 0.0) -> float:
    """Measure for seven minutes servers that start slowly; return the seconds of the run."""

    async def run() -> float:
        session = make_session(path, make_plan(workloads=LONG), (PLAIN, FASTER), budget_s=420.0, starts_at_once=1)
        seconds = (after_s, later_s or after_s)
        servers = [
            Starved(arm.name, script, each, least_s)
            for arm, script, each in zip(session.plan.arms, (PLAIN, FASTER), seconds, strict=True)
        ]
        session.line_up = LineUp() if in_turn else None
        session.backends = (
            servers if session.line_up is None else [OneAtATime(each, session.line_up) for each in servers]
        )
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            await session.run()
        except InvalidSetup as refusal:
            (said,) = refusal.findings
            assert said.code == "machine-too-slow"
            assert "starts" in said.message
            assert int(re.findall(r"--minutes (\d+)", said.fix)[0]) > 7
            return clock() - began
        assert RunDirectory(path).read().turns
        return 0.0

    return virtual_time.run(run(), limit_s=10_000)


@pytest.mark.parametrize(
    ("after_s", "least_s", "in_turn", "within_s"),
    [(400.0, 300.0, False, 60), (400.0, 120.0, True, 60), (400.0, 0.0, True, 105), (400.0, 0.0, False, 210)],
)
def test_a_start_that_takes_too_long_for_the_plan_ends_the_run_at_once(
    tmp_path: Path, after_s: float, least_s: float, in_turn: bool, within_s: float
) -> None:
    assert 0 < start_slowly(tmp_path / "run", after_s, least_s, in_turn=in_turn) <= within_s


@pytest.mark.parametrize(
    ("after_s", "least_s", "in_turn"), [(80.0, 0.0, True), (80.0, 95.0, True), (150.0, 0.0, False), (44.0, 9e9, False)]
)
def test_a_slow_start_for_which_there_is_time_is_waited_for(
    tmp_path: Path, after_s: float, least_s: float, in_turn: bool
) -> None:
    assert start_slowly(tmp_path / "run", after_s, least_s, in_turn=in_turn, later_s=20.0) == 0


def test_a_machine_that_is_just_fast_enough_is_measured(tmp_path: Path) -> None:
    plan = make_plan(5, workloads=(make_workload(num_prompts=40, max_tokens=96),))
    scripts = tuple(replace(SLOW, first_token_s=1.0, step_s=0.12, seed=n) for n in range(6))
    session = make_session(tmp_path / "run", plan, scripts, budget_s=420.0, starts_at_once=2)
    virtual_time.run(session.run(), limit_s=10_000)
    assert RunDirectory(tmp_path / "run").read().turns
