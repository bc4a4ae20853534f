"""Whole runs under load against fakes whose truth is known: the decision must be that truth."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support import virtual_time
from tests.support.fake_server import FakeScript
from tests.support.fake_server.script import find_crossover
from tests.support.measuring import CONTEXT, make_plan, make_session, make_workload

from draftwise.core import ClosedLoop, Comparison, Condition, Decision, OpenLoop, Prompt, Verdict, Workload
from draftwise.deciding.comparison.pooled_acceptance import pool_acceptance
from draftwise.deciding.conclusions import conclude_run, gather_evidence
from draftwise.reporting.conditions import describe_unmeasured
from draftwise.reporting.sentences import describe_decision, describe_reason
from draftwise.runs import RunDirectory


def run(
    path: Path, plain: FakeScript, *candidates: FakeScript, slo: dict[str, float] | None = None, **plan: Any
) -> Decision:
    context = replace(CONTEXT, thresholds=slo or {})
    virtual_time.run(
        make_session(path, make_plan(len(candidates), **plan), (plain, *candidates), context=context).run()
    )
    return conclude_run(RunDirectory(path).read()).decision


def closed(*streams: int) -> tuple[Condition, ...]:
    return tuple(Condition(load=ClosedLoop(concurrency=each)) for each in streams)


def arriving(*rates: float) -> tuple[Condition, ...]:
    return tuple(Condition(load=OpenLoop.steady(each)) for each in rates)


BATCHING = FakeScript(row_s=0.0001, knee=8, first_token_s=0.004, jitter=0.02, seed=1)
"""Steps grow with the batch from 8 rows on; a draft of 3 fills the batch four times as fast."""
DRAFTING = FakeScript(
    row_s=0.0001, knee=8, first_token_s=0.004, step_s=0.0045, k=3, accepted=(3, 1, 0), jitter=0.02, seed=2
)


def test_the_concurrency_up_to_which_speculation_pays_is_found(tmp_path: Path) -> None:
    decision = run(
        tmp_path / "run",
        BATCHING,
        DRAFTING,
        conditions=closed(1, 8, 16, 32),
        workloads=(make_workload(num_prompts=12),),
    )
    truth = find_crossover(BATCHING, DRAFTING)
    (crossover,) = decision.crossovers
    assert crossover.value == pytest.approx(truth, rel=0.1)
    assert crossover.low <= truth <= crossover.high
    verdicts = [each.verdict for each in decision.comparisons]
    assert verdicts == [Verdict.ADOPT, Verdict.ADOPT, Verdict.ADOPT, Verdict.REJECT]
    assert f"up to {math.floor(crossover.value)} (" in describe_decision(decision)
    assert decision.unmeasured == ()


def test_server_and_requests_agree_in_a_full_closed_loop(tmp_path: Path) -> None:
    """Lead-in and fillers keep exactly 8 in flight, so that the server gains what its requests gain."""
    (found,) = run(tmp_path / "run", BATCHING, DRAFTING, conditions=closed(8)).comparisons
    assert found.throughput is not None
    assert found.throughput.value == pytest.approx(found.total.value, rel=0.03)
    expected = BATCHING.tpot(8) / DRAFTING.tpot(8)
    assert found.tpot is not None
    assert 1 / found.tpot.value == pytest.approx(expected, rel=0.05)


SLOW = FakeScript(max_running=4, jitter=0.05, seed=1)
"""Serves 4 at a time, 0.18 s each: 22 requests a second are the most it can."""
QUICK = FakeScript(max_running=4, step_s=0.0045, k=3, accepted=(3, 1, 0), jitter=0.05, seed=2)


def test_in_an_overload_the_waiting_shows_and_the_promise_is_kept_by_the_faster_server(tmp_path: Path) -> None:
    plan = {"workloads": (make_workload(num_prompts=30),), "turn_s": 8.0}
    decision = run(tmp_path / "run", SLOW, QUICK, slo={"slo_e2e_s": 0.4}, conditions=arriving(5, 30), **plan)
    calm, overloaded = decision.comparisons
    assert calm.goodput is not None
    assert min(calm.goodput) > 0.95
    assert calm.verdict is Verdict.ADOPT
    assert overloaded.goodput is not None
    assert overloaded.goodput_change is not None
    assert overloaded.goodput[0] < 0.5
    assert overloaded.goodput_change.low > 0
    assert overloaded.verdict is Verdict.ADOPT
    assert overloaded.speedup.value > 2 * calm.speedup.value
    assert decision.crossovers[0].axis == "rate"


def test_a_candidate_that_cannot_keep_up_is_rejected_though_it_decodes_faster(tmp_path: Path) -> None:
    """Its drafter took the memory of half of the batch: each answer is faster, and they queue."""
    narrow = FakeScript(max_running=1, step_s=0.0045, k=3, accepted=(3, 1, 0), jitter=0.05, seed=2)
    plan = {"workloads": (make_workload(num_prompts=30),), "turn_s": 8.0}
    (found,) = run(tmp_path / "run", SLOW, narrow, slo={"slo_e2e_s": 0.4}, conditions=arriving(14), **plan).comparisons
    assert found.tpot is not None
    assert found.tpot.high < 1
    assert found.verdict is Verdict.REJECT


def chat(count: int = 20) -> Workload:
    """Every fourth answer is short."""
    prompts = (Prompt(id=f"p{i}", text=f"chat {i}", max_tokens=6 if i % 4 == 0 else 120 + i) for i in range(count))
    return Workload(name="chat", source="test", prompts=tuple(prompts))


def test_in_a_mixed_workload_the_losing_prompts_are_named(tmp_path: Path) -> None:
    """Drafting begins with a slow first token: short answers lose by it, long ones make up for it."""
    slow_start = FakeScript(first_token_s=0.06, step_s=0.0045, k=3, accepted=(3, 1, 0), jitter=0.02, seed=2)
    plain = FakeScript(jitter=0.02, seed=1)
    found: Comparison
    (found,) = run(tmp_path / "run", plain, slow_start, workloads=(chat(),)).comparisons
    assert found.verdict is Verdict.MIXED
    assert "the first token takes 3.0" in describe_reason(found.reason)
    assert "(5 prompts with under 63.5 output tokens 0.5" in describe_reason(found.reason)


def test_what_was_cut_off_is_not_used_and_said(tmp_path: Path) -> None:
    """The candidate's server dies in the second of three passes."""
    dying = FakeScript(
        row_s=0.0001, knee=8, step_s=0.0045, k=3, accepted=(3, 1, 0), jitter=0.02, seed=2, dies_after=120
    )
    with pytest.raises(Exception, match="candidate 1"):
        run(tmp_path / "run", BATCHING, dying, conditions=closed(8), workloads=(make_workload(num_prompts=32),))
    decision = conclude_run(RunDirectory(tmp_path / "run").read()).decision
    assert any(
        line.startswith("candidate 1, code, c=8:") and "of 3 repetitions" in line
        for line in describe_unmeasured(decision)
    )
    (found,) = decision.comparisons
    assert found.repetitions != (1, 2, 3)


def test_acceptance_by_temperature_is_what_each_request_says(tmp_path: Path) -> None:
    """At temperature 1 half of each position's chance is lost: 1.56 tokens a step instead of 2.44."""
    hot = FakeScript(k=2, rates=(0.8, 0.64), heat=0.5, step_s=0.0045, per_request_metrics=True, seed=2)
    conditions = tuple(Condition(temperature=each) for each in (0.0, 1.0))
    plan = {"conditions": conditions, "workloads": (make_workload(num_prompts=20, max_tokens=120),), "repeats": 2}
    path = tmp_path / "run"
    run(path, FakeScript(seed=1), hot, **plan)
    found = pool_acceptance(each.cell for each in gather_evidence(RunDirectory(path).read()).estimates)
    assert [(each.temperature, each.source, each.num_requests) for each in found] == [
        (0.0, "server", 40),
        (1.0, "server", 40),
    ]
    for each in found:
        assert each.quantiles[1] == pytest.approx(hot.tokens_per_step(each.temperature), rel=0.06)
        assert each.quantiles[0] < each.quantiles[1] < each.quantiles[2]
        assert each.stats.rate_per_pos == pytest.approx(hot.rates_at(each.temperature), rel=0.1)
