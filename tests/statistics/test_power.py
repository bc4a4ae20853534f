"""What is promised to be found is found that often, and more prompts settle what they are said to settle."""

import math

import numpy as np
import pytest
from tests.support.simulated import Machine

from draftwise.statistics import (
    POWER,
    Conclusion,
    PowerOutlook,
    RatioEstimate,
    Spread,
    conclude,
    find_outlook,
    prompt_ratio,
)

TRIALS = 400
MARGIN = 0.03


def measure(machine: Machine, speedup: float, seed: int = 0) -> list[RatioEstimate]:
    rng, design = np.random.default_rng(seed), machine.design()
    readings = (machine.measure(rng, speedup) for _ in range(TRIALS))
    return [prompt_ratio(plain_N, candidate_N, design) for candidate_N, plain_N in readings]


def share_faster(found: list[RatioEstimate], margin: float) -> float:
    return sum(conclude(each.interval(), margin) is Conclusion.FASTER for each in found) / TRIALS


def typical(found: list[RatioEstimate]) -> RatioEstimate:
    return sorted(found, key=lambda each: each.spread.variance)[TRIALS // 2]


@pytest.mark.parametrize("margin", [0.0, MARGIN])
@pytest.mark.parametrize("machine", [Machine(prompts=12), Machine(prompts=40, per_turn=8)], ids=["stream", "load"])
def test_the_detectable_speedup_is_detected(machine: Machine, margin: float) -> None:
    speedup = find_outlook(typical(measure(machine, 1.0)), machine.passes, margin=margin).detectable
    assert share_faster(measure(machine, speedup, seed=1), margin) == pytest.approx(POWER, abs=0.07)


def test_five_percent_are_found_with_as_many_prompts_as_it_said() -> None:
    pilot = typical(measure(Machine(prompts=12, gain=0.05), 1.05))
    as_if_known = RatioEstimate(log=math.log(1.05), spread=pilot.spread)
    count = find_outlook(as_if_known, 5, margin=MARGIN).prompts
    assert 50 < count < 500
    found = measure(Machine(prompts=count, gain=0.05), 1.05, seed=1)
    assert share_faster(found, MARGIN) == pytest.approx(POWER, abs=0.1)


def estimate(ratio: float, error: float, lasting: float = 0.0, prompts: int = 10) -> RatioEstimate:
    spread = Spread(variance=error**2, degrees=prompts - 1, lasting=lasting, num_prompts=prompts, num_blocks=100)
    return RatioEstimate(log=math.log(ratio), spread=spread)


@pytest.mark.parametrize("ratio", [1.1, 0.9, 1.0])
def test_more_prompts_settle_every_outcome(ratio: float) -> None:
    loose = estimate(ratio, 0.1)
    count = find_outlook(loose, 5, margin=MARGIN).prompts
    tight = estimate(ratio, 0.1 * math.sqrt(10 / count), prompts=count)
    assert conclude(loose.interval(), MARGIN) is None
    assert count > 10
    assert conclude(tight.interval(), MARGIN) is not None


def test_an_estimate_on_the_limit_is_never_settled() -> None:
    assert find_outlook(estimate(1.03, 0.01), 5, margin=MARGIN).prompts is None


def test_passes_help_where_turns_differ_and_not_where_prompts_do() -> None:
    assert find_outlook(estimate(1.1, 0.05, lasting=0.0), 5, margin=MARGIN).repetitions > 5
    assert find_outlook(estimate(1.1, 0.05, lasting=0.05**2), 5, margin=MARGIN).repetitions is None
    assert find_outlook(estimate(1.5, 0.05, lasting=0.05**2), 5, margin=MARGIN).repetitions == 1, "any would do"


def test_nothing_is_promised_where_nothing_was_repeated() -> None:
    alone = estimate(1.1, math.inf)
    assert find_outlook(alone, 5, margin=MARGIN) == PowerOutlook(
        p_value=1.0, detectable=math.inf, prompts=None, repetitions=None
    )
