"""Break-even and expectation are two sides of one estimate."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.requirements import advise, candidate

from draftwise.facts.advice import find_prior
from draftwise.plan.forecast.step_cost import compute_acceptance_length
from draftwise.plan.pick.estimate import Estimate


def made(k: int, acceptance: float, break_even: float) -> Estimate:
    prior = find_prior("eagle3")
    assert prior is not None
    return Estimate(k=k, sequences=1, prior=prior, acceptance=acceptance, break_even=break_even, baseline_s=0.005)


@given(k=st.integers(1, 16), acceptance=st.floats(0.01, 0.99), break_even=st.floats(1.01, 20))
def test_it_pays_exactly_from_the_needed_chance_on(k: int, acceptance: float, break_even: float) -> None:
    expected = made(k, acceptance, break_even)
    assert expected.gain is not None
    if expected.needed_acceptance is None:
        assert break_even > k + 1
        assert expected.gain < 1
    else:
        assert compute_acceptance_length(expected.needed_acceptance, k) == pytest.approx(break_even, rel=0.01)
        assert (expected.gain >= 1) == (acceptance >= expected.needed_acceptance) or abs(
            acceptance - expected.needed_acceptance
        ) < 1e-3


@given(k=st.integers(1, 16), acceptance=st.floats(0, 1), break_even=st.floats(1, 20))
def test_time_per_token_is_the_plain_one_over_the_gain(k: int, acceptance: float, break_even: float) -> None:
    expected = made(k, acceptance, break_even)
    assert expected.gain is not None
    assert expected.tpot_s == pytest.approx(0.005 / expected.gain)


def test_traffic_moves_the_expectation_within_the_band() -> None:
    places = [candidate(advise(kind=kind), "eagle3").estimate for kind in ("chat", "rag", "code", "code-editing")]
    chances = [each.acceptance for each in places if each is not None]
    assert chances == sorted(chances)
    prior = find_prior("eagle3")
    assert prior is not None
    assert (chances[0], chances[-1]) == (prior.low, pytest.approx(prior.high))


def test_heat_takes_the_low_end() -> None:
    hot = candidate(advise(kind="code-editing", temperature=1.0), "eagle3").estimate
    assert hot is not None
    assert hot.acceptance == hot.prior.low
