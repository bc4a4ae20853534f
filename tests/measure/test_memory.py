"""Servers that remember what they answered: no prompt reaches them twice, and no memory becomes a verdict."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support import virtual_time
from tests.support.combinations import tries
from tests.support.fake_server import FakeBackend, FakeScript
from tests.support.measuring import PLAIN, Recorder, make_plan, make_session, make_workload

from draftwise.core import BackendError, ClosedLoop, Comparison, Condition, Run, RunPlan, Severity, SpecConfig, Verdict
from draftwise.deciding.conclusions import conclude_run
from draftwise.knowledge.spec_keys import find_remembering
from draftwise.measure.readiness import explain_sharing
from draftwise.runs import RunDirectory

SUFFIX = SpecConfig(method="suffix")
NGRAM = SpecConfig(method="ngram", num_speculative_tokens=8)
FORGETFUL = SpecConfig(method="suffix", options={"suffix_decoding_max_cached_requests": 0})
EVEN = FakeScript(k=4, accepted=(0, 1), step_s=0.006, jitter=0.03, seed=5)
"""Its drafts bring back just what they cost: 1.0x."""
REMEMBERING = replace(EVEN, remembers=0.82)
"""The same; it knows six of eight prompts by heart once it has answered them, too few for that to be seen."""
SHORT = (make_workload(num_prompts=8),)
LONG = (make_workload(num_prompts=60),)


def plan_for(spec: SpecConfig | None, **settings: Any) -> RunPlan:
    plan = make_plan(1, **{"workloads": SHORT, "repeats": 5, **settings})
    arms = (plan.arms[0], plan.arms[1].with_spec(spec))
    return replace(plan, arms=arms, remembering=find_remembering(arms))


class Servers:
    """Fakes that outlive a session, as servers at a URL do."""

    def __init__(self, *scripts: FakeScript) -> None:
        self.scripts = scripts
        self.backends = [FakeBackend(name, each) for name, each in zip(("plain", "candidate 1"), scripts, strict=True)]

    def measure(self, path: Path, plan: RunPlan, *, resume: bool = False, progress: Any = None) -> Run:
        session = make_session(path, plan, self.scripts, resume=resume, progress=progress or Recorder())
        session.backends = self.backends
        virtual_time.run(session.run())
        return RunDirectory(path).read()

    def count_asked(self, arm: int) -> Counter[str]:
        """Return how often each prompt of a workload was asked of a server."""
        seen = self.backends[arm].engine._seen
        return Counter({prompt: times for prompt, times in seen.items() if prompt.startswith('"code ')})


def compare(path: Path, plan: RunPlan, candidate: FakeScript) -> Comparison:
    run = Servers(replace(PLAIN, jitter=0.03), candidate).measure(path, plan)
    (comparison,) = conclude_run(run).decision.comparisons
    return comparison


def test_memory_that_repetitions_replay_looks_like_a_gain_and_new_prompts_do_not(tmp_path: Path) -> None:
    """The fault: a config that is taken for one without memory is asked everything five times over."""
    fooled = compare(tmp_path / "repeated", plan_for(NGRAM), REMEMBERING)
    sound = compare(tmp_path / "once", plan_for(SUFFIX), REMEMBERING)
    assert fooled.speedup.low > 1.1
    assert sound.verdict is not Verdict.ADOPT
    assert sound.speedup.low < 1 < sound.speedup.high
    assert sound.speedup.value == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("seed", range(tries(10)))
def test_a_null_effect_of_a_server_that_remembers_is_not_adopted(tmp_path: Path, seed: int) -> None:
    script = replace(REMEMBERING, seed=seed, remembers=1.0)
    found = compare(tmp_path / "run", plan_for(SUFFIX, seed=seed), script)
    assert found.verdict in (Verdict.INCONCLUSIVE, Verdict.NO_GAIN, Verdict.REJECT)


def test_a_true_effect_of_a_server_that_remembers_is_found_on_new_prompts(tmp_path: Path) -> None:
    gaining = replace(EVEN, remembers=1.0, step_s=0.0045)
    found = compare(tmp_path / "run", plan_for(SUFFIX, workloads=LONG), gaining)
    assert found.verdict is Verdict.ADOPT
    assert found.speedup.value == pytest.approx(1.5 * 0.004 / 0.0045, rel=0.06)
    assert found.num_prompts == 60


def test_a_cache_that_is_turned_off_is_measured_like_any_other(tmp_path: Path) -> None:
    found = compare(tmp_path / "run", plan_for(FORGETFUL), replace(EVEN, accepted=(1,)))
    assert found.repetitions == (1, 2, 3, 4, 5)
    assert plan_for(FORGETFUL).remembering == {}


@pytest.mark.parametrize("loads", [(1,), (4,), (1, 2)])
def test_nothing_is_asked_twice_in_a_whole_session(tmp_path: Path, loads: Sequence[int]) -> None:
    conditions = tuple(Condition(load=ClosedLoop(concurrency=each)) for each in loads)
    servers = Servers(PLAIN, replace(EVEN, accepted=(1,)))
    run = servers.measure(tmp_path / "run", plan_for(SUFFIX, workloads=LONG, conditions=conditions, adaptive=True))
    assert set(servers.count_asked(1).values()) == {1}
    assert {turn.condition for turn in run.turns} == {each.label for each in conditions}


class StopAfter(Recorder):
    """Ends a session when so many requests have been answered."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.left = count

    def step(self, done: int, seconds_left: float | None = None, text: str = "") -> None:
        self.left -= bool(text)
        if self.left < 0:
            raise BackendError("cut off")


