"""Schedules of draft lengths are written without gaps, and say what they were made of."""

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from draftwise.plan.schedule.draft_lengths import KEY, join_ranges, make_schedule_keys


@given(steps=st.lists(st.tuples(st.integers(1, 50), st.integers(0, 8)), min_size=1, max_size=8))
def test_every_batch_size_has_the_k_of_its_range_and_neighbours_differ(steps: list[tuple[int, int]]) -> None:
    ends, wanted, end = [], [], 0
    for width, k in steps:
        end += width
        ends.append((float(end), k))
        wanted += [k] * width
    ranges = join_ranges(ends)
    assert [k for first, last, k in ranges for _ in range(first, last + 1)] == wanted
    assert all(one[2] != other[2] for one, other in pairwise(ranges))


def test_an_endless_range_is_one_batch_size_wide() -> None:
    assert join_ranges([(8, 3), (math.inf, 0)]) == ((1, 8, 3), (9, 9, 0))


def test_the_config_drafts_at_most_the_largest_k() -> None:
    assert make_schedule_keys([(1, 8, 3), (9, 9, 0)]) == {"num_speculative_tokens": 3, KEY: [[1, 8, 3], [9, 9, 0]]}
