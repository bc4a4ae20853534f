"""Tail probabilities and quantiles agree with scipy, which the program itself does without."""

import pytest
from scipy.stats import norm, t

from draftwise.statistics.estimate import (
    student_quantile,
    student_tail,
    upper_normal_tail,
    upper_student_quantile,
)


@pytest.mark.parametrize("degrees", [1, 2, 3.7, 29, 400, 1e5])
@pytest.mark.parametrize("value", [-3.0, 0.0, 0.1, 1.0, 2.3, 8.0, 40.0])
def test_tails(value: float, degrees: float) -> None:
    assert student_tail(value, degrees) == pytest.approx(t.sf(value, degrees), rel=1e-7, abs=1e-300)


def test_a_million_degrees_are_normal() -> None:
    assert student_tail(2.3, 1e7) == pytest.approx(norm.sf(2.3), rel=1e-12)


@pytest.mark.parametrize("degrees", [1, 2, 3.7, 29, 400])
@pytest.mark.parametrize("probability", [0.001, 0.025, 0.5, 0.8, 0.975, 0.9999])
def test_quantiles(probability: float, degrees: float) -> None:
    assert student_quantile(probability, degrees) == pytest.approx(t.ppf(probability, degrees), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("tail", [1e-3, 1e-9, 1e-30])
def test_far_quantiles_keep_their_precision(tail: float) -> None:
    assert upper_student_quantile(tail, 5.5) == pytest.approx(t.isf(tail, 5.5), rel=1e-6)
    assert upper_normal_tail(norm.isf(tail)) == pytest.approx(tail, rel=1e-9)
