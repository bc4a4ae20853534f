"""Ratios of percentiles: their intervals cover, share the luck of prompts and turns, and own up to too few requests."""

import math

import numpy as np
import pytest
from tests.support.combinations import tries
from tests.support.simulated import Machine

from draftwise.statistics import Design, percentile_ratios

TRIALS = tries(200)


def single(values_N: np.ndarray) -> list[list[float]]:
    return values_N[:, None].tolist()


def coverage(machine: Machine, percentile: int) -> tuple[float, float]:
    """Return how often the interval holds the truth, and how often it is bounded."""
    rng = np.random.default_rng(0)
    many = Machine(prompts=200_000, passes=1, gain=machine.gain, turn=machine.turn)
    truth = np.divide(*(np.percentile(arm_N, percentile) for arm_N in many.measure(rng)))
    held = bounded = 0
    for _ in range(TRIALS):
        candidate_N, plain_N = machine.measure(rng)
        interval = percentile_ratios(single(candidate_N), single(plain_N), machine.design())[percentile]
        held += interval.low <= truth <= interval.high
        bounded += interval.low > 0 and interval.high < math.inf
    return held / TRIALS, bounded / TRIALS


@pytest.mark.parametrize("percentile", [50, 90])
@pytest.mark.parametrize(
    "machine",
    [Machine(prompts=100), Machine(prompts=100, per_turn=25), Machine(prompts=30, per_turn=30, passes=8)],
    ids=["one stream", "four turns a pass", "one turn a pass"],
)
def test_intervals_cover(machine: Machine, percentile: int) -> None:
    held, bounded = coverage(machine, percentile)
    assert held > 0.90
    assert bounded > 0.9


def test_a_hundred_requests_do_not_tell_p99() -> None:
    held, bounded = coverage(Machine(prompts=20), 99)
    assert held == 1
    assert bounded < 0.05


def test_prompts_taken_for_independent_requests_do_not_cover() -> None:
    machine = Machine(prompts=60, gain=0.3)
    alone_N = np.arange(300)
    rng, held = np.random.default_rng(0), 0
    for _ in range(TRIALS):
        candidate_N, plain_N = machine.measure(rng)
        design = Design(prompt_N=alone_N, block_N=alone_N)
        interval = percentile_ratios(single(candidate_N), single(plain_N), design)[50]
        held += interval.low <= 1 <= interval.high
    assert held / TRIALS < 0.85


def test_the_value_is_the_ratio_of_the_percentiles() -> None:
    rng = np.random.default_rng(0)
    candidate, plain = ([rng.lognormal(size=rng.integers(0, 9)).tolist() for _ in range(50)] for _ in range(2))
    found = percentile_ratios(candidate, plain, Design.of([(p, p) for p in range(50)]))
    for percentile, interval in found.items():
        ours, theirs = (np.percentile(np.log(np.concatenate(arm)), percentile) for arm in (candidate, plain))
        assert interval.value == pytest.approx(math.exp(ours - theirs))
        assert interval.low < interval.value < interval.high
    assert list(found) == [50, 90, 95, 99]


def test_a_twice_as_slow_arm_is_twice_as_slow_everywhere() -> None:
    plain_N = np.random.default_rng(0).lognormal(size=500)
    design = Design.of([(p, p) for p in range(500)])
    for interval in percentile_ratios(single(2 * plain_N), single(plain_N), design, percentiles=[50, 90]).values():
        assert (interval.low, interval.value, interval.high) == pytest.approx((2, 2, 2))


def test_requests_without_tokens_have_no_inter_token_latencies() -> None:
    design = Design.of([("a", 1), ("b", 2)])
    assert percentile_ratios([[], []], [[1.0], [2.0]], design) == {}


def test_equal_readings_are_certain() -> None:
    """A server on virtual time answers every token after exactly 20 ms."""
    design = Design.of([(p, p) for p in range(10)])
    found = percentile_ratios([[0.01] * 5] * 10, [[0.02] * 5] * 10, design)
    assert all((each.low, each.high) == pytest.approx((0.5, 0.5)) for each in found.values())


def test_one_prompt_says_nothing_about_others() -> None:
    interval = percentile_ratios([[1.0, 2.0]], [[1.0, 2.0]], Design.of([("a", 1)]))[50]
    assert (interval.low, interval.value, interval.high) == (0.0, 1.0, math.inf)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("num_prompts", [1, 2, 3, 6])
@pytest.mark.parametrize("passes", [1, 3])
def test_few_prompts_that_agree_leave_the_extremes_unbounded(num_prompts: int, passes: int) -> None:
    """As all of them lie on one side of an extreme percentile, how sure that is cannot be seen."""
    requests = [(prompt, (block, prompt)) for block in range(passes) for prompt in range(num_prompts)]
    same_N = single(np.ones(len(requests)))
    found = percentile_ratios(same_N, same_N, Design.of(requests))
    assert all(each.value == 1 and each.low <= 1 <= each.high for each in found.values())
    assert (found[99].low, found[99].high) == (0, math.inf)
