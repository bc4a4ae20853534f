"""The minutes are a promise: whatever the machine does, a run ends in time, says what it left out, and can go on."""

import asyncio
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support import virtual_time
from tests.support.combinations import taking_turns
from tests.support.fake_server import FakeScript
from tests.support.measuring import FASTER, PLAIN, Recorder, make_plan, make_session, make_workload

from draftwise.core import Arm, BackendError, ClosedLoop, Condition, InvalidSetup, Run, RunPlan, Settled
from draftwise.deciding.conclusions import conclude_run
from draftwise.measure import sweep
from draftwise.measure.readiness import check_addresses
from draftwise.measure.time_budget import TimeBudget
from draftwise.reporting.predictions import find_undisturbed, hold_estimates
from draftwise.runs import RunDirectory
from draftwise.workloads.reshape import draw, locate

BUDGET_S = 60.0
FOREVER = 1e6


def at(*concurrencies: int, temperatures: tuple[float, ...] = (0.0,)) -> tuple[Condition, ...]:
    loads = [ClosedLoop(concurrency=each) for each in concurrencies]
    return tuple(Condition(load=load, temperature=each) for load in loads for each in temperatures)


class Timed:
    """A session in virtual time: what it said, and when it ended."""

    def __init__(
        self, path: Path, plan: RunPlan, *scripts: FakeScript, delay_s: float = 0.0, end_s: float = 0.0, **settings
    ) -> None:
        self.progress = Recorder()
        self.path = path
        self.session = make_session(
            path,
            plan,
            scripts,
            **{
                "budget_s": BUDGET_S,
                "progress": self.progress,
                **settings,
            },
        )
        self._delay_s, self._end_s = delay_s, end_s
        self.ended_s = 0.0

    @property
    def told(self) -> list[str]:
        return [line for line in self.progress.told if not re.match(r"\d arms x |warm-up tokens/s", line)]

    @property
    def announced(self) -> tuple[float, float | None]:
        """When the first plan was reported, and the seconds that it takes."""
        at_s, _, seconds = self.progress.plans[0]
        return at_s, seconds

    def run(self) -> Run:
        virtual_time.run(self._run(), limit_s=20 * BUDGET_S)
        return RunDirectory(self.path).read()

    async def _run(self) -> None:
        for backend in self.session.backends:
            backend.start = _delayed(backend.start, self._delay_s)
            backend.stop = _delayed(backend.stop, self._end_s)
        try:
            await self.session.run()
        finally:
            self.ended_s = asyncio.get_running_loop().time()


def _delayed(work, seconds: float):
    async def work_late() -> None:
        await asyncio.sleep(seconds)
        await work()

    return work_late


def plan_of(num_prompts: int = 400, *, candidates: int = 1, **settings) -> RunPlan:
    drawn = make_workload(num_prompts=num_prompts)
    workloads = (replace(drawn, prompts=draw(locate(drawn.prompts), 0, drawn.name)),)
    return make_plan(candidates, **{"workloads": workloads, "repeats": 5, **settings})


def count_prompts(run: Run) -> set[int]:
    """Return how many prompts of each repetition were measured, over the conditions and repetitions."""
    counted = {(t.condition, t.repeat, t.block) for t in run.turns}
    return set(Counter((condition, repeat) for condition, repeat, _ in counted).values())


NOISY = replace(PLAIN, jitter=0.03)
CANDIDATE = replace(FASTER, step_s=0.0085, jitter=0.05)


def test_on_a_quiet_machine_the_estimate_is_right_and_nothing_is_left_out(tmp_path: Path) -> None:
    timed = Timed(tmp_path / "run", plan_of(adaptive=False), NOISY, CANDIDATE)
    run = timed.run()
    began, seconds = timed.announced
    counted = find_undisturbed(run)
    assert counted is not None
    assert (counted.turns, abs(counted.error) < 0.15) == (len(run.turns), True)
    held = hold_estimates(run.estimates)
    assert len(held) > 2
    assert all(abs(each.error) < 0.15 for each in held)
    assert timed.ended_s - began == pytest.approx(seconds, rel=0.15)
    assert 0.85 * BUDGET_S < timed.ended_s < BUDGET_S
    assert all(line.startswith("So far: ") for line in timed.told)


