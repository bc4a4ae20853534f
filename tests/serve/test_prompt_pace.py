"""Pieces of prompts are as long as the machine computes in the time that other streams may wait."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from draftwise.serve.engine_loop import GAP_S, PromptPace

LEAST, MOST = 16, 2048


def run(pace: PromptPace, chance: random.Random, *, row_s: float, step_s: float, steps: int) -> list[float]:
    """Let a machine compute steps with prompts, and some without; return how much longer each of the last ones was."""
    added = []
    for number in range(steps):
        rows = pace.rows if number % 3 else 0
        seconds = (step_s + rows * row_s) * chance.uniform(0.9, 1.1)
        pace.note(rows, seconds, decodes=True)
        if rows and number > steps / 2:
            added.append(seconds - step_s)
    return added


@settings(deadline=None)
@given(st.floats(1e-6, 0.05), st.floats(1e-6, 0.05), st.floats(0.001, 1), st.randoms(use_true_random=False))
def test_a_step_takes_no_longer_than_it_may_on_a_machine_that_changes(
    first_s: float, then_s: float, step_s: float, chance: random.Random
) -> None:
    pace = PromptPace(LEAST, MOST)
    run(pace, chance, row_s=first_s, step_s=step_s, steps=60)
    added = run(pace, chance, row_s=then_s, step_s=step_s, steps=60)
    noise, may_s = 0.3 * step_s, max(GAP_S, 0.25 * step_s)
    assert max(added) < max(1.5 * may_s, 1.2 * LEAST * then_s) + noise
    assert min(added) > min(0.3 * may_s, 0.8 * MOST * then_s) - noise, "prompts do not get less than they may"


def test_one_slow_step_is_forgotten() -> None:
    pace = PromptPace(LEAST, MOST)
    run(pace, random.Random(1), row_s=1e-4, step_s=0.01, steps=30)
    usual = pace.rows
    pace.note(usual, 2.0, decodes=True)
    assert pace.rows == LEAST
    run(pace, random.Random(1), row_s=1e-4, step_s=0.01, steps=30)
    assert pace.rows > usual / 2
