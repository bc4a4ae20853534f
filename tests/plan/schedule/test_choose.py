"""The best fixed k, and a schedule where it is worth its ranges."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from draftwise.plan.schedule.draft_lengths import choose_lengths

BATCHES = (1, 8, 64)


def test_one_k_that_is_best_everywhere_needs_no_schedule() -> None:
    found = choose_lengths(BATCHES, (1, 3), lambda _, k: 1 + k / 10)
    assert found.fixed_k == 3
    assert found.ranges == ((1, 64, 3),)
    assert not found.is_schedule_worth_it


def test_loads_that_want_different_lengths_get_a_schedule() -> None:
    speed = {1: {1: 1.2, 5: 2.0}, 8: {1: 1.2, 5: 1.9}, 64: {1: 1.2, 5: 0.7}}
    found = choose_lengths(BATCHES, (1, 5), lambda batch, k: speed[batch][k])
    assert found.fixed_k == 5
    assert found.ranges == ((1, 8, 5), (9, 64, 1))
    assert found.is_schedule_worth_it


def test_what_a_release_makes_of_a_schedule_counts() -> None:
    """A release that drafts in full whatever its schedule says gains nothing by one."""
    speed = {1: {1: 1.2, 5: 2.0}, 8: {1: 1.2, 5: 1.9}, 64: {1: 1.2, 5: 0.7}}
    found = choose_lengths(BATCHES, (1, 5), lambda batch, k: speed[batch][k], lambda batch, _: 0.8 * speed[batch][5])
    assert not found.is_schedule_worth_it
    assert found.schedule_gain < 1


def test_a_gain_below_the_price_of_a_range_is_left() -> None:
    found = choose_lengths(BATCHES, (1, 2), lambda batch, k: 1.5 + (0.001 if (batch > 8) == (k == 1) else 0))
    assert len(found.ranges) == 1


@given(
    values=st.lists(st.lists(st.floats(0.2, 4), min_size=3, max_size=3), min_size=1, max_size=6),
)
def test_a_schedule_never_rises_and_is_at_least_nearly_as_good_as_what_is_fixed(values: list[list[float]]) -> None:
    batches = [2**power for power in range(len(values))]
    table = dict(zip(batches, values, strict=True))
    found = choose_lengths(batches, (0, 1, 2), lambda batch, k: table[batch][k])
    assert all(one[2] > other[2] for one, other in pairwise(found.ranges))
    assert found.schedule_gain >= 1 - 1e-9
    assert found.fixed_speedup >= max(sum(row[k] for row in values) / len(values) for k in range(3)) - 1e-9
