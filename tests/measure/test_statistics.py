"""The intervals hold their level where it is hardest (few prompts), and a mutant of them does not."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student

from draftwise.core import Interval
from draftwise.measure import statistics
from draftwise.measure.statistics import mean_ratio, median_over_passes, pooled_ratio, student_quantile


@pytest.mark.parametrize(("degrees", "within"), [(1, 0.12), (2, 0.01), (5, 0.001), (30, 0.001)])
def test_student_quantile_agrees_with_scipy(degrees: int, within: float) -> None:
    assert student_quantile(0.975, degrees) == pytest.approx(student.ppf(0.975, degrees), rel=within)


@pytest.fixture
def fewer_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 1000)


def experiments(truth: float, num_prompts: int, *, repeats: int = 5, count: int = 400):
    """Yield the seconds of a candidate and of plain, [P, R] each.

    Each prompt has its own true ratio around `truth` (12 %), every reading 3 % noise, one in twenty a 30 % hiccup.
    """
    rng = np.random.default_rng(0)
    for _ in range(count):
        shape = (num_prompts, repeats)
        prompt = np.exp(rng.normal(0, 0.5, (num_prompts, 1)))
        own = np.exp(rng.normal(0, 0.12, (num_prompts, 1)))
        noise = [np.exp(rng.normal(0, 0.03, shape)) * (1 + 0.3 * (rng.random(shape) < 0.05)) for _ in range(2)]
        yield prompt / truth * own * noise[0], prompt * noise[1]


def speedup(candidate_PR: np.ndarray, plain_PR: np.ndarray) -> Interval:
    return mean_ratio(1 / median_over_passes(candidate_PR), 1 / median_over_passes(plain_PR))


def coverage(truth: float, num_prompts: int, interval=speedup) -> float:
    found = [interval(*readings) for readings in experiments(truth, num_prompts)]
    return sum(each.low <= truth <= each.high for each in found) / len(found)


@pytest.mark.parametrize("num_prompts", [4, 8, 16])
@pytest.mark.usefixtures("fewer_resamples")
def test_intervals_cover_the_truth_as_often_as_they_say(num_prompts: int) -> None:
    assert 0.92 <= coverage(1.1, num_prompts) <= 0.985


@pytest.mark.usefixtures("fewer_resamples")
def test_the_coverage_test_would_catch_requests_taken_for_independent_units() -> None:
    def mutant(candidate_PR: np.ndarray, plain_PR: np.ndarray) -> Interval:
        return mean_ratio(1 / candidate_PR.ravel(), 1 / plain_PR.ravel())

    assert coverage(1.1, 8, mutant) < 0.85


@pytest.mark.usefixtures("fewer_resamples")
def test_the_coverage_test_would_catch_a_plain_percentile_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "student_quantile", lambda probability, degrees: 1.96 * math.sqrt(3 / 4))
    assert coverage(1.1, 4) < 0.88


ratios = st.lists(st.floats(0.1, 10), min_size=2, max_size=20)


@given(ratios, st.floats(0.1, 10))
def test_scaling_the_candidate_scales_the_ratio(values: list[float], factor: float) -> None:
    plain = np.ones(len(values))
    one, other = mean_ratio(np.array(values), plain), mean_ratio(np.array(values) * factor, plain)
    assert other.value == pytest.approx(one.value * factor)
    assert (other.low, other.high) == pytest.approx((one.low * factor, one.high * factor))


@given(ratios)
def test_an_interval_holds_its_value_and_swapping_the_sides_inverts_it(values: list[float]) -> None:
    given_, plain = np.array(values), np.ones(len(values))
    one, other = mean_ratio(given_, plain), mean_ratio(plain, given_)
    assert one.low <= one.value * (1 + 1e-9)
    assert one.value <= one.high * (1 + 1e-9)
    assert (other.low, other.high) == pytest.approx((1 / one.high, 1 / one.low))


def test_long_answers_weigh_more_in_the_pooled_ratio() -> None:
    tokens, plain_s, candidate_s = np.array([10.0, 90.0]), np.array([1.0, 9.0]), np.array([1.0, 4.5])
    pooled = pooled_ratio(tokens, candidate_s, tokens, plain_s)
    assert pooled.value == pytest.approx(10 / 5.5)
    assert mean_ratio(tokens / candidate_s, tokens / plain_s).value == pytest.approx(math.sqrt(2))


def test_one_prompt_says_nothing_about_others() -> None:
    one = mean_ratio(np.array([2.0]), np.array([1.0]))
    assert (one.value, one.low, one.high) == (2.0, 0.0, math.inf)


def test_missing_readings_are_left_out_of_the_median() -> None:
    nan = float("nan")
    found = median_over_passes(np.array([[1.0, nan, 3.0], [nan, nan, nan]]))
    assert found[0] == 2.0
    assert math.isnan(found[1])
