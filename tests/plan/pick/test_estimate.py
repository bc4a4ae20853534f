"""Break-even and expectation are two sides of one estimate."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.wishes import advise, candidate

from draftwise.facts.advice import find_band
from draftwise.plan.forecast.step_cost import acceptance_length
from draftwise.plan.pick.estimate import Estimate


def made(k: int, chance: float, break_even: float) -> Estimate:
    band = find_band("eagle3")
    assert band is not None
    return Estimate(k=k, sequences=1, band=band, chance=chance, break_even=break_even, plain_s=0.005)


@given(k=st.integers(1, 16), chance=st.floats(0.01, 0.99), break_even=st.floats(1.01, 20))
def test_it_pays_exactly_from_the_needed_chance_on(k: int, chance: float, break_even: float) -> None:
    expected = made(k, chance, break_even)
    assert expected.gain is not None
    if expected.needed_chance is None:
        assert break_even > k + 1
        assert expected.gain < 1
    else:
        assert acceptance_length(expected.needed_chance, k) == pytest.approx(break_even, rel=0.01)
        assert (expected.gain >= 1) == (chance >= expected.needed_chance) or abs(chance - expected.needed_chance) < 1e-3


@given(k=st.integers(1, 16), chance=st.floats(0, 1), break_even=st.floats(1, 20))
def test_time_per_token_is_the_plain_one_over_the_gain(k: int, chance: float, break_even: float) -> None:
    expected = made(k, chance, break_even)
    assert expected.gain is not None
    assert expected.tpot_s == pytest.approx(0.005 / expected.gain)


def test_traffic_moves_the_expectation_within_the_band() -> None:
    places = [candidate(advise(kind=kind), "eagle3").estimate for kind in ("chat", "rag", "code", "code-editing")]
    chances = [each.chance for each in places if each is not None]
    assert chances == sorted(chances)
    band = find_band("eagle3")
    assert band is not None
    assert (chances[0], chances[-1]) == (band.low, pytest.approx(band.high))


def test_heat_takes_the_low_end() -> None:
    hot = candidate(advise(kind="code-editing", temperature=1.0), "eagle3").estimate
    assert hot is not None
    assert hot.chance == hot.band.low