@pytest.mark.parametrize(("begin_s", "end_s"), taking_turns([0.0, 12.0, 30.0], [40.0, FOREVER]))
def test_a_machine_that_gets_slower_ends_in_time_all_the_same(tmp_path: Path, begin_s: float, end_s: float) -> None:
    spells = ((begin_s, end_s, 4.0),)
    timed = Timed(tmp_path / "run", plan_of(), replace(NOISY, spells=spells), replace(CANDIDATE, spells=spells))
    run = timed.run()
    assert timed.ended_s < 1.1 * BUDGET_S
    assert run.turns
    assert timed.ended_s > 0.8 * BUDGET_S


def test_servers_that_start_late_take_their_time_from_the_measurement(tmp_path: Path) -> None:
    quick, late = Timed(tmp_path / "quick", plan_of(), NOISY, CANDIDATE), None
    late = Timed(tmp_path / "late", plan_of(), NOISY, CANDIDATE, delay_s=30.0)
    runs = [each.run() for each in (quick, late)]
    assert len(runs[1].turns) < 0.7 * len(runs[0].turns)
    assert late.ended_s < 1.1 * BUDGET_S


def test_servers_that_never_start_end_the_run_in_time(tmp_path: Path) -> None:
    timed = Timed(tmp_path / "run", plan_of(), NOISY, CANDIDATE, delay_s=FOREVER)
    with pytest.raises(BackendError, match="starting the servers"):
        timed.run()
    assert timed.ended_s < 1.1 * BUDGET_S


def test_a_turn_that_hangs_is_cut_and_what_was_measured_counts(tmp_path: Path) -> None:
    timed = Timed(tmp_path / "run", plan_of(), NOISY, replace(CANDIDATE, stalls=((30.0, FOREVER),)))
    with pytest.raises(BackendError, match="ran out during this step"):
        timed.run()
    assert timed.ended_s < 1.1 * BUDGET_S
    run = RunDirectory(timed.path).read()
    assert len(run.turns) > 20
    assert conclude_run(run).decision.comparisons


def test_servers_that_take_long_to_end_are_ended_earlier(tmp_path: Path) -> None:
    """They took 50 s to start: what slows down the one slows down the other. (Stalls count from a server's start.)"""
    hanging = replace(CANDIDATE, stalls=((35.0, FOREVER),))
    plan = plan_of(adaptive=False)
    timed = Timed(tmp_path / "run", plan, NOISY, hanging, delay_s=50.0, end_s=12.0, budget_s=120.0)
    with pytest.raises(BackendError, match="ran out during this step"):
        timed.run()
    assert timed.ended_s < 120.0


def test_what_passed_before_the_servers_start_is_part_of_the_minutes(tmp_path: Path) -> None:
    timed = Timed(tmp_path / "run", plan_of(adaptive=False), NOISY, CANDIDATE, spent_s=20.0)
    timed.run()
    assert 15.0 < timed.ended_s < BUDGET_S - 20.0


def test_a_slow_look_at_the_verdicts_leaves_more_time_for_the_report() -> None:
    budget = TimeBudget(seconds=600.0)
    before = budget.turns_end
    budget.look_s = 10.0
    assert budget.turns_end == before - (50.0 - 12.0)


def test_a_sweep_that_cannot_fit_says_what_goes_before_it_measures(tmp_path: Path) -> None:
    slow = [replace(each, step_s=10 * each.step_s) for each in (NOISY, CANDIDATE)]
    conditions = at(1, 4, 16, 32, temperatures=(0.0, 0.8))
    timed = Timed(tmp_path / "run", plan_of(60, conditions=conditions), *slow)
    run = timed.run()
    assert timed.ended_s < 1.1 * BUDGET_S
    assert {each.label for each in run.conditions} < {each.label for each in conditions}
    assert "c=1" in {each.label for each in run.conditions}
    said = [line for line in timed.told if line.startswith("Left out: loads ")]
    assert len(said) == 1
    assert "6 prompts of each workload would take " in said[0]
    assert "Give more --minutes, or fewer workloads, loads or candidates." in said[0]


