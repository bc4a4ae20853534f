"""Break-even and expectation are two sides of one estimate."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.requirements import QWEN, advise, candidate

from draftwise.knowledge.advice import read_temperature_effect
from draftwise.knowledge.methods import get_method
from draftwise.plan.forecast.calibrated_server import compute_acceptance_length, find_acceptance
from draftwise.plan.pick.speedup_estimates import ExpectedAcceptance, SpeedupEstimate


def made(k: int, acceptance: float, break_even: float) -> SpeedupEstimate:
    expectation = ExpectedAcceptance(low=0.0, high=1.0, expected=acceptance, cautious=0.0, source="a test")
    return SpeedupEstimate(k=k, sequences=1, expectation=expectation, break_even=break_even, baseline_s=0.005)


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


def expected_of(method: str, **asked: object) -> ExpectedAcceptance:
    found = candidate(advise(**asked), method).estimate  # type: ignore[arg-type]
    assert found is not None
    return found.expectation


@pytest.mark.parametrize("kind", ["chat", "code", "math"])
def test_what_was_measured_on_such_traffic_is_expected(kind: str) -> None:
    seen = [
        find_acceptance(row.length, row.k) for row in get_method("eagle3").advice.seen_acceptance if row.traffic == kind
    ]
    found = expected_of("eagle3", kind=kind)
    assert (found.low, found.high) == (min(seen), max(seen))
    assert found.low <= found.expected <= found.high
    assert found.cautious <= found.expected


@pytest.mark.parametrize("kind", [None, "chat", "rag", "summarization", "code-editing", "agentic", "extraction"])
@pytest.mark.parametrize("method", ["dflash", "eagle3"])
def test_nothing_is_expected_that_nobody_measured(method: str, kind: str | None) -> None:
    most = max(find_acceptance(row.length, row.k) for row in get_method(method).advice.seen_acceptance)
    found = expected_of(method, kind=kind)
    assert found.expected <= found.high <= most


def test_a_drafter_that_was_trained_for_one_kind_is_not_expected_to_do_better_on_another() -> None:
    chat, code = (expected_of("dflash", kind=kind) for kind in ("chat", "code-editing"))
    assert code.expected == chat.expected
    elsewhere = candidate(advise(QWEN, kind="code-editing"), "dflash").estimate
    assert elsewhere is not None
    assert elsewhere.expectation.expected > code.expected


def test_copied_answers_raise_what_is_expected_of_lookup() -> None:
    some, high = get_method("ngram").advice.find_prior("some"), get_method("ngram").advice.find_prior("high")
    assert some is not None
    assert high is not None
    assert expected_of("ngram", kind="rag").expected < some.high <= expected_of("ngram", kind="code-editing").expected
    assert high.high <= expected_of("ngram", kind="code-editing").expected < 1


@pytest.mark.parametrize("method", ["eagle3", "dflash", "ngram"])
def test_heat_lowers_what_is_expected(method: str) -> None:
    cold, warm, hot = (expected_of(method, kind="code", temperature=each) for each in (0.0, 0.5, 1.0))
    assert cold.factor == 1 > warm.factor > hot.factor == read_temperature_effect().greedy
    assert hot.expected == pytest.approx(hot.factor * cold.expected)
    assert hot.cautious == pytest.approx(hot.factor * cold.cautious)
    assert hot.factor < read_temperature_effect().probabilistic


@given(length=st.floats(1, 8), k=st.integers(1, 16))
def test_an_acceptance_is_found_again_from_its_length(length: float, k: int) -> None:
    found = find_acceptance(length, k)
    assert 0 <= found <= 1
    assert compute_acceptance_length(found, k) == pytest.approx(min(length, k + 1), rel=2e-3)
