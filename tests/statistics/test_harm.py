"""Guards say harm, excluded or no power; a guard without power decides nothing, and more prompts harm nobody."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import beta

from draftwise.statistics import (
    Design,
    Guard,
    RatioEstimate,
    find_bar,
    find_rounding_scale,
    find_unseen_share,
    guard_delay,
    guard_tail,
    is_beyond_rounding,
    prompt_ratio,
)
from draftwise.statistics.estimate import beta_quantile


@pytest.mark.parametrize(("a", "b"), [(1, 29), (3, 28), (30, 1), (15, 136)])
@pytest.mark.parametrize("probability", [0.05, 0.5, 0.95])
def test_beta_quantiles_are_those_of_scipy(a: float, b: float, probability: float) -> None:
    assert beta_quantile(probability, a, b) == pytest.approx(beta.ppf(probability, a, b), rel=1e-6)


def delay(truth: float, sd: float, count: int, rng: np.random.Generator) -> RatioEstimate:
    late_N = np.exp(math.log(truth) + sd * rng.standard_normal(count))
    found = prompt_ratio(late_N, np.ones(count), Design.of([(n, n) for n in range(count)]))
    assert found is not None
    return found


def shares(truth: float, sd: float, count: int) -> dict[Guard, float]:
    rng = np.random.default_rng(0)
    answers = [guard_delay(delay(truth, sd, count, rng), 0.20).answer for _ in range(500)]
    return {each: answers.count(each) / 500 for each in Guard}


def test_first_tokens_that_are_not_late_are_excluded_as_often_as_designed() -> None:
    assert shares(1.0, 0.2, 15)[Guard.EXCLUDED] == pytest.approx(0.96, abs=0.04)
    assert shares(1.0, 0.4, 15)[Guard.EXCLUDED] == pytest.approx(0.51, abs=0.08)
    assert shares(1.2, 0.2, 15)[Guard.EXCLUDED] == pytest.approx(0.05, abs=0.035)


@pytest.mark.parametrize("count", [8, 50, 300])
def test_harm_that_is_not_there_is_hardly_ever_shown(count: int) -> None:
    assert shares(1.0, 0.4, count)[Guard.HARM] < 0.02
    assert shares(1.6, 0.2, count)[Guard.HARM] > 0.8


def test_a_guard_without_power_says_how_many_prompts_would_tell() -> None:
    found = guard_delay(delay(1.05, 0.4, 8, np.random.default_rng(1)), 0.20)
    assert found.answer is Guard.NO_POWER
    assert found.count == 8
    assert 15 < found.needed < 90
    assert guard_delay(delay(1.0, 0.05, 30, np.random.default_rng(1)), 0.20).needed == 0


def tails(count: int, losing: float, loss: float = 0.6) -> list[Guard]:
    """A gain of 1.08 that spreads the time per token, as drafts are accepted by chance."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(300):
        text_N = 0.04 * rng.standard_normal(count)
        plain_N = text_N + 0.05 * rng.standard_normal(count)
        ours_N = text_N - math.log(1.08) + 0.12 * rng.standard_normal(count) + 0.11 * rng.standard_normal(count)
        ours_N += (rng.random(count) < losing) * loss
        reading = guard_tail(np.exp(ours_N), np.exp(plain_N))
        assert reading is not None
        found.append(reading.answer)
    return found


@pytest.mark.parametrize("count", [15, 50, 150, 300])
def test_no_gain_is_stopped_by_its_spread_however_many_prompts_there_are(count: int) -> None:
    assert tails(count, 0.0).count(Guard.HARM) / 300 < 0.03


def test_a_quarter_of_prompts_that_lose_is_seen() -> None:
    assert tails(100, 0.25).count(Guard.HARM) / 300 > 0.9
    assert tails(150, 0.0).count(Guard.EXCLUDED) / 300 > 0.9


def test_a_tail_of_few_requests_is_not_judged() -> None:
    reading = guard_tail(np.full(10, 1.0), np.full(10, 1.0))
    assert reading is not None
    assert (reading.answer, reading.needed) == (Guard.NO_POWER, 29)
    assert guard_tail(np.zeros(0), np.ones(3)) is None


def test_the_unseen_share_and_its_bar_are_those_of_the_design() -> None:
    assert [round(find_unseen_share(n), 2) for n in (6, 12, 60)] == [0.39, 0.22, 0.05]
    bars = [find_bar(n, 0.03) for n in (6, 8, 12, 20, 25, 60)]
    assert bars == pytest.approx([1.155, 1.107, 1.065, 1.037, 1.03, 1.03], abs=1e-3)


def test_the_scale_of_rounding_is_that_of_the_design() -> None:
    gaps = [0.0] * 11 + [0.0625] * 4 + [0.125] * 8 + [0.25] * 5
    assert find_rounding_scale(gaps, prior=0.2, step=1 / 16) == pytest.approx(0.162, abs=2e-3)
    assert find_rounding_scale([], prior=0.2, step=1 / 16) == pytest.approx(0.2)
    assert find_rounding_scale([0.0] * 400, prior=0.2, step=1 / 16) == 1 / 16
    assert is_beyond_rounding(0.82, 0.16)
    assert not is_beyond_rounding(0.79, 0.16)


@pytest.mark.parametrize("scale", [0.05, 0.15, 0.3])
def test_rounding_is_taken_for_a_fault_hardly_ever_and_a_fault_is_seen(scale: float) -> None:
    rng = np.random.default_rng(0)
    wrong = seen = 0
    for _ in range(500):
        null, found = (np.round(rng.random(n) * rng.rayleigh(scale, n) * 16) / 16 for n in (8, 20))
        sigma = find_rounding_scale(null.tolist(), prior=0.2, step=1 / 16)
        wrong += is_beyond_rounding(found.max(), sigma)
        seen += is_beyond_rounding(max(0.3 + rng.exponential(2, 4)), sigma)
    assert wrong / 500 < 0.01
    assert seen / 500 > 0.85