def test_a_server_that_goes_on_is_not_asked_again_what_it_was_asked_when_a_run_was_cut_off(tmp_path: Path) -> None:
    plan = plan_for(SUFFIX, workloads=LONG, concurrency=4)
    plan = replace(plan, arms=tuple(replace(arm, url=f"http://127.0.0.1:{n}") for n, arm in enumerate(plan.arms, 8000)))
    servers = Servers(PLAIN, replace(EVEN, accepted=(1,)))
    for number in range(4):
        with pytest.raises(BackendError, match="cut off"):
            servers.measure(tmp_path / "run", plan, resume=number > 0, progress=StopAfter(9))
    run = servers.measure(tmp_path / "run", plan, resume=True)
    assert max(servers.count_asked(1).values()) == 1
    assert conclude_run(run).decision.unmeasured


def test_a_server_that_is_started_again_begins_without_memories(tmp_path: Path) -> None:
    plan = plan_for(SUFFIX, workloads=LONG)
    scripts = (PLAIN, replace(EVEN, accepted=(1,)))
    with pytest.raises(BackendError, match="cut off"):
        Servers(*scripts).measure(tmp_path / "run", plan, progress=StopAfter(25))
    run = Servers(*scripts).measure(tmp_path / "run", plan, resume=True)
    whole = Servers(*scripts).measure(tmp_path / "whole", plan)
    assert sorted((t.arm, t.repeat, t.block) for t in run.turns) == sorted(
        (t.arm, t.repeat, t.block) for t in whole.turns
    )
    assert conclude_run(run).decision.unmeasured == ()


def test_prefix_caches_that_take_no_salt_see_each_prompt_once_on_both_arms(tmp_path: Path) -> None:
    caching = {"prefix_caching": True, "prefill_s": 0.001, "refuses": ("cache_salt",)}
    servers = Servers(replace(PLAIN, **caching), replace(EVEN, accepted=(1,), **caching))
    run = servers.measure(tmp_path / "run", plan_for(NGRAM, workloads=LONG))
    assert set(servers.count_asked(1).values()) == {1}
    assert Counter(answer.prompt_id for answer in run.answers if answer.arm == "plain") == Counter(
        answer.prompt_id for answer in run.answers if answer.arm == "candidate 1"
    )
    assert "prefix cache" in run.plan.remembering["candidate 1"]


def test_prefix_caches_that_go_by_the_salt_are_asked_in_every_repetition(tmp_path: Path) -> None:
    servers = Servers(*(replace(each, prefix_caching=True) for each in (PLAIN, replace(EVEN, accepted=(1,)))))
    run = servers.measure(tmp_path / "run", plan_for(NGRAM))
    assert run.plan.remembering == {}
    assert set(servers.count_asked(1).values()) == {5}


def test_what_a_short_workload_can_carry_is_said_with_figures() -> None:
    loads = tuple(Condition(load=ClosedLoop(concurrency=each)) for each in (1, 4, 16))
    plan = plan_for(SUFFIX, workloads=(make_workload("prose", num_prompts=64),), conditions=loads)
    why, short = explain_sharing(plan)
    assert str(why) == (
        "candidate 1 gets each prompt once, because it could remember answers: suffix drafts from what it answered "
        "before; suffix_decoding_max_cached_requests 0 turns that off."
    )
    assert short.severity is Severity.WARNING
    assert str(short).startswith(
        "prose: too few prompts (64) for candidate 1, which must see each prompt only once: measured at c=1 "
        "and c=4. c=16 needs 128 prompts of its own."
    )
    assert list(explain_sharing(plan_for(NGRAM, conditions=loads))) == []
