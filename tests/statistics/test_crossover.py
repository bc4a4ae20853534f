"""The load at which a candidate stops paying is found, with an interval that holds it, by few measurements."""

import math

import numpy as np
import pytest
from tests.support.combinations import tries
from tests.support.simulated import Array, Machine, binomial_bounds

from draftwise.statistics import LoadPoint, RatioEstimate, Spread, find_crossing, next_load, prompt_ratio

TRUTH = 20.0


def point(load: float, ratio: float, error: float = 0.01) -> LoadPoint:
    spread = Spread(variance=error**2, degrees=100, lasting=0.0, num_prompts=100, num_blocks=100)
    return LoadPoint(load=load, estimate=RatioEstimate(log=math.log(ratio), spread=spread))


def true_speedup(load: float) -> float:
    """1.9x for a single stream; verifying drafts costs ever more of a fuller batch."""
    return 1.9 / (1 + 0.9 * (load / TRUTH) ** 0.9)


def test_between_two_points_it_goes_by_the_logarithm_of_the_load() -> None:
    crossing = find_crossing([point(14, math.e), point(64 / 3.5, 1 / math.e)])
    assert crossing.value == pytest.approx(16)
    assert 15.5 < crossing.low < 16 < crossing.high < 16.5


def test_between_far_points_nobody_knows_the_curve() -> None:
    """A ratio of 1.4 until the batch fills the device at 28, then suddenly 0.95: a smooth curve would say 48."""
    points = [point(load, 1.4 if load < 28 else 0.95, 0.005) for load in (1, 4, 16, 32, 64)]
    coarse, fine = find_crossing([points[0], points[1], points[2], points[4]]), find_crossing(points)
    assert (coarse.low, coarse.high) == (16, 64)
    assert next_load([points[2], points[4]]) == 32
    assert 16 < fine.low < 28 < fine.high <= 32


def test_between_near_points_it_is_close_even_where_the_curve_bends() -> None:
    """Step times that grow linearly with the load cross at 10."""
    crossing = find_crossing([point(x, 2 * (10 + x / 2) / (10 + 2 * x), 0.005) for x in (1, 2, 4, 8, 16, 32)])
    assert crossing.low < 10 < crossing.high
    assert crossing.high / crossing.low < 1.2


def test_where_all_pay_it_lies_above() -> None:
    crossing = find_crossing([point(1, 1.8), point(8, 1.4)])
    assert (crossing.value, crossing.low, crossing.high) == (None, 8.0, math.inf)


def test_where_none_pays_it_lies_below() -> None:
    crossing = find_crossing([point(4, 0.9), point(8, 0.8)])
    assert (crossing.value, crossing.low, crossing.high) == (None, 4.0, 4.0)


def test_a_doubtful_last_load_leaves_it_open_above() -> None:
    crossing = find_crossing([point(1, 1.8), point(8, 0.999)])
    assert 7 < crossing.value <= 8
    assert crossing.high == math.inf


def test_a_wrong_order_is_smoothed() -> None:
    """A speed-up that seems to rise with load is averaged with its neighbour."""
    crossing = find_crossing([point(1, 1.5), point(2, 1.0, 0.1), point(4, 1.2, 0.1), point(8, 0.7)])
    assert 4 < crossing.value < 8


def test_unknown_errors_are_left_out() -> None:
    alone = Spread(variance=math.inf, degrees=1, lasting=0.0, num_prompts=1, num_blocks=1)
    nothing = LoadPoint(load=2, estimate=RatioEstimate(log=5.0, spread=alone))
    assert find_crossing([nothing]) is None
    assert next_load([nothing]) is None
    assert find_crossing([point(4, 0.9), nothing]).value is None


def test_deterministic_readings_cross_at_a_point() -> None:
    crossing = find_crossing([point(7, 1.1, 0.0), point(64 / 7, 1 / 1.1, 0.0)])
    assert (crossing.low, crossing.high) == (pytest.approx(8, rel=0.01), pytest.approx(8, rel=0.01))


