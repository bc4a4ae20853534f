"""The order of a log: breaks are found, chance is not called one, and the log itself is known better than traffic."""

import math

import numpy as np
import pytest

from draftwise.statistics import bound_log_itself, find_order_break
from draftwise.statistics.estimate import RatioEstimate, Spread


def test_chance_is_hardly_ever_called_a_break() -> None:
    rng = np.random.default_rng(1)
    found = [find_order_break(rng.normal(0.1, 0.2, size=40)) for _ in range(300)]
    assert sum(each is not None for each in found) <= 9  # 1 %: more than 9 of 300 has a chance of 0.1 %


@pytest.mark.parametrize("first", [0.25, 0.5, 0.75])
def test_a_log_whose_beginning_gains_is_found_with_its_place_and_size(first: float) -> None:
    rng = np.random.default_rng(2)
    split = int(40 * first)
    means = np.where(np.arange(40) < split, math.log(1.46), math.log(0.5))
    found = [find_order_break(means + rng.normal(0, 0.2, size=40)) for _ in range(20)]
    for each in found:
        assert each is not None
        assert abs(each.place - split) <= 3
        assert each.before > 1.05
        assert each.after < 0.75


@pytest.mark.parametrize("logs", [[], [0.1] * 14, [0.2] * 40])
def test_few_prompts_and_equal_ones_have_none(logs: list[float]) -> None:
    assert find_order_break(np.array(logs)) is None


def estimate(logs: np.ndarray, population: int) -> RatioEstimate:
    count = len(logs)
    spread = Spread(
        variance=float(logs.var(ddof=1)) / count,
        lasting=0.0,
        degrees=count - 1,
        num_prompts=count,
        num_blocks=count,
    )
    return RatioEstimate(log=float(logs.mean()), spread=spread, log_by_prompt=dict(enumerate(logs.tolist())))


@pytest.mark.parametrize(("population", "count"), [(60, 45), (60, 60), (246, 160)])
def test_the_logs_own_interval_holds_its_mean_and_is_narrower(population: int, count: int) -> None:
    rng = np.random.default_rng(population + count)
    held, widths = 0, []
    for _ in range(200):
        true = rng.normal(0.1, 0.2, size=population)
        asked = rng.permutation(true)[:count]
        noisy = asked + rng.normal(0, 0.08, size=count)
        again = rng.normal(0, 0.08 * math.sqrt(2), size=6)
        made = estimate(noisy, population)
        found = bound_log_itself(made, again.tolist(), population)
        assert found is not None
        held += found.low <= math.exp(true.mean()) <= found.high
        widths.append(math.log(found.high / found.low) / math.log(made.interval().high / made.interval().low))
    assert held >= 175
    assert sorted(widths)[100] < 0.85


@pytest.mark.parametrize(("again", "population"), [([0.0, 0.1], 20), ([0.0, 0.1, -0.1, 0.05], 41), ([], 20)])
def test_without_anchors_or_with_less_than_half_nothing_is_said(again: list[float], population: int) -> None:
    logs = np.random.default_rng(0).normal(0.1, 0.2, size=20)
    assert bound_log_itself(estimate(logs, population), again, population) is None
