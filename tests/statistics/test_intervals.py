"""95 % intervals of ratios cover the truth as often as they say, and simpler ways of making them do not."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.combinations import tries
from tests.support.simulated import Array, Machine, binomial_bounds

from draftwise.statistics import (
    Design,
    RatioEstimate,
    find_spread,
    goodput_change,
    prompt_ratio,
    server_ratio,
    total_ratio,
)

TRIALS = tries(1000)


def coverage(machine: Machine, *, speedup: float = 1.1, design: Design | None = None) -> float:
    rng, asked = np.random.default_rng(0), design or machine.design()
    held = 0
    for _ in range(TRIALS):
        candidate_N, plain_N = machine.measure(rng, speedup)
        interval = prompt_ratio(plain_N, candidate_N, asked).interval()
        held += interval.low <= speedup <= interval.high
    return held / TRIALS


MACHINES = {
    "6 prompts, one stream": Machine(prompts=6, passes=3),
    "30 prompts, one stream": Machine(),
    "a few prompts gain far more": Machine(heavy=True),
    "two turns a pass": Machine(per_turn=15),
    "five turns a pass, noisy turns": Machine(prompts=40, passes=3, per_turn=8, turn=0.05),
    "one turn a pass": Machine(per_turn=30, passes=8),
}


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES.keys())
def test_intervals_cover(machine: Machine) -> None:
    low, _ = binomial_bounds(0.95, TRIALS, deviations=3)
    assert low <= coverage(machine) <= 0.985


def test_two_pairs_of_turns_prove_little() -> None:
    assert coverage(Machine(passes=2, per_turn=30)) > 0.97


def test_requests_taken_for_independent_do_not_cover() -> None:
    """What the coverage test is for: the same readings, as if each were a prompt of its own."""
    machine = Machine()
    alone_N = np.arange(machine.prompts * machine.passes)
    assert coverage(machine, design=Design(prompt_N=alone_N, block_N=alone_N)) < 0.8


def test_turns_without_their_shared_luck_do_not_cover() -> None:
    machine = Machine(prompts=40, per_turn=40, turn=0.05, gain=0.02)
    alone = replace(machine.design(), block_N=np.arange(machine.prompts * machine.passes))
    assert coverage(machine, design=alone) < 0.8


def estimate(candidate_PR: Array, plain_PR: Array) -> RatioEstimate:
    """Return the ratio of readings of one stream, [prompts, passes]."""
    size, passes = candidate_PR.shape
    design = Design.of([(p, (r, p)) for p in range(size) for r in range(passes)])
    found = prompt_ratio(candidate_PR.ravel(), plain_PR.ravel(), design)
    assert found is not None
    return found


def test_a_drifting_machine_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    seconds_PR = np.exp(rng.normal(size=(10, 4)))
    drift_PR = np.exp(np.linspace(0, 3, 40)).reshape(10, 4)
    still, drifting = (
        estimate(1.2 * seconds_PR * each_PR, seconds_PR * each_PR) for each_PR in (np.ones((10, 4)), drift_PR)
    )
    assert still.value == pytest.approx(1.2)
    assert drifting.value == pytest.approx(still.value)


def test_a_passes_slower_turn_is_not_a_stall_of_its_prompts() -> None:
    """Under load one bad turn of three is luck that belongs into the interval."""
    candidate_N = np.repeat([1.0, 1.3, 1.02], 20)
    design = Design.of([(p, r) for r in range(3) for p in range(20)])
    found = prompt_ratio(candidate_N, np.ones(60), design)
    assert found.interval().high > 1.3


def test_copies_of_a_prompt_in_a_turn_count_once() -> None:
    once = Design.of([("a", 1), ("b", 1), ("a", 2), ("b", 2)])
    twice = Design.of([("a", 1), ("b", 1), ("a", 1), ("a", 2), ("b", 2), ("a", 2)])
    one = prompt_ratio(np.array([2.0, 3.0, 2.5, 3.5]), np.ones(4), once)
    two = prompt_ratio(np.array([2.0, 3.0, 2.0, 2.5, 3.5, 2.5]), np.ones(6), twice)
    assert two.log == pytest.approx(one.log)
    assert two.spread.variance == pytest.approx(one.spread.variance)


def test_missing_readings_are_left_out() -> None:
    nan = float("nan")
    design = Design.of([("a", 1), ("b", 2), ("a", 3), ("b", 4), ("c", 5)])
    found = prompt_ratio(np.array([2.0, 4.0, nan, 4.0, nan]), np.array([1.0, 1.0, 1.0, 1.0, 1.0]), design)
    assert found.value == pytest.approx(math.sqrt(8))
    assert found.spread.num_prompts == 2
    assert dict(found.log_by_prompt) == pytest.approx({"a": math.log(2), "b": math.log(4)})
    assert prompt_ratio(np.array([nan]), np.array([1.0]), Design.of([("a", 1)])) is None


@pytest.mark.parametrize("design", [[("a", 1)], [("a", 1), ("a", 2)], [("a", 1), ("b", 1)]])
def test_one_prompt_or_one_turn_says_nothing_about_others(design: list[tuple[str, int]]) -> None:
    found = prompt_ratio(np.full(len(design), 2.0), np.ones(len(design)), Design.of(design))
    interval = found.interval()
    assert (interval.value, interval.low, interval.high) == (pytest.approx(2.0), 0.0, math.inf)
    assert found.p_value() == 1.0


ratios = st.lists(st.floats(0.1, 10), min_size=2, max_size=20)


@given(ratios, st.floats(0.1, 10))
def test_scaling_the_candidate_scales_the_ratio(values: list[float], factor: float) -> None:
    plain = np.ones((len(values), 1))
    one, other = (estimate(np.array(values)[:, None] * by, plain).interval() for by in (1, factor))
    assert other.value == pytest.approx(one.value * factor)
    assert (other.low, other.high) == pytest.approx((one.low * factor, one.high * factor))


@given(ratios)
def test_an_interval_holds_its_value_and_swapping_the_sides_inverts_it(values: list[float]) -> None:
    given_, plain = np.array(values)[:, None], np.ones((len(values), 1))
    one, other = estimate(given_, plain).interval(), estimate(plain, given_).interval()
    assert one.low <= one.value * (1 + 1e-9)
    assert one.value <= one.high * (1 + 1e-9)
    assert (other.low, other.high) == pytest.approx((1 / one.high, 1 / one.low))


@given(ratios, st.floats(0.2, 5))
def test_an_interval_excludes_a_ratio_just_when_its_test_is_significant(values: list[float], ratio: float) -> None:
    found = estimate(np.array(values)[:, None], np.ones((len(values), 1)))
    interval, p_value = found.interval(), found.p_value(ratio)
    if abs(p_value - 0.05) > 1e-6 and found.spread.variance > 1e-12:
        assert (p_value < 0.05) == (not interval.low <= ratio <= interval.high)


def test_rounding_is_no_difference() -> None:
    """Servers on virtual time differ in the last digit of a float, always in the same direction."""
    assert estimate(np.full((5, 3), 1 + 1e-15), np.ones((5, 3))).p_value() == 1
    assert estimate(np.full((5, 3), 1.1), np.ones((5, 3))).p_value() < 1e-9


def test_long_answers_weigh_more_in_the_total() -> None:
    tokens, plain_s, candidate_s = np.array([10.0, 90.0]), np.array([1.0, 9.0]), np.array([1.0, 4.5])
    design = Design.of([("short", 1), ("long", 2)])
    assert total_ratio(tokens, candidate_s, tokens, plain_s, design).value == pytest.approx(10 / 5.5)
    assert prompt_ratio(tokens / candidate_s, tokens / plain_s, design).value == pytest.approx(math.sqrt(2))


def test_the_totals_interval_covers() -> None:
    """Unweighted prompts, so that the true ratio is the ratio of expectations, e^(gain^2 / 2) below 1."""
    machine = Machine(prompts=20, stalls=0, drift=0)
    truth = math.exp(-(machine.gain**2) / 2)
    rng, design = np.random.default_rng(1), machine.design()
    held = 0
    for _ in range(TRIALS):
        candidate_N, plain_N = machine.measure(rng)
        interval = total_ratio(np.ones(100), candidate_N, np.ones(100), plain_N, design).interval()
        held += interval.low <= truth <= interval.high
    assert 0.91 <= held / TRIALS <= 0.985


def test_a_servers_throughput_is_one_number_a_turn() -> None:
    found = server_ratio(np.array([110.0, 121.0, 110.0, 121.0]), np.full(4, 100.0))
    assert found.value == pytest.approx(math.sqrt(1.1 * 1.21))
    assert found.spread.degrees == 3
    assert found.spread.error == pytest.approx(np.std(np.log([1.1, 1.21] * 2), ddof=1) / 2)


def test_goodput_that_never_changes_still_has_an_interval() -> None:
    design = Design.of([(p, p) for p in range(30)])
    same = goodput_change(np.ones(30), np.ones(30), design)
    assert same.value == 0
    assert -0.1 < same.low < 0 < same.high < 0.1


def test_goodput_counts_requests_that_change_sides() -> None:
    design = Design.of([(p, p) for p in range(100)])
    better = goodput_change(np.repeat([1.0, 0.0], [90, 10]), np.repeat([1.0, 0.0], [60, 40]), design)
    assert better.value == pytest.approx(0.3)
    assert (better.low, better.high) == pytest.approx((0.208, 0.392), abs=0.005)


def test_the_variance_over_two_dimensions_counts_noise_once() -> None:
    """Nothing but noise on a grid of 40 prompts and 40 turns: the variance of its mean is noise / 1600."""
    design = Design.of([(p, r) for p in range(40) for r in range(40)])
    rng = np.random.default_rng(0)
    found = []
    for _ in range(40):
        noise_N = rng.normal(size=1600)
        found.append(find_spread((noise_N - noise_N.mean()) / 1600, design).variance)
    assert np.mean(found) == pytest.approx(1 / 1600, rel=0.2)