def test_whatever_ends_a_run_all_loads_have_had_the_same_time(tmp_path: Path) -> None:
    timed = Timed(tmp_path / "run", plan_of(400, conditions=at(1, 2)), NOISY, CANDIDATE, budget_s=5 * BUDGET_S)
    run = timed.run()
    assert timed.ended_s < 1.1 * 5 * BUDGET_S
    seconds = Counter[str]()
    for turn in run.turns:
        seconds[turn.condition] += turn.wall_s
    assert seconds["c=2"] == pytest.approx(seconds["c=1"], rel=0.35)


def test_candidates_that_cannot_win_leave_when_the_time_is_short(tmp_path: Path) -> None:
    slower = replace(FASTER, step_s=0.0125, jitter=0.05)
    scripts = [replace(each, jitter=0.05) for each in (NOISY, CANDIDATE, slower)]
    timed = Timed(tmp_path / "run", plan_of(candidates=2, adaptive=True), *scripts)
    run = timed.run()
    (left,) = (each for each in run.settled if each.candidate == "candidate 2")
    assert left.reason in ("no-gain", "behind")
    assert any(line.startswith("candidate 2 on code at c=1: left out after ") for line in timed.told)
    last = max(turn.turn for turn in run.turns if turn.arm == "candidate 2")
    assert last < 0.6 * max(turn.turn for turn in run.turns)


def test_disturbed_turns_are_taken_again_on_all_arms(tmp_path: Path) -> None:
    spells = ((8.0, 10.0, 3.0),)
    scripts = [replace(each, spells=spells) for each in (NOISY, CANDIDATE)]
    timed = Timed(tmp_path / "run", plan_of(20, repeats=3), *scripts, budget_s=None)
    run = timed.run()
    again = [turn for turn in run.turns if turn.attempt]
    assert again
    assert Counter((turn.repeat, turn.block, turn.attempt) for turn in again).most_common()[-1][1] == 2
    found = conclude_run(run)
    assert found.decision.unmeasured == ()
    assert len(found.run.turns) == 2 * 20 * 3
    assert any(line.startswith("repeating ") for line in timed.progress.waited)


def test_what_is_disturbed_after_the_last_look_is_taken_again_while_there_is_time(tmp_path: Path) -> None:
    spells = ((3.2 * BUDGET_S, 3.22 * BUDGET_S, 3.0),)
    scripts = [replace(each, spells=spells) for each in (NOISY, CANDIDATE)]
    run = Timed(tmp_path / "run", plan_of(400), *scripts, budget_s=4 * BUDGET_S).run()
    disturbances = conclude_run(run).run.disturbances
    taken = {turn.block for turn in run.turns if turn.attempt}
    assert taken
    assert taken == {each.block for each in disturbances}


def test_a_disturbed_turn_of_a_candidate_is_taken_again_beside_the_baseline_alone(tmp_path: Path) -> None:
    trouble = replace(CANDIDATE, seed=3, cold=tuple((number, number, 3.0) for number in range(20, 50, 5)))
    timed = Timed(tmp_path / "run", plan_of(30, candidates=2, repeats=2), NOISY, CANDIDATE, trouble, budget_s=None)
    run = timed.run()
    again: dict[tuple[object, ...], list[str]] = {}
    for turn in sorted((turn for turn in run.turns if turn.attempt), key=lambda each: each.turn):
        again.setdefault(turn.attempt_key, []).append(turn.arm)
    assert {tuple(arms) for arms in again.values()} == {("plain", "candidate 2"), ("candidate 2", "plain")}
    assert len(again) == 6
    counted = conclude_run(run)
    assert Counter(turn.arm for turn in counted.run.turns if turn.arm != "plain") == {
        "candidate 1": 60,
        "candidate 2": 60,
    }
    assert not [each for each in counted.decision.findings if each.code == "disturbed-blocks"]


