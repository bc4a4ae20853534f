"""One server is up at a time: stretches in the order A B, B A, repetitions as blocks, and the proof of a switch."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest
from tests.support import virtual_time
from tests.support.fake_server import FakeBackend, FakeScript
from tests.support.measuring import FASTER, PLAIN, Recorder, make_plan, make_session, make_workload

from draftwise.backends import LineUp, OneAtATime, SwitchCommand, UrlBackend
from draftwise.backends import line_up as switching
from draftwise.backends.backend import ServerInfo
from draftwise.core import BackendError, InvalidSetup, LaunchOptions, RunPlan, Verdict
from draftwise.deciding.comparison.cell import make_cells
from draftwise.deciding.conclusions import conclude_run
from draftwise.deciding.disturbance import set_aside_disturbed
from draftwise.deciding.thresholds import Thresholds
from draftwise.measure.measurement_spec import Candidate, MeasurementSpec
from draftwise.measure.session import Session
from draftwise.runs import RunDirectory


class Watched(FakeBackend):
    """A fake that notes when it goes up and down, and fails to come up when it is told to."""

    def __init__(self, name: str, script, log: list[str], fails_at: int | None = None) -> None:
        super().__init__(name, script)
        self._log, self._fails_at = log, fails_at

    async def start(self) -> None:
        if self._fails_at == len(self._log):
            raise BackendError(f"{self.name}: the GPU is gone.")
        self._log.append(f"+{self.name}")
        await super().start()

    async def stop(self) -> None:
        if self._client is not None:
            self._log.append(f"-{self.name}")
        await super().stop()


def make_one_at_a_time(
    path: Path,
    plan: RunPlan,
    log: list[str],
    *,
    fails_at: int | None = None,
    scripts: Sequence[FakeScript] = (PLAIN, FASTER),
    **settings,
) -> Session:
    session = make_session(path, plan, scripts, **settings)
    line_up = LineUp()
    servers = [Watched(arm.name, script, log, fails_at) for arm, script in zip(plan.arms, scripts, strict=True)]
    session.backends = [OneAtATime(each, line_up) for each in servers]
    session.line_up = line_up
    return session


def test_servers_take_turns_forwards_and_backwards_and_never_meet(tmp_path: Path) -> None:
    progress = Recorder()
    log: list[str] = []
    plan = make_plan(one_at_a_time=True, repeats=4, adaptive=False)
    virtual_time.run(make_one_at_a_time(tmp_path / "run", plan, log, progress=progress).run())
    up: set[str] = set()
    for each in log:
        (up.add if each[0] == "+" else up.remove)(each[1:])
        assert len(up) <= 1
    assert not up
    run = RunDirectory(tmp_path / "run").read()
    order = [arm for arm, _ in groupby(sorted(run.turns, key=lambda each: each.turn), key=lambda each: each.arm)]
    assert order == ["candidate 1", "plain", "candidate 1", "plain", "candidate 1"]
    # Two to get to know them, one for each stretch that begins with another server: the last one is up still.
    assert sum(each[0] == "+" for each in log) == 2 + len(order) - 1
    assert any(each.startswith("One server at a time: 4 starts in 4 repetitions") for each in progress.told)


def test_a_repetition_is_one_block_and_the_difference_is_found(tmp_path: Path) -> None:
    plan = make_plan(one_at_a_time=True, repeats=4, adaptive=False)
    virtual_time.run(make_one_at_a_time(tmp_path / "run", plan, []).run())
    run = RunDirectory(tmp_path / "run").read()
    assert run.plan.one_at_a_time
    (cell,) = make_cells(run)
    assert {(each.block, each.candidate.repeat) for each in cell.paired} == {
        (("", baseline, candidate), repeat)
        for repeat, (candidate, baseline) in enumerate([(0, 1), (2, 1), (2, 3), (4, 3)], 1)
    }
    (comparison,) = conclude_run(run).decision.comparisons
    assert comparison.verdict is Verdict.ADOPT


def test_a_run_that_was_stopped_knows_what_was_left(tmp_path: Path) -> None:
    plan = make_plan(one_at_a_time=True, repeats=4, adaptive=False)
    virtual_time.run(make_one_at_a_time(tmp_path / "whole", plan, []).run())
    assert RunDirectory(tmp_path / "whole").read().seconds_short == 0
    with pytest.raises(BackendError):  # the baseline does not come up for its first stretch
        virtual_time.run(make_one_at_a_time(tmp_path / "run", plan, [], fails_at=4).run())
    run = RunDirectory(tmp_path / "run").read()
    assert run.turns
    assert run.seconds_short > 0


@pytest.mark.parametrize("prompts", [3, 12, 40])
def test_where_no_prompt_comes_back_each_repetition_has_prompts_of_its_own(tmp_path: Path, prompts: int) -> None:
    """A single repetition would be a single block, of which nothing is known."""
    scripts = tuple(replace(each, prefix_caching=True, refuses=("cache_salt",)) for each in (PLAIN, FASTER))
    plan = make_plan(
        one_at_a_time=True, repeats=5, adaptive=False, workloads=(make_workload(num_prompts=prompts),), minutes=5.0
    )
    session = make_one_at_a_time(tmp_path / "run", plan, [], scripts=scripts, budget_s=300.0)
    virtual_time.run(session.run())
    run = RunDirectory(tmp_path / "run").read()
    for arm in ("plain", "candidate 1"):
        asked = [each.prompt_id for each in run.answers if each.arm == arm and each.measured]
        assert len(asked) == len(set(asked)) >= prompts - 2, "two may be spared for the first look"
    assert len({turn.repeat for turn in run.turns}) == min(5, prompts)
    (each,) = conclude_run(run).decision.comparisons
    assert each.verdict is (Verdict.ADOPT if prompts > 6 else Verdict.INCONCLUSIVE)


def test_disturbed_turns_are_taken_again_after_the_last_repetition_by_arms_that_start_once_more(tmp_path: Path) -> None:
    log: list[str] = []
    plan = make_plan(one_at_a_time=True, repeats=3, adaptive=False, workloads=(make_workload(num_prompts=16),))
    scripts = (PLAIN, replace(FASTER, cold=((60, 62, 3.0),)))
    virtual_time.run(make_one_at_a_time(tmp_path / "run", plan, log, scripts=scripts).run())
    run = RunDirectory(tmp_path / "run").read()
    ordered = sorted(run.turns, key=lambda each: each.turn)
    again = [turn for turn in ordered if turn.attempt]
    assert again == ordered[-len(again) :]
    # The last repetition ended with the baseline, which is up.
    assert [arm for arm, _ in groupby(again, key=lambda each: each.arm)] == ["plain", "candidate 1"]
    (cell,) = make_cells(set_aside_disturbed(run, Thresholds()))
    assert len(cell.paired) == 3 * 16
    blocks = {each.candidate.turn: each.block for each in cell.paired}
    (block,) = {blocks[turn.turn] for turn in again if turn.arm == "candidate 1"}
    assert len({*blocks.values()} - {block}) == 3


class Slow(Watched):
    """A fake that takes long to come up."""

    async def start(self) -> None:
        await asyncio.sleep(60.0)
        await super().start()


def measure_slow(path: Path, minutes: float, progress: Recorder) -> float:
    """Measure with servers that take a minute to start; return the seconds that it took."""
    plan = make_plan(one_at_a_time=True, repeats=4, minutes=minutes, workloads=(make_workload(num_prompts=40),))
    session = make_session(path, plan, (PLAIN, FASTER), progress=progress, budget_s=60 * minutes, starts_at_once=2)
    line_up = LineUp()
    servers = [Slow(arm.name, script, []) for arm, script in zip(plan.arms, (PLAIN, FASTER), strict=True)]
    session.backends, session.line_up = [OneAtATime(each, line_up) for each in servers], line_up

    async def run() -> float:
        began = asyncio.get_running_loop().time()
        await session.run()
        return asyncio.get_running_loop().time() - began

    return virtual_time.run(run(), limit_s=10_000)


def test_where_starts_take_most_of_the_time_two_repetitions_decide(tmp_path: Path) -> None:
    progress = Recorder()
    assert measure_slow(tmp_path / "run", 5.0, progress) < 60 * 5.0
    run = RunDirectory(tmp_path / "run").read()
    assert run.plan.repeats == 2
    assert conclude_run(run).decision.comparisons[0].verdict is Verdict.ADOPT
    assert not any("more time would not" in line for line in progress.told)


@pytest.mark.parametrize("minutes", [2.5, 4.0])
def test_where_not_even_these_fit_it_is_said_before_the_first_server_is_up(tmp_path: Path, minutes: float) -> None:
    said = r"plain is not up after [45]\d s\. The run needs 4 starts.*--minutes [678]"
    with pytest.raises(InvalidSetup, match=said) as refusal:
        measure_slow(tmp_path / "run", minutes, Recorder())
    assert refusal.value.findings[0].code == "machine-too-slow"


def test_what_was_measured_stays_when_a_server_does_not_come_up_and_the_run_goes_on(tmp_path: Path) -> None:
    plan = make_plan(one_at_a_time=True, repeats=3, adaptive=False)
    path = tmp_path / "run"
    with pytest.raises(BackendError, match="the GPU is gone"):
        virtual_time.run(make_one_at_a_time(path, plan, [], fails_at=8).run())
    before = len(RunDirectory(path).read().turns)
    assert 0 < before < 3 * 2 * 8
    virtual_time.run(make_one_at_a_time(path, plan, [], resume=True).run())
    assert len(RunDirectory(path).read().turns) == 3 * 2 * 8


class Cluster(UrlBackend):
    """The one server of a cluster, which serves what a file says."""

    def __init__(self, name: str, state: Path) -> None:
        super().__init__(name, "http://127.0.0.1:1")
        self._state = state

    async def start(self) -> None:
        self._read()

    async def describe(self) -> ServerInfo:
        return ServerInfo(model="m", metric_names="vLLM")

    async def find_life(self) -> tuple[float | None, int | None]:
        return float(self._read()[1]), 5

    async def has_draft_counters(self) -> bool:
        return self._read()[0] != "plain"

    def _read(self) -> list[str]:
        return self._state.read_text().split()


REPLACE = "import sys, pathlib; p = pathlib.Path(sys.argv[1]); n = int(p.read_text().split()[1]) + 1; "
REPLACE += "p.write_text(f'{sys.argv[2]} {n}')"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(switching, "_POLL_S", 0.01)
    path = tmp_path / "state"
    path.write_text("plain 1")
    return path


def make_switch(script: str, state: Path, **settings) -> SwitchCommand:
    command = f'{sys.executable} -c "{script}" {state} {{arm}}'
    return SwitchCommand(command=command, baseline="plain", stay="plain", **settings)


def test_a_switch_is_proven_and_the_baseline_is_brought_back(state: Path) -> None:
    plain, fast = Cluster("plain", state), Cluster("fast", state)

    async def run() -> str:
        line_up = LineUp(make_switch(REPLACE, state))
        await line_up.bring_up(plain)
        await line_up.bring_up(fast)
        up = state.read_text().split()[0]
        await line_up.leave()
        return up

    assert asyncio.run(run()) == "fast"
    assert state.read_text().split()[0] == "plain"


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("pass", "its /metrics has no counters of drafts"),
        (REPLACE.replace("+ 1", "+ 0"), "its process and its counters are those of before"),
    ],
)
def test_a_switch_that_nothing_shows_is_an_error(script: str, told: str, state: Path) -> None:
    async def run() -> None:
        switch = make_switch(script, state, patience_s=0.3)
        await switch.bring_up(Cluster("fast", state), Cluster("plain", state))

    with pytest.raises(BackendError, match=told):
        asyncio.run(run())


def test_a_switch_that_fails_says_what_was_up(state: Path) -> None:
    async def run() -> None:
        switch = make_switch("import sys; sys.exit('no such patch')", state)
        await switch.bring_up(Cluster("fast", state), Cluster("plain", state))

    with pytest.raises(BackendError, match=r"(?s)no such patch.*The server that was up last is plain's"):
        asyncio.run(run())


@pytest.mark.parametrize("command", ["kubectl patch", "kubectl 'patch {arm}"])
def test_a_command_must_say_where_the_arm_goes(command: str) -> None:
    with pytest.raises(InvalidSetup, match="--switch"):
        SwitchCommand(command=command, baseline="plain", stay="plain")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"url": "http://h", "one_at_a_time": True}, "use --switch"),
        ({"target": "m", "switch": "x {arm}"}, "use --one-at-a-time"),
        ({"url": "http://h", "switch": "x {arm}", "candidate_urls": ("http://i",)}, "Leave out --candidate-url"),
        ({"url": "http://h", "switch": "x {arm}", "candidates": (Candidate(),)}, "--candidate NAME=JSON"),
    ],
)
def test_options_that_do_not_go_together_say_so(given: dict, told: str) -> None:
    launch = LaunchOptions(switch=given.pop("switch", None))
    assert told in (MeasurementSpec(launch=launch, **given).find_conflict() or "")
