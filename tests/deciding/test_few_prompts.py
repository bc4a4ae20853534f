"""A few prompts carry no verdict, and of identical servers hardly one is adopted or rejected, however few there are."""

from dataclasses import replace

import numpy as np
import pytest
from tests.support.made_comparisons import FASTER, SLOWER, compared
from tests.support.made_runs import gains, make_run, workload
from tests.support.simulated import Machine

from draftwise.core import Origin, ReasonCode, Verdict
from draftwise.deciding.conclusions import gather_evidence
from draftwise.deciding.thresholds import Thresholds
from draftwise.deciding.verdict import judge
from draftwise.reporting.sentences import describe_reason
from draftwise.statistics import prompt_ratio

TRIALS = 300
LIMITS = Thresholds()
SIZES = (6, 10, 20)
QUIET = {"gain": 0.0}
RESTLESS = {"gain": 0.0, "noise": 0.1, "turn": 0.08, "stalls": 0.1, "stall": 1.0}
UNLIKE = {"gain": 0.3, "heavy": True}
"""Prompts gain and lose, a few of them very much, and nothing on the whole."""


def verdicts(machine: Machine, speedup: float = 1.0) -> list[Verdict]:
    """Return the verdicts of as many measurements; a speed-up of 1 is no difference."""
    rng, design = np.random.default_rng(machine.prompts), machine.design()
    found = []
    for _ in range(TRIALS):
        candidate_N, baseline_N = machine.measure(rng, speedup)
        estimate = prompt_ratio(baseline_N, candidate_N, design)
        assert estimate is not None
        numbers = compared(estimate.interval(), num_prompts=machine.prompts, adjusted_p=estimate.p_value(), tpot=None)
        found.append(judge(numbers, [], LIMITS)[0])
    return found


def share(found: list[Verdict], *wanted: Verdict) -> float:
    return sum(each in wanted for each in found) / len(found)


@pytest.mark.parametrize("factor", [1.5, 0.7])
@pytest.mark.parametrize("num_prompts", [1, 3, 5])
def test_a_few_prompts_decide_nothing_and_the_reason_counts_them(factor: float, num_prompts: int) -> None:
    run = make_run({"ngram k=3": gains(factor)}, workloads=[workload("code", num_prompts)])
    (found,) = gather_evidence(run).comparisons
    assert found.verdict is Verdict.INCONCLUSIVE
    prompts = "1 prompt" if num_prompts == 1 else f"{num_prompts} prompts"
    assert describe_reason(found.reason) == f"rests on {prompts}; at least 6 are needed"


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("asked", [54, 55])
def test_prompts_of_a_known_kind_that_were_never_asked_count_as_unseen(asked: int, pooled: bool) -> None:
    """A tenth of the log asks for 57 % of its tokens: one of these prompts has to be among those that gained."""
    origins = [Origin(row=row, place=row, route="long answer" if row >= 54 else "") for row in range(60)]
    prompts = [
        replace(each, origin=origin, max_tokens=600 if origin.route else 50)
        for each, origin in zip(workload("code", 60).prompts, origins, strict=True)
    ]
    run = make_run(
        {"ngram k=3": gains(1.12)},
        workloads=[replace(workload("code"), prompts=tuple(prompts)), *([workload("chat", 30)] if pooled else ())],
        repeats=1,
        keep=lambda turn: turn.workload == "chat" or all(each in prompts[:asked] for each in turn.prompts),
    )
    found = [each for each in gather_evidence(run).comparisons if each.workload != "chat"]
    assert len(found) == 1 + pooled
    for each in found:
        assert each.reason is not None
        assert (each.verdict, each.reason.code) == (
            (Verdict.INCONCLUSIVE, ReasonCode.UNSEEN) if asked == 54 else (Verdict.ADOPT, ReasonCode.GAIN)
        )
        assert asked == 55 or each.reason.values["share"] == pytest.approx(0.571, abs=1e-3)


@pytest.mark.parametrize(("speedup", "verdict"), [(FASTER, Verdict.ADOPT), (SLOWER, Verdict.REJECT)])
def test_every_verdict_says_how_many_prompts_it_rests_on(speedup, verdict: Verdict) -> None:
    found, reason = judge(compared(speedup, num_prompts=6), [], LIMITS)
    assert found is verdict
    assert describe_reason(reason).endswith("(6 prompts)")


@pytest.mark.parametrize("num_prompts", SIZES)
@pytest.mark.parametrize("trouble", [QUIET, RESTLESS, UNLIKE], ids=["quiet", "restless", "unlike prompts"])
@pytest.mark.parametrize("passes", [1, 3])
def test_no_difference_is_hardly_ever_adopted_or_rejected(trouble: dict, num_prompts: int, passes: int) -> None:
    found = verdicts(Machine(prompts=num_prompts, passes=passes, **trouble))
    assert share(found, Verdict.ADOPT, Verdict.REJECT) <= 0.04


@pytest.mark.parametrize("num_prompts", [10, 20])
def test_a_fifth_faster_is_found(num_prompts: int) -> None:
    assert share(verdicts(Machine(prompts=num_prompts, passes=3, gain=0.05), 1.2), Verdict.ADOPT) > 0.9


@pytest.mark.parametrize("num_prompts", [10, 20])
def test_a_fifth_slower_is_found(num_prompts: int) -> None:
    assert share(verdicts(Machine(prompts=num_prompts, passes=3, gain=0.05), 1 / 1.2), Verdict.REJECT) > 0.9
