"""A ratio of totals: its interval is the bootstrap's over requests, and covers what it says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from draftwise.statistics.ratios import find_variance_share, ratio_of_totals


def draw(rng: np.random.Generator, num: int) -> tuple[np.ndarray, np.ndarray]:
    """Requests of a few kinds: tokens, and the steps that they took."""
    steps = rng.integers(20, 80, num).astype(float)
    return steps * rng.uniform(1.2, 3.0, num), steps


def test_interval_is_as_wide_as_the_bootstrap() -> None:
    rng = np.random.default_rng(0)
    tops, bottoms = draw(rng, 400)
    found = ratio_of_totals(tops, bottoms)
    chosen = rng.integers(0, 400, (4000, 400))
    ratios = tops[chosen].sum(1) / bottoms[chosen].sum(1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    assert found.high - found.low == pytest.approx(high - low, rel=0.06)
    assert found.low == pytest.approx(low, rel=0.01)


def test_interval_covers_the_truth() -> None:
    rng = np.random.default_rng(1)
    tops, bottoms = draw(rng, 200_000)
    truth = tops.sum() / bottoms.sum()
    inside = 0
    for _ in range(1000):
        found = ratio_of_totals(*draw(rng, 25))
        inside += found.low <= truth <= found.high
    assert 0.92 <= inside / 1000 <= 0.975


def test_one_request_bounds_nothing() -> None:
    found = ratio_of_totals(np.array([30.0]), np.array([10.0]))
    assert (found.value, found.low, found.high) == (3.0, 0.0, math.inf)


def test_share_of_the_largest() -> None:
    tops, bottoms = np.array([10.0, 10, 10, 40]), np.full(4, 10.0)
    assert find_variance_share(tops, bottoms, largest=1) == pytest.approx(0.75)
    assert find_variance_share(bottoms, bottoms, largest=1) == 0.0