def test_an_arm_that_could_remember_is_asked_again_for_its_pace_alone(tmp_path: Path) -> None:
    spells = ((8.0, 10.0, 3.0),)
    scripts = [replace(each, spells=spells) for each in (NOISY, CANDIDATE)]
    plan = plan_of(60, repeats=3, remembering={"candidate 1": "it could"})
    run = Timed(tmp_path / "run", plan, *scripts, budget_s=None).run()
    again = {turn.block for turn in run.turns if turn.attempt}
    found = conclude_run(run)
    slow = {each.block for each in found.run.disturbances if not each.attempt}
    assert again
    assert again <= slow, "for its first token alone, which a prefix cache may help, no prompt is asked again"
    (each,) = found.decision.comparisons
    assert each.num_prompts == 60 - len(slow), "the second answer is no reading"


def test_those_that_left_for_lack_of_time_are_measured_on_before_a_prompt_comes_back(tmp_path: Path) -> None:
    steps = enumerate((0.0087, 0.0088, 0.0089, 0.009))
    scripts = [replace(CANDIDATE, step_s=step_s, jitter=0.15, seed=seed) for seed, step_s in steps]
    timed = Timed(tmp_path / "run", plan_of(20, candidates=4, adaptive=True), NOISY, *scripts, budget_s=34.0)
    run = timed.run()
    left = [each for each in run.settled if each.reason == "no-time"]
    assert {each.blocks for each in left} == {11}
    names = ", ".join(each.candidate for each in left)
    assert f"{names} on code at c=1: measured on, as there is time." in timed.told
    found = {each.candidate: each for each in conclude_run(run).decision.comparisons}
    assert {found[each.candidate].num_prompts for each in left} == {20}
    assert {found[each.candidate].reason.values["left"] for each in left} == {None}
    back = max(turn.turn for turn in run.turns if turn.repeat == 1 and turn.arm == left[0].candidate)
    assert all(turn.turn > back for turn in run.turns if turn.repeat > 1)


@pytest.mark.parametrize(("slow", "again"), [(3, False), (8, True)])
def test_a_cell_that_left_the_race_keeps_enough_turns_for_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: int, again: bool
) -> None:
    """A turn counts as disturbed once those after it are known, when the race may have gone on without the arm."""
    plan, path = plan_of(12, candidates=2, repeats=1), tmp_path / "run"
    cold = tuple((number, number, 3.0) for number in range(13, 13 + slow))
    scripts = [NOISY, replace(CANDIDATE, cold=cold), replace(CANDIDATE, seed=3)]
    with monkeypatch.context() as patch:
        patch.setattr(sweep, "find_lost", lambda *_: [])
        Timed(path, plan, *scripts, budget_s=None).run()
    place = {"workload": plan.workloads[0].name, "condition": "c=1", "candidate": "candidate 1"}
    RunDirectory(path).add(Settled(**place, passes=0, blocks=8, reason="behind"))
    run = Timed(path, plan, NOISY, CANDIDATE, CANDIDATE, resume=True, budget_s=None).run()
    assert {turn.arm for turn in run.turns if turn.attempt} == ({"plain", "candidate 1"} if again else set())
    assert Counter(turn.arm for turn in conclude_run(run).run.turns)["candidate 1"] == 9


def test_a_retake_that_was_interrupted_is_gone_on_with(tmp_path: Path) -> None:
    spells = ((8.0, 10.0, 3.0),)
    plan = plan_of(20, repeats=2)
    scripts = [replace(each, spells=spells) for each in (NOISY, CANDIDATE)]
    whole = Timed(tmp_path / "whole", plan, *scripts, budget_s=None).run()
    first = next(turn for turn in whole.turns if turn.attempt)
    dies = replace(scripts[1], dies_after=whole_requests_before(whole, "candidate 1", first.turn) + 10)
    with pytest.raises(BackendError):
        Timed(tmp_path / "run", plan, scripts[0], dies, budget_s=None).run()
    cut = RunDirectory(tmp_path / "run").read()
    assert [turn for turn in cut.turns if turn.attempt]
    run = Timed(tmp_path / "run", plan, NOISY, CANDIDATE, resume=True, budget_s=None).run()
    assert run.turns[: len(cut.turns)] == cut.turns
    keys = [(t.arm, t.repeat, t.block, t.attempt) for t in run.turns]
    assert len(set(keys)) == len(keys)
    assert conclude_run(run).decision.unmeasured == ()