@pytest.mark.parametrize(
    ("points", "settings", "expected"),
    [
        ([point(1, 1.8), point(8, 1.4)], {}, 16),
        ([point(1, 1.8), point(8, 1.4)], {"most": 10}, None),
        ([point(4, 0.9), point(8, 0.8)], {}, 2),
        ([point(1, 0.9), point(8, 0.8)], {}, None),
        ([point(0.5, 0.9)], {"integer": False, "least": 0.1}, 0.25),
        ([point(4, math.e), point(64, 1 / math.e)], {}, 16),
        ([point(9, 1.5), point(81, 0.9)], {}, 27),
        ([point(15, 1.1), point(16, 0.9)], {}, None),
        ([point(14, 1.05), point(16, 0.95)], {}, None),
        ([point(34, 1.4, 0.05), point(64, 1.01, 0.05), point(128, 0.84, 0.05)], {}, None),  # 66 would be 64 again
    ],
)
def test_where_to_measure_next(points: list[LoadPoint], settings: dict, expected: float | None) -> None:
    found = next_load(points, **settings)
    assert found is None if expected is None else found == pytest.approx(expected)


def test_rates_need_not_be_whole() -> None:
    assert next_load([point(1, 1.2, 0.05), point(3, 0.8, 0.05)], integer=False) == pytest.approx(1.7, abs=0.1)


def measure(rng: np.random.Generator, load: int, machine: Machine, gains_P: Array) -> LoadPoint:
    candidate_N, plain_N = machine.measure(rng, true_speedup(load), gains_P)
    return LoadPoint(load=load, estimate=prompt_ratio(plain_N, candidate_N, machine.design()))


def search(rng: np.random.Generator) -> list[LoadPoint]:
    """Measure three loads, then where it is most telling."""
    machine = Machine(prompts=40, per_turn=8, passes=4)
    gains_P = machine.gains(rng)
    points = [measure(rng, load, machine, gains_P) for load in (1, 8, 64)]
    while len(points) < 10 and (load := next_load(points, most=512)) is not None:
        points.append(measure(rng, int(load), machine, gains_P))
    return points


def test_bisection_finds_it() -> None:
    rng, trials = np.random.default_rng(0), tries(60)
    found = [search(rng) for _ in range(trials)]
    crossings = [find_crossing(points) for points in found]
    held = sum(each.low <= TRUTH <= each.high for each in crossings) / trials
    assert held >= binomial_bounds(0.95, trials, deviations=3)[0]
    assert np.median([each.high / each.low for each in crossings]) < 1.4
    assert np.mean([len(points) for points in found]) < 8


def test_what_prompts_have_in_common_does_not_average_out() -> None:
    """Half-way between two loads, errors of their own count 1/sqrt(2), errors that both share count in full."""
    gains = np.random.default_rng(0).normal(0, 0.2, 50)
    gains -= gains.mean()
    spread = Spread(variance=gains.var(ddof=1) / 50, degrees=49, lasting=0.0, num_prompts=50, num_blocks=250)

    def measured(load: float, log: float, *, named: bool) -> LoadPoint:
        by_prompt = dict(enumerate(log + gains)) if named else {}
        return LoadPoint(load=load, estimate=RatioEstimate(log=log, spread=spread, log_by_prompt=by_prompt))

    common, alone = (
        find_crossing([measured(18, 0.2, named=named), measured(22, -0.2, named=named)]) for named in (True, False)
    )
    ratio = math.log(common.high / common.low) / math.log(alone.high / alone.low)
    assert ratio == pytest.approx(math.sqrt(2), rel=0.1)


def test_it_stops_where_prompts_are_what_is_missing() -> None:
    """All loads have the same unlucky prompts: no further load can tell."""
    rng, machine = np.random.default_rng(1), Machine(prompts=12, gain=0.2, noise=0.001, turn=0.001, stalls=0)
    gains_P = machine.gains(rng)
    points = [measure(rng, load, machine, gains_P) for load in (1, 8, 16, 24, 32, 64)]
    crossing = find_crossing(points)
    assert crossing.high / crossing.low > 1.25
    assert next_load(points) is None
