"""Looking several times keeps the error that a single look would have; looking naively does not."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import norm
from tests.support.simulated import Machine, binomial_bounds

from draftwise.core import Interval
from draftwise.statistics import (
    Conclusion,
    Design,
    Looks,
    RatioEstimate,
    Spread,
    conclude,
    prompt_ratio,
    settle,
)

TRIALS = 400
LOOKS = (20, 40, 60)


def estimate(log: float, error: float, degrees: float = 1000, num_blocks: int = 100) -> RatioEstimate:
    spread = Spread(variance=error**2, degrees=degrees, lasting=0.0, num_prompts=100, num_blocks=num_blocks)
    return RatioEstimate(log=log, spread=spread)


def test_boundaries_are_those_of_the_literature() -> None:
    """Five equal looks, two-sided 5 %: R's `ldbounds` gives these for the O'Brien-Fleming-like spending."""
    looks = [Looks(pairs=tuple(range(1, done)), planned=5) for done in range(1, 6)]
    bounds = [norm.isf(each.level(n, is_end=n == 5) / 2) for n, each in enumerate(looks, 1)]
    assert bounds == pytest.approx([4.8769, 3.3569, 2.6803, 2.2898, 2.0310], abs=2e-3)


def test_levels_of_the_plan_are_those_of_the_design() -> None:
    levels = (
        Looks(planned=60).level(20, is_end=False),
        Looks(pairs=(20,), planned=60).level(40, is_end=False),
        Looks(pairs=(20, 40), planned=60).level(60),
    )
    assert levels == pytest.approx((0.0002, 0.012, 0.046), rel=0.1)
    assert Looks(pairs=(20, 40), planned=60).level(42) == pytest.approx(0.0499, abs=2e-4), "ended before its plan"
    assert Looks(pairs=(20, 40), planned=60).level(80) == pytest.approx(0.0438, abs=5e-4), "went on after it"


@pytest.mark.parametrize("done", [1, 7, 400])
def test_who_never_looked_has_all_of_the_error_at_the_end(done: int) -> None:
    assert Looks(planned=60).level(done) == pytest.approx(0.05, rel=1e-4)
    assert Looks(planned=60).adjust(0.03, done) == 0.03


@pytest.mark.parametrize("end", [42, 60, 80])
@pytest.mark.parametrize("pairs", [(20,), (20, 40), (6, 11, 20, 36)])
def test_paths_of_pure_noise_cross_as_often_as_promised(pairs: tuple[int, ...], end: int) -> None:
    """Wherever the time ends a plan of 60 pairs: looks on the way, and the end."""
    trials = 40_000
    steps = np.random.default_rng(0).standard_normal((trials, end))
    means = np.cumsum(steps, axis=1) / np.sqrt(np.arange(1, end + 1))
    crossed = np.zeros(trials, dtype=bool)
    for number, done in enumerate((*pairs, end)):
        level = Looks(pairs=pairs[:number], planned=60).level(done, is_end=done == end)
        crossed |= np.abs(means[:, done - 1]) > norm.isf(level / 2)
    low, high = binomial_bounds(0.05, trials)
    assert low < crossed.mean() < high


@pytest.mark.parametrize("error", [1e-9, 1e-4, 0.05, 0.4])
@pytest.mark.parametrize("is_end", [False, True])
def test_an_adjusted_p_value_is_the_error_at_which_the_look_would_be_significant(error: float, is_end: bool) -> None:
    looks = Looks(pairs=(20, 40), planned=60)
    level = looks.level(55, error, is_end=is_end)
    assert looks.adjust(level, 55, is_end=is_end) == pytest.approx(error, rel=0.01)


def test_a_look_that_was_taken_twice_is_one_look() -> None:
    once, twice = Looks(pairs=(20, 40), planned=60), Looks(pairs=(20, 20, 40, 40), planned=60)
    assert once.level(60) == twice.level(60)
    assert once.adjust(0.01, 60) == twice.adjust(0.01, 60)


def test_adjusting_never_makes_a_p_value_smaller() -> None:
    looks = Looks(pairs=(20, 40), planned=60)
    for done, is_end in ((45, False), (45, True), (90, True)):
        adjusted = [looks.adjust(p, done, is_end=is_end) for p in np.geomspace(1e-12, 1, 50)]
        assert adjusted == sorted(adjusted)
        assert all(new >= 0.99 * old for new, old in zip(adjusted, np.geomspace(1e-12, 1, 50), strict=True))


@pytest.mark.parametrize(
    ("interval", "outcome"),
    [
        ((1.04, 1.5, 2.0), Conclusion.FASTER),
        ((1.02, 1.5, 2.0), None),
        ((0.98, 1.0, 1.02), Conclusion.EQUAL),
        ((0.90, 1.0, 1.2), None),
        ((0.80, 0.9, 0.99), Conclusion.SLOWER),
        ((0.96, 0.98, 0.99), None),
        ((0.80, 0.9, 1.01), None),
    ],
)
def test_what_an_interval_says(interval: tuple[float, float, float], outcome: Conclusion | None) -> None:
    low, value, high = interval
    assert conclude(Interval(low=low, value=value, high=high), 0.03) is outcome


def test_a_clear_difference_settles_early_and_a_doubtful_one_does_not() -> None:
    early, late = Looks(planned=60), Looks(pairs=(20,), planned=60)
    clear, doubtful = estimate(0.3, 0.03), estimate(0.3, 0.1)
    assert settle(clear, early, 20, margin=0.03) is Conclusion.FASTER
    assert settle(doubtful, early, 20, margin=0.03) is None
    assert settle(doubtful, late, 45, margin=0.03) is Conclusion.FASTER
    assert settle(doubtful, late, 45, margin=0.03, family=60) is None
    assert settle(estimate(0.0, 0.004), early, 20, margin=0.03) is Conclusion.EQUAL


def test_three_pairs_of_turns_settle_nothing() -> None:
    assert settle(estimate(0.3, 0.001, degrees=2, num_blocks=3), Looks(planned=9), 3, margin=0.03) is None


def test_an_early_interval_is_wider_than_a_late_one() -> None:
    found = estimate(0.1, 0.01)
    levels = [Looks(planned=60).level(20, is_end=False), Looks(pairs=(20,), planned=60).level(40, is_end=False)]
    levels.append(Looks(pairs=(20, 40), planned=60).level(60))
    widths = [math.log((interval := found.interval(1 - level)).high / interval.low) for level in levels]
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 1.05 * math.log(found.interval().high / found.interval().low)


def share_of_runs(says: Callable[[RatioEstimate, Looks, int, bool], bool], *, speedup: float, gain: float) -> float:
    """Return the share of runs of 60 pairs in which a look says so."""
    rng, count, design = np.random.default_rng(0), 0, Machine(prompts=60, passes=1, gain=gain)
    whole = design.design()
    for _ in range(TRIALS):
        candidate_N, plain_N = design.measure(rng, speedup)
        for number, done in enumerate(LOOKS):
            part = Design(prompt_N=whole.prompt_N[:done], block_N=whole.block_N[:done])
            found = prompt_ratio(plain_N[:done], candidate_N[:done], part)
            if says(found, Looks(pairs=LOOKS[:number], planned=60), done, done == LOOKS[-1]):
                count += 1
                break
    return count / TRIALS


def test_a_against_a_is_different_in_at_most_5_percent_of_runs() -> None:
    found = share_of_runs(lambda e, looks, n, end: e.p_value() < looks.level(n, is_end=end), speedup=1, gain=0)
    assert found <= binomial_bounds(0.05, TRIALS, deviations=3)[1]


def test_looking_naively_would_fail_that_test() -> None:
    assert share_of_runs(lambda e, looks, n, end: e.p_value() < 0.05, speedup=1, gain=0) > 0.085


def test_hardly_any_power_is_lost_by_looking_early() -> None:
    late = share_of_runs(lambda e, looks, n, end: end and e.interval().low > 1.03, speedup=1.08, gain=0.12)
    early = share_of_runs(
        lambda e, looks, n, end: e.interval(1 - looks.level(n, is_end=end)).low > 1.03, speedup=1.08, gain=0.12
    )
    assert late > 0.4
    assert early > late - 0.04