def whole_requests_before(run: Run, arm: str, number: int) -> int:
    """Return how many measured requests an arm had before a turn."""
    return sum(each.arm == arm and each.turn < number for each in run.answers)


def test_a_server_that_compiles_late_is_warm_before_anything_is_measured(tmp_path: Path) -> None:
    late = replace(CANDIDATE, spells=((0.0, 5.0, 12.0),))
    timed = Timed(tmp_path / "run", plan_of(), NOISY, late)
    run = timed.run()
    assert timed.announced[0] > 5.0
    assert conclude_run(run).run.disturbances == ()
    assert all(turn.is_warm for turn in run.turns)


def test_the_first_turns_of_a_server_that_never_gets_steady_count_as_disturbed(tmp_path: Path) -> None:
    factors = [40.0 * 0.75**place for place in range(10)]
    melting = tuple((0.9 * place, 0.9 * (place + 1), factor) for place, factor in enumerate(factors))
    timed = Timed(tmp_path / "run", plan_of(8, repeats=3), NOISY, replace(CANDIDATE, spells=melting), budget_s=20.0)
    run = timed.run()
    assert [line for line in timed.told if "was not steady after the warm-up" in line]
    cold = [turn for turn in run.turns if not turn.is_warm]
    assert {turn.repeat for turn in cold} == {1}
    reasons = {each.reason for each in conclude_run(run).run.disturbances}
    assert "the server's pace was not steady after the warm-up" in reasons


def test_servers_that_do_not_come_to_rest_are_waited_for_and_named(tmp_path: Path) -> None:
    async def read() -> dict[str, object]:
        now = asyncio.get_running_loop().time()
        return {"cpu": {"cores": 2, "own_s": 1.5 * now, "busy_s": 1.5 * now}, "monotonic_s": now}

    timed = Timed(tmp_path / "run", plan_of(8), NOISY, CANDIDATE, read_device=read)
    timed.run()
    assert [line for line in timed.told if "the idle servers still use 1.50 of this machine's cores" in line]
    assert "waiting for the servers to become idle" in timed.progress.waited


def test_nothing_is_said_to_start_where_the_servers_run_already(tmp_path: Path) -> None:
    plan = plan_of(8)
    urls = ("http://127.0.0.1:1", "http://127.0.0.1:2")
    plan = replace(plan, arms=tuple(replace(arm, url=url) for arm, url in zip(plan.arms, urls, strict=True)))
    timed = Timed(tmp_path / "run", plan, NOISY, CANDIDATE, delay_s=FOREVER)
    with pytest.raises(BackendError, match="waiting for the servers' first answers"):
        timed.run()
    assert not [line for line in timed.progress.waited if "starting" in line]


def test_what_is_waited_for_has_its_name(tmp_path: Path) -> None:
    timed = Timed(tmp_path / "run", plan_of(8, conditions=at(1, 4)), NOISY, CANDIDATE)
    timed.run()
    waited = list(dict.fromkeys(timed.progress.waited))
    assert waited[:3] == ["starting the servers", "warming up plain at c=1", "warming up plain at c=4"]
    assert "measuring plain's answers to code" in waited
    assert waited[-3:] == ["measuring code at c=1", "measuring code at c=4", "examining outputs that differ"]


@pytest.mark.parametrize(("slower", "is_looked_at"), [(1, False), (12, True)])
def test_paces_of_many_servers_are_looked_at_where_all_may_not_fit(tmp_path: Path, slower: int, is_looked_at) -> None:
    scripts = [replace(each, step_s=slower * each.step_s) for each in (NOISY, *[CANDIDATE] * 3)]
    timed = Timed(tmp_path / "run", plan_of(8, candidates=3), *scripts)
    timed.run()
    assert any("answers to code" in each for each in timed.progress.waited) is is_looked_at


def test_equal_addresses_are_refused_before_anything_is_asked() -> None:
    arms = (Arm(name="plain", url="http://127.0.0.1:8000"), Arm(name="other", url="http://localhost:8000/v1/"))
    with pytest.raises(InvalidSetup, match="plain and other are one server"):
        check_addresses(arms)
