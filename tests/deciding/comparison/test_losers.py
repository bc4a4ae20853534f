"""Which prompts lose: the right trait and line are found, and chance is not taken for one."""

import numpy as np
import pytest

from draftwise.deciding.comparison.losers import find_split, group_ratios


def made(count: int, seed: int = 0) -> tuple[list[float], dict[str, list[float]]]:
    """Prompts with under 2 tokens per step run at 0.8x, the others at 1.5x; length means nothing."""
    rng = np.random.default_rng(seed)
    accepted = np.concatenate([rng.uniform(1, 1.9, count // 3), rng.uniform(2.1, 4, count - count // 3)])
    ratios = np.where(accepted < 2, 0.8, 1.5) * np.exp(rng.normal(0, 0.03, count))
    return list(ratios), {"tokens per step": list(accepted), "prompt tokens": list(rng.uniform(10, 1000, count))}


def test_the_trait_that_tells_losers_apart_is_named_with_its_line() -> None:
    split = find_split(*made(30))
    assert split is not None
    assert split.trait == "tokens per step"
    assert 1.8 < split.line < 2.2
    assert (split.num_below, split.num_above) == (10, 20)
    assert (split.below, split.above) == (pytest.approx(0.8, rel=0.03), pytest.approx(1.5, rel=0.03))
    assert split.words == "10 prompts with under 1.97 tokens per step 0.80x, 20 with more 1.52x"


def test_where_nobody_loses_there_is_no_split() -> None:
    ratios, traits = made(30)
    assert find_split([2 * ratio for ratio in ratios], traits) is None


def test_a_trait_that_means_nothing_is_not_named() -> None:
    """Over 200 made-up sets of prompts that gain or lose at random, chance is blamed on a trait in few."""
    rng = np.random.default_rng(1)
    blamed = sum(
        find_split(list(np.exp(rng.normal(0, 0.2, 24))), {name: list(rng.uniform(0, 1, 24)) for name in "abc"})
        is not None
        for _ in range(200)
    )
    assert blamed <= 0.12 * 200


@pytest.mark.parametrize(
    "traits",
    [
        {"prompt tokens": [float("nan")] * 12},
        {"prompt tokens": [100.0] * 12},
        {"prompt tokens": [1.0] * 11 + [2.0]},
    ],
    ids=["unknown", "all alike", "one outlier"],
)
def test_a_trait_that_divides_nothing_is_none(traits) -> None:
    assert find_split([0.8] * 6 + [1.5] * 6, traits) is None


def test_five_prompts_are_too_few_for_a_line() -> None:
    assert find_split([0.8, 0.8, 1.5, 1.5, 1.5], {"prompt tokens": [1.0, 2.0, 3.0, 4.0, 5.0]}) is None


def test_groups_are_told_slowest_first() -> None:
    found = group_ratios([1.5, 0.5, 2.0], ["code", "prose", "code"])
    assert list(found) == ["prose", "code"]
    assert found["code"] == (pytest.approx(3**0.5), 2)
