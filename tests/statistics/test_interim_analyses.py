"""Looking after every pass keeps the error that a single look would have; looking naively does not."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from scipy.stats import norm
from tests.support.simulated import Machine, binomial_bounds

from draftwise.core import Interval
from draftwise.statistics import (
    Conclusion,
    Design,
    InterimAnalyses,
    RatioEstimate,
    Spread,
    conclude,
    prompt_ratio,
    settle,
)

TRIALS = 300


def estimate(log: float, error: float, degrees: float = 1000, num_blocks: int = 100) -> RatioEstimate:
    spread = Spread(variance=error**2, degrees=degrees, lasting=0.0, num_prompts=100, num_blocks=num_blocks)
    return RatioEstimate(log=log, spread=spread)


def test_boundaries_are_those_of_the_literature() -> None:
    """Five equal analyses, two-sided 5 %: R's `ldbounds` gives these for the O'Brien-Fleming-like spending."""
    analyses = InterimAnalyses((1, 2, 3, 4, 5))
    bounds = [norm.isf(analyses.level(done) / 2) for done in analyses.repetitions]
    assert bounds == pytest.approx([4.8769, 3.3569, 2.6803, 2.2898, 2.0310], abs=2e-3)


def test_one_analysis_costs_nothing() -> None:
    assert InterimAnalyses((5,)).level(5) == pytest.approx(0.05, rel=1e-4)
    assert InterimAnalyses((1,)).adjust(0.03, 1) == pytest.approx(0.03, rel=1e-2)
    assert InterimAnalyses((5,)).level(3) == pytest.approx(0.05, rel=1e-4), (
        "cut off by accident, not because of an analysis"
    )
    assert InterimAnalyses.planned(1).repetitions == (1,)
    assert InterimAnalyses.planned(5).repetitions == (2, 3, 4, 5)


@pytest.mark.parametrize("passes", [(2, 3), (2, 3, 4, 5), (2, 3, 4, 5, 6, 7, 8)])
def test_paths_of_pure_noise_cross_as_often_as_promised(passes: tuple[int, ...]) -> None:
    """The worst case: each pass brings wholly new data."""
    analyses, trials = InterimAnalyses(passes), 40_000
    steps = np.random.default_rng(0).standard_normal((trials, passes[-1]))
    means = np.cumsum(steps, axis=1) / np.sqrt(np.arange(1, passes[-1] + 1))
    crossed = np.zeros(trials, dtype=bool)
    for done in passes:
        crossed |= np.abs(means[:, done - 1]) > norm.isf(analyses.level(done) / 2)
    low, high = binomial_bounds(0.05, trials)
    assert low < crossed.mean() < high


@pytest.mark.parametrize("error", [1e-9, 1e-4, 0.05, 0.4])
def test_an_adjusted_p_value_is_the_error_at_which_the_analysis_would_be_significant(error: float) -> None:
    analyses = InterimAnalyses.planned(5)
    for done in analyses.repetitions:
        assert analyses.adjust(analyses.level(done, error), done) == pytest.approx(error, rel=0.01)


def test_adjusting_never_makes_a_p_value_smaller() -> None:
    analyses = InterimAnalyses.planned(8)
    for done in analyses.repetitions:
        adjusted = [analyses.adjust(p, done) for p in np.geomspace(1e-12, 1, 50)]
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
    analyses = InterimAnalyses.planned(5)
    clear, doubtful = estimate(0.3, 0.03), estimate(0.3, 0.1)
    assert settle(clear, analyses, 2, margin=0.03) is Conclusion.FASTER
    assert settle(doubtful, analyses, 2, margin=0.03) is None
    assert settle(doubtful, analyses, 5, margin=0.03) is Conclusion.FASTER
    assert settle(doubtful, analyses, 5, margin=0.03, family=60) is None
    assert settle(estimate(0.0, 0.004), analyses, 2, margin=0.03) is Conclusion.EQUAL


def test_three_pairs_of_turns_settle_nothing() -> None:
    assert settle(estimate(0.3, 0.001, degrees=2, num_blocks=3), InterimAnalyses.planned(5), 3, margin=0.03) is None


def test_an_early_interval_is_wider_than_a_late_one() -> None:
    analyses, found = InterimAnalyses.planned(5), estimate(0.1, 0.01)
    widths = [
        math.log((interval := found.interval(1 - analyses.level(done))).high / interval.low) for done in (2, 3, 4, 5)
    ]
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 1.05 * math.log(found.interval().high / found.interval().low)


def estimates(machine: Machine, analyses: InterimAnalyses, speedup: float) -> Iterator[dict[int, RatioEstimate]]:
    """Yield for many runs what each look would see."""
    rng, design = np.random.default_rng(0), machine.design()
    for _ in range(TRIALS):
        candidate_N, plain_N = machine.measure(rng, speedup)
        seen = {}
        for done in analyses.repetitions:
            sofar = slice(0, done * machine.prompts)
            part = Design(prompt_N=design.prompt_N[sofar], block_N=design.block_N[sofar])
            seen[done] = prompt_ratio(plain_N[sofar], candidate_N[sofar], part)
        yield seen


def share_of_runs(
    machine: Machine, says: Callable[[RatioEstimate, int], bool], *, analyses: InterimAnalyses, speedup: float
) -> float:
    runs = estimates(machine, analyses, speedup)
    return sum(any(says(found, done) for done, found in seen.items()) for seen in runs) / TRIALS


@pytest.mark.parametrize(
    "machine",
    [Machine(prompts=6, gain=0), Machine(prompts=30, gain=0), Machine(prompts=40, per_turn=8, gain=0)],
    ids=["6 prompts", "30 prompts", "under load"],
)
def test_a_against_a_is_different_in_at_most_5_percent_of_runs(machine: Machine) -> None:
    analyses = InterimAnalyses.planned(machine.passes)
    found = share_of_runs(machine, lambda e, done: e.p_value() < analyses.level(done), analyses=analyses, speedup=1)
    assert found <= binomial_bounds(0.05, TRIALS, deviations=3)[1]


def test_looking_naively_after_every_pass_would_fail_that_test() -> None:
    machine, analyses = Machine(prompts=30, passes=8, gain=0), InterimAnalyses.planned(8)
    found = share_of_runs(machine, lambda e, done: e.p_value() < 0.05, analyses=analyses, speedup=1)
    assert found > 0.11


def test_hardly_any_power_is_lost_by_looking_early() -> None:
    machine, analyses = Machine(prompts=30), InterimAnalyses.planned(5)
    late = share_of_runs(machine, lambda e, done: done == 5 and e.interval().low > 1.03, analyses=analyses, speedup=1.1)
    early = share_of_runs(
        machine,
        lambda e, done: settle(e, analyses, done, margin=0.03) is Conclusion.FASTER,
        analyses=analyses,
        speedup=1.1,
    )
    assert early > late - 0.04
