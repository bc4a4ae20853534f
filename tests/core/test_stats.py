"""SpecStats is a group of counts, and its rates are the field's definitions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.spec_stats import stats_of

from draftwise.core import Counters, SpecStats

drafts = st.integers(0, 6).flatmap(lambda d: st.tuples(st.just(d), st.integers(0, d)))
stats = st.lists(drafts, max_size=8).map(
    lambda counts: sum((stats_of(drafted=d, accepted=a) for d, a in counts), SpecStats())
)


@given(stats, stats, stats)
def test_addition_is_associative_and_commutative(a: SpecStats, b: SpecStats, c: SpecStats) -> None:
    assert (a + b) + c == a + (b + c)
    assert a + b == b + a
    assert a + SpecStats() == a


@given(stats, stats)
def test_a_window_is_the_difference_of_two_readings(before: SpecStats, window: SpecStats) -> None:
    difference = (before + window) - before
    assert difference.num_drafts == window.num_drafts
    assert difference.num_accepted_tokens == window.num_accepted_tokens
    assert difference.acceptance_length == window.acceptance_length


@given(stats)
def test_totals_agree_with_positions(s: SpecStats) -> None:
    assert s.num_accepted_tokens == sum(s.accepted_per_pos)
    assert s.num_draft_tokens == sum(s.drafted_per_pos)
    assert list(s.accepted_per_pos) == sorted(s.accepted_per_pos, reverse=True)


def test_rates_by_definition() -> None:
    s = stats_of(drafted=3, accepted=2) + stats_of(drafted=1, accepted=0)
    assert s.acceptance_length == 2.0
    assert s.acceptance_rate == 0.5
    assert s.rate_per_pos == (0.5, 0.5, 0.0)
    assert s.rate_per_reached_pos == (0.5, 1.0, 0.0)


def test_no_data_is_none_not_zero() -> None:
    empty = SpecStats()
    assert empty.acceptance_length is None
    assert empty.acceptance_rate is None
    assert empty.rate_per_pos == ()


def test_more_accepted_than_drafted_is_refused() -> None:
    with pytest.raises(ValueError, match=r"0\.\.2"):
        stats_of(drafted=2, accepted=3)


@pytest.mark.parametrize("sign", [1, -1])
def test_positions_that_one_of_two_does_not_tell_are_unknown_of_both(sign: int) -> None:
    told, untold = stats_of(drafted=3, accepted=2), SpecStats(num_drafts=2, num_draft_tokens=6, num_accepted_tokens=3)
    for a, b in ((told, untold), (untold, told)):
        both = a + b if sign > 0 else a - b
        assert (both.num_accepted_tokens, both.accepted_per_pos, both.drafted_per_pos) == (
            a.num_accepted_tokens + sign * b.num_accepted_tokens, (), ()
        )  # fmt: skip
        assert both.rate_per_pos == both.rate_per_reached_pos == ()
    assert (told + untold + told).rate_per_pos == ()
    nothing = SpecStats(num_drafts=1, num_draft_tokens=3)  # what is shown from its first increment on only
    assert (told + nothing).rate_per_pos == (0.5, 0.5, 0.0)
    assert (told + SpecStats()).rate_per_pos == (1.0, 1.0, 0.0)


def test_what_one_turn_does_not_report_is_unknown_of_all() -> None:
    one, other = Counters(spec=stats_of(drafted=2, accepted=1), generation_tokens=5, prefix_queries=8), Counters()
    assert Counters.total([one, one]).generation_tokens == 10
    assert Counters.total([one, one]).spec == one.spec + one.spec
    assert Counters.total([one, other]).generation_tokens is None
    assert Counters.total([]) == Counters(generation_tokens=0, prefix_queries=0, prefix_hits=0)
