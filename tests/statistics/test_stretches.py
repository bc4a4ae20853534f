"""A ratio that changes in the course of a run is told from one that varies from block to block."""

from __future__ import annotations

import numpy as np
import pytest

from draftwise.statistics import Design, find_change
from draftwise.statistics.estimate import fisher_tail

PROMPTS, REPETITIONS = 12, 5


def design_of(repetitions: int = REPETITIONS) -> Design:
    return Design.of([(prompt, (repeat, prompt)) for repeat in range(repetitions) for prompt in range(PROMPTS)])


def noise_of(seed: int, size: int = PROMPTS * REPETITIONS) -> np.ndarray:
    return 0.05 * np.random.default_rng(seed).standard_normal(size)


def test_a_state_that_lasts_for_a_third_of_the_run_is_seen() -> None:
    logs_N = noise_of(1)
    logs_N[:20] += np.log(0.1)
    change = find_change(logs_N, design_of())
    assert change is not None
    assert (change.lowest, change.highest) == pytest.approx((0.1, 1.0), rel=0.1)


def test_a_steady_ratio_seems_to_change_as_rarely_as_promised() -> None:
    found = sum(find_change(0.2 + noise_of(seed), design_of()) is not None for seed in range(400))
    assert found / 400 < 0.09, "5 % and four standard errors"


def test_prompts_that_gain_differently_are_no_change() -> None:
    """Each repetition goes through them in the same order, so that stretches hold different ones."""
    gains_P = np.linspace(-0.5, 0.5, PROMPTS)
    logs_N = np.tile(gains_P, REPETITIONS) + noise_of(2)
    assert find_change(logs_N, design_of()) is None


def test_prompts_that_were_only_asked_when_it_was_slow_do_not_hide_the_change() -> None:
    design, logs_N = design_of(2), noise_of(3, 2 * PROMPTS)
    logs_N[8:] += np.log(0.2)
    change = find_change(logs_N, design)
    assert change is not None
    assert change.highest == pytest.approx(1.0, rel=0.1)


def test_too_few_blocks_tell_nothing() -> None:
    design = Design.of([(prompt, prompt) for prompt in range(5)])
    assert find_change(np.array([0.0, 0.0, 1.0, 1.0, 1.0]), design) is None
    assert find_change(np.full(5, np.nan), design) is None


def test_without_any_noise_every_step_is_a_change() -> None:
    logs_N = np.repeat([0.0, 0.5], 6)
    change = find_change(logs_N, Design.of([(prompt, prompt) for prompt in range(12)]))
    assert change is not None
    assert find_change(np.zeros(12), Design.of([(prompt, prompt) for prompt in range(12)])) is None


@pytest.mark.parametrize(("f", "is_change"), [(2.35, False), (2.42, True)])
def test_the_limit_is_that_of_the_tables(f: float, is_change: bool) -> None:
    """Six stretches of ten blocks: F has 5 and 54 degrees of freedom, and its 95 % quantile is 2.386."""
    within = 60 / 54
    step = np.sqrt(f * within / 12)
    logs_N = np.tile([1.0, -1.0], 30) + np.repeat(step * np.tile([1.0, -1.0], 3), 10)
    design = Design.of([(prompt, prompt) for prompt in range(60)])
    assert (find_change(logs_N, design) is not None) is is_change


@pytest.mark.parametrize(
    ("f", "degrees", "tail"), [(4.0, (5, 54), 0.00370), (7.7086, (1, 4), 0.05), (2.3861, (5, 54), 0.05)]
)
def test_fishers_tail_is_that_of_the_tables(f: float, degrees: tuple[float, float], tail: float) -> None:
    assert fisher_tail(f, *degrees) == pytest.approx(tail, rel=2e-2)
