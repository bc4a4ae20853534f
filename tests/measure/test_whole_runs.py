"""Whole runs against fakes whose truth is known: the decision must be that truth."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support import virtual_time
from tests.support.combinations import EVERY_CASE
from tests.support.fake_server import FakeBackend, FakeScript
from tests.support.measuring import (
    FASTER,
    PLAIN,
    Recorder,
    compare_one,
    make_plan,
    make_session,
    make_workload,
    measure,
    noisy,
)
from tests.support.validity import bend_turns, run_of

from draftwise.core import Comparison, InvalidSetup, SpecConfig, SpecStats, Verdict
from draftwise.deciding.conclusions import conclude_run
from draftwise.reporting.conditions import describe_rollback
from draftwise.reporting.sentences import describe_decision, describe_reason
from draftwise.runs import RunDirectory


def codes(comparison: Comparison) -> list[str]:
    return [finding.code for finding in comparison.findings]


def test_a_against_a_gains_nothing(tmp_path: Path) -> None:
    in_vain = replace(PLAIN, k=1, accepted=(0,))
    runs = [
        compare_one(tmp_path / str(seed), noisy(in_vain, 2 * seed + 1), plain=noisy(PLAIN, 2 * seed))
        for seed in range(20 if EVERY_CASE else 8)
    ]
    assert sum(run.verdict is not Verdict.NO_GAIN for run in runs) <= 1


def test_a_ten_percent_gain_is_adopted_and_a_ten_percent_loss_rejected(tmp_path: Path) -> None:
    spec = FakeScript(k=2, accepted=(1,), first_token_s=0.004)
    plain = noisy(replace(PLAIN, first_token_s=0.004), 1)
    many = {"workloads": (make_workload(num_prompts=30),), "repeats": 1}
    faster = compare_one(tmp_path / "faster", noisy(replace(spec, step_s=2 * 0.004 / 1.12), 2), plain=plain, **many)
    slower = compare_one(tmp_path / "slower", noisy(replace(spec, step_s=2 * 0.004 / 0.88), 3), plain=plain, **many)
    assert (faster.verdict, slower.verdict) == (Verdict.ADOPT, Verdict.REJECT)


def test_the_numbers_are_what_the_script_says(tmp_path: Path) -> None:
    """One draft of 3 in three stands whole, one by 1, one not at all: 7 tokens in 3 steps of 4.5 ms."""
    found = compare_one(tmp_path / "run", FASTER, workloads=(make_workload(num_prompts=6, max_tokens=400),))
    assert found.verdict is Verdict.ADOPT
    assert found.counters.spec.acceptance_length == pytest.approx(7 / 3, rel=0.02)
    assert found.counters.spec.rate_per_pos == pytest.approx((2 / 3, 1 / 3, 1 / 3), rel=0.02)
    assert found.counters.tokens_per_step == pytest.approx(7 / 3, rel=0.02)
    assert found.tpot is not None
    assert found.tpot.value == pytest.approx((4.5 * 3 / 7) / 4, rel=0.02)
    assert found.ttft is not None
    assert found.ttft.value == pytest.approx(1)
    assert found.conversion == pytest.approx(found.speedup.value / found.counters.spec.acceptance_length)
    assert found.equal_outputs == (6, 6)


def test_a_server_that_remembers_is_judged_by_the_first_pass(tmp_path: Path) -> None:
    script = FakeScript(k=8, accepted=(0, 1), step_s=0.0045)
    honest = compare_one(tmp_path / "forgets", script)
    remembering = compare_one(tmp_path / "remembers", replace(script, remembers=True))
    once = compare_one(tmp_path / "once", script, repeats=1)
    assert remembering.repetitions == (1,)
    assert honest.repetitions == (1, 2, 3)
    assert remembering.speedup.value == pytest.approx(honest.speedup.value)
    assert remembering.speedup.low == pytest.approx(once.speedup.low)
    assert remembering.warm_speedup is not None
    assert remembering.warm_speedup > 2 * remembering.speedup.value
    assert codes(remembering) == ["repeated-prompts-warm-cache"]


def test_outputs_that_differ_block_an_adoption(tmp_path: Path) -> None:
    sure = replace(PLAIN, gap=2.0)
    found = compare_one(tmp_path / "run", replace(FASTER, differs_at=5, gap=2.0), plain=sure)
    assert (found.verdict, found.equal_outputs) == (Verdict.BLOCKED, (0, 8))
    finding, other = found.findings
    assert (finding.code, other.code) == ("outputs-differ", "other-model")
    assert "at output token 5 (the two tokens are 2 nats apart)" in finding.message


def test_a_numeric_tie_does_not(tmp_path: Path) -> None:
    tie = replace(PLAIN, gap=0.1)
    found = compare_one(tmp_path / "run", replace(FASTER, differs_at=5, gap=0.1), plain=tie)
    assert (found.verdict, found.equal_outputs) == (Verdict.ADOPT, (0, 8))
    assert codes(found) == ["numeric-ties"]


def test_above_temperature_zero_outputs_are_not_compared(tmp_path: Path) -> None:
    found = compare_one(tmp_path / "run", FASTER, temperature=0.7)
    assert (found.verdict, found.equal_outputs) == (Verdict.ADOPT, None)
    assert codes(found) == []


def test_another_model_is_told_by_greedy_answers_above_temperature_zero(tmp_path: Path) -> None:
    sure = replace(PLAIN, gap=2.0)
    found = compare_one(tmp_path / "run", replace(FASTER, differs_at=5, gap=2.0), plain=sure, temperature=0.7)
    assert found.verdict is Verdict.BLOCKED
    assert codes(found) == ["other-model"]
    mute = {"reports_tokens": False, "refuses": ("stream_options", "return_token_ids")}
    silent = (replace(FASTER, differs_at=5, gap=2.0, **mute), replace(sure, **mute))
    assert "other-model" in codes(compare_one(tmp_path / "mute", silent[0], plain=silent[1], temperature=0.7))
    rounding = compare_one(
        tmp_path / "tie", replace(FASTER, differs_at=5, gap=0.3), plain=replace(PLAIN, gap=0.3), temperature=0.7
    )
    assert rounding.verdict is Verdict.ADOPT


def refusal(path: Path, candidate: FakeScript, *, plain: FakeScript = PLAIN, method: str = "ngram") -> list[str]:
    """Return the codes of what ends a run before its first measured request."""
    plan = make_plan()
    drafting = plan.arms[0].with_spec(SpecConfig(method=method, num_speculative_tokens=3))
    plan = replace(plan, arms=(plan.arms[0], replace(drafting, name="candidate 1")))
    session = make_session(path, plan, (plain, candidate))
    with pytest.raises(InvalidSetup) as refused:
        virtual_time.run(session.run())
    assert not (path / "manifest.json").exists()
    return [finding.code for finding in refused.value.findings]


def test_a_drafter_that_never_drafts_ends_the_run_in_the_warm_up(tmp_path: Path) -> None:
    assert refusal(tmp_path / "run", FakeScript(step_s=0.002), method="eagle3") == ["not-speculating"]


def test_a_lookup_that_found_nothing_in_the_warm_up_is_measured(tmp_path: Path) -> None:
    """Text that does not repeat gives it nothing to draft: that says nothing against its server yet."""
    found = compare_one(tmp_path / "run", FakeScript(step_s=0.002))
    assert (found.verdict, codes(found)) == (Verdict.BLOCKED, ["not-speculating"])


def test_a_gain_without_a_draft_is_not_speculation(tmp_path: Path) -> None:
    """It drafts in the warm-up, and no more from the first measured turn on."""
    run = run_of(tmp_path / "run", FASTER, plain=PLAIN)
    silent = bend_turns(run, lambda turn: replace(turn, counters=replace(turn.counters, spec=SpecStats())))
    (found,) = conclude_run(silent).decision.comparisons
    assert (found.verdict, codes(found)) == (Verdict.BLOCKED, ["not-speculating"])


def test_a_gain_beyond_the_acceptance_is_not_speculation_either(tmp_path: Path) -> None:
    found = compare_one(tmp_path / "run", FakeScript(k=3, accepted=(0, 0, 0, 1), step_s=0.002))
    assert (found.verdict, codes(found)) == (Verdict.BLOCKED, ["unexplained-speedup"])


def test_a_plain_server_that_speculates_ends_the_run_in_the_warm_up(tmp_path: Path) -> None:
    plain = FakeScript(k=1, accepted=(1,), step_s=0.009)
    assert refusal(tmp_path / "run", FASTER, plain=plain) == ["plain-speculates"]


def test_another_model_at_the_candidate_is_told_before_the_first_measured_request(tmp_path: Path) -> None:
    progress = Recorder()
    told: list[tuple[str, bool]] = []
    progress.notice = lambda finding: told.append((f"{finding.severity}: {finding}", not progress.done))
    scripts = (PLAIN, replace(FASTER, model="another"))
    session = make_session(tmp_path / "run", make_plan(repeats=1), scripts, progress=progress)
    virtual_time.run(session.run())
    assert [early for line, early in told if line.startswith("error: candidate 1: it serves 'another'")] == [True]
    (found,) = conclude_run(RunDirectory(tmp_path / "run").read()).decision.comparisons
    assert found.verdict is Verdict.BLOCKED


def test_swapped_servers_are_called_swapped(tmp_path: Path) -> None:
    assert refusal(tmp_path / "run", PLAIN, plain=FASTER) == ["swapped-servers"]


def test_late_first_tokens_make_it_mixed(tmp_path: Path) -> None:
    found = compare_one(tmp_path / "run", replace(FASTER, first_token_s=0.030))
    assert (found.verdict, codes(found)) == (Verdict.MIXED, ["ttft-damaged"])


def test_the_decision_names_the_traffic_that_gains_and_when_to_roll_back(tmp_path: Path) -> None:
    workloads = (make_workload("code"), make_workload("prose"))
    decision = measure(tmp_path / "run", FASTER, replace(PLAIN, k=3, step_s=0.005), workloads=workloads)
    assert [each.workload for each in decision.comparisons] == ["code", "code", "prose", "prose", "all", "all"]
    assert "candidate 1 answers code 1.8" in describe_decision(decision)
    assert "one setting for all of it: candidate 1, 1.8" in describe_decision(decision)
    assert len(describe_rollback(decision)) == 3
    # 4.5 ms a step instead of 4: plain speed is reached at 1.125 tokens per step, less what the first token costs.
    assert (
        "candidate 1 on code: roll back if, for an hour, tokens per step stay under 1.2"
        in describe_rollback(decision)[0]
    )


def test_where_nothing_pays_the_decision_is_to_keep_plain_decoding(tmp_path: Path) -> None:
    decision = measure(tmp_path / "run", replace(PLAIN, k=3, step_s=0.005))
    assert "leave code plain: no candidate qualified. The fastest was" in describe_decision(decision)
    assert decision.rollback == ()


def test_concurrent_requests_are_all_answered(tmp_path: Path) -> None:
    found = compare_one(tmp_path / "run", FASTER, concurrency=3, repeats=2)
    assert found.num_prompts == 8


@pytest.mark.parametrize("slow", ["plain", "candidate 1"])
@pytest.mark.parametrize(
    ("spells", "when"),
    [
        (((1.0, 1e9, 1.3),), "since its warm-up"),
        (tuple((0.07 * n, 0.07 * n + 0.025, 2.2) for n in range(2000)), "part of the time"),
    ],
)
def test_a_server_that_is_throttled_all_the_time_settles_nothing(
    tmp_path: Path, slow: str, spells: tuple[tuple[float, float, float], ...], when: str
) -> None:
    """From its warm-up on, or many times in each request: each pair of turns has the same ratio then."""
    scripts = {"plain": noisy(PLAIN, 1), "candidate 1": noisy(replace(PLAIN, k=1, accepted=(1,), step_s=0.008), 2)}
    many = {"workloads": (make_workload(num_prompts=30),), "repeats": 1}
    fair = compare_one(tmp_path / "fair", scripts["candidate 1"], plain=scripts["plain"], **many)
    assert fair.verdict in (Verdict.NO_GAIN, Verdict.INCONCLUSIVE)
    assert "took" not in describe_reason(fair.reason)
    scripts[slow] = replace(scripts[slow], spells=spells)
    found = compare_one(tmp_path / "unfair", scripts["candidate 1"], plain=scripts["plain"], **many)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert f"a decoding step of {slow} took" in describe_reason(found.reason)
    assert when in describe_reason(found.reason)


class Limited(FakeBackend):
    """A fake that takes longer once more tokens are asked of it than come back by the second; it refuses nothing."""

    def __init__(self, name: str, script: FakeScript, *, burst: float, per_s: float, slower: float) -> None:
        super().__init__(name, script)
        self.usual, self.burst, self.per_s, self.slower = script, burst, per_s, slower
        self.left, self.at = burst, 0.0

    async def stream(self, path, body, received=None):
        if body:
            now = self.now()
            back = min(self.burst, self.left + self.per_s * (now - self.at))
            self.left, self.at = back - json.loads(body).get("max_tokens", 1), now
            step_s = self.usual.step_s * (self.slower if self.left < 0 else 1.0)
            self.engine.script = self.engine.batch._script = replace(self.usual, step_s=step_s)
        return await super().stream(path, body, received)


@pytest.mark.parametrize("slow", ["plain", "candidate 1"])
def test_a_limit_that_is_used_up_before_the_first_turn_settles_nothing(tmp_path: Path, slow: str) -> None:
    """It comes back in part while the other server answers, and the time ends with little to spare."""
    scripts = {"plain": noisy(PLAIN, 1), "candidate 1": noisy(replace(PLAIN, k=1, accepted=(1,), step_s=0.008), 2)}
    plan = make_plan(workloads=(make_workload(num_prompts=60),), repeats=1)
    session = make_session(tmp_path / "run", plan, tuple(scripts.values()), budget_s=13.0)
    limited = Limited(slow, scripts[slow], burst=200.0, per_s=60.0, slower=1.5)
    session.backends = [limited if name == slow else FakeBackend(name, each) for name, each in scripts.items()]
    virtual_time.run(session.run())
    (found,) = conclude_run(RunDirectory(tmp_path / "run").read()).decision.comparisons
    assert found.verdict is Verdict.INCONCLUSIVE
    assert f"a decoding step of {slow} took" in describe_reason(found.reason)
    assert "since its warm-up" in describe_reason(found.reason)


@pytest.mark.parametrize("slow", ["plain", "candidate 1"])
@pytest.mark.parametrize("seed", range(2))
def test_two_servers_that_slow_down_unequally_settle_nothing(tmp_path: Path, slow: str, seed: int) -> None:
    """The machine slows down both of them, and one has more to do with every request."""
    usual = FakeScript(step_s=0.03, first_token_s=0.06, step_jitter=0.04, drift_per_s=0.023)
    leak = tuple((number, number, 1 + 0.005 * number) for number in range(1, 400))
    scripts = {"plain": usual, "candidate 1": replace(usual, k=1, accepted=(1,), step_s=0.06)}
    scripts[slow] = replace(scripts[slow], cold=leak)
    plain, candidate = (noisy(each, seed + n) for n, each in enumerate(scripts.values()))
    plan = make_plan(workloads=(make_workload(num_prompts=60, max_tokens=12),))
    session = make_session(tmp_path / "run", plan, (plain, candidate), budget_s=90.0)
    virtual_time.run(session.run())
    (found,) = conclude_run(RunDirectory(tmp_path / "run").read()).decision.comparisons
    assert found.verdict is Verdict.INCONCLUSIVE
    assert f"compared with the other server's, a decoding step of {slow} took" in describe_reason(found.reason)


class Remembered(FakeBackend):
    """A fake behind a cache of answers, which gives a text that it knows four times as fast."""

    async def stream(self, path, body, received=None):
        if body:
            known = self.__dict__.setdefault("known", set())
            prompt = json.dumps(json.loads(body)["prompt"])
            speed = 4.0 if prompt in known else 1.0
            known.add(prompt)
            script = self.usual = getattr(self, "usual", self.engine.script)
            quick = replace(script, step_s=script.step_s / speed, first_token_s=script.first_token_s / speed)
            self.engine.script = self.engine.batch._script = quick
        return await super().stream(path, body, received)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_cache_of_answers_in_front_of_the_baseline_settles_nothing(tmp_path: Path, concurrency: int) -> None:
    plan = make_plan(workloads=(make_workload(num_prompts=30),), concurrency=concurrency)
    scripts = noisy(PLAIN, 1), noisy(replace(PLAIN, k=1, accepted=(1,), step_s=0.006), 2)
    session = make_session(tmp_path / "run", plan, scripts, budget_s=60.0)
    session.backends = [Remembered("plain", scripts[0]), FakeBackend("candidate 1", scripts[1])]
    virtual_time.run(session.run())
    (found,) = conclude_run(RunDirectory(tmp_path / "run").read()).decision.comparisons
    assert found.verdict is not Verdict.REJECT
