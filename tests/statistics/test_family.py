"""Among many comparisons, a false one is rare; Holm's correction is what makes it so."""

import numpy as np
import pytest
from tests.support.simulated import binomial_bounds

from draftwise.statistics import adjust_family


def test_holm_by_hand() -> None:
    assert adjust_family([0.01, None, 0.04, 0.03]) == pytest.approx((0.03, None, 0.06, 0.06))
    assert adjust_family([0.2, 0.9]) == pytest.approx((0.4, 0.9))
    assert adjust_family([]) == ()


def p_values(rng: np.random.Generator, common: float) -> list[float]:
    """Return twice the p-values of 60 gains at the bound, of readings that have a part in common (the plain arm)."""
    from scipy.stats import norm

    z = np.sqrt(common) * rng.normal() + np.sqrt(1 - common) * rng.normal(size=60)
    return (2 * norm.sf(z)).tolist()


@pytest.mark.parametrize("common", [0.0, 0.5, 0.9])
def test_any_false_verdict_among_60_is_rare(common: float) -> None:
    rng = np.random.default_rng(0)
    wrong = sum(min(p for p in adjust_family(p_values(rng, common)) if p is not None) <= 0.05 for _ in range(2000))
    assert wrong / 2000 <= binomial_bounds(0.025, 2000, deviations=3)[1]


def test_without_the_correction_it_is_common() -> None:
    rng = np.random.default_rng(0)
    assert sum(min(p_values(rng, 0.0)) <= 0.05 for _ in range(500)) / 500 > 0.5


def test_of_many_those_without_a_chance_do_not_count() -> None:
    assert adjust_family([0.004] * 3 + [1.9] * 30) == pytest.approx((0.015,) * 3 + (1.0,) * 30)


def test_real_differences_stay_significant() -> None:
    adjusted = adjust_family([1e-6] * 30 + [0.5] * 30)
    assert sum(p is not None and p <= 0.05 for p in adjusted) == 30
