"""Rules of thumb, bands and results are cite and name methods that exist."""

import pytest

from draftwise.knowledge.advice import (
    all_advice,
    find_prior,
    find_published_results,
    find_seen_acceptance,
    get_advice,
    get_guide_rank,
    read_step_costs,
    read_temperature_effect,
    read_traffic_kinds,
)
from draftwise.knowledge.methods import methods_where

METHODS = sorted(name for name, method in methods_where().items() if method.drafts_from not in ("own_code", "none"))


def test_rules_are_sourced_and_named_like_findings() -> None:
    for code, rule in all_advice().items():
        assert code == rule.code == code.lower().replace(" ", "-")
        assert rule.title
        assert rule.source


def test_an_unknown_rule_is_an_error() -> None:
    with pytest.raises(KeyError):
        get_advice("no-such-rule")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_band_a_cost_and_a_place(method: str) -> None:
    band = find_prior(method)
    assert band is not None
    assert 0 < band.low < band.high < 1
    cost = read_step_costs().get_drafting(method)
    assert cost.per_token_s >= 0
    assert set(cost.measured) <= set(cost.methods)
    assert get_guide_rank(method) >= 0


def test_methods_that_draft_nothing_have_none() -> None:
    assert find_prior("extract_hidden_states") is None
    for look in (read_step_costs().get_drafting, get_guide_rank):
        with pytest.raises(KeyError):
            look("extract_hidden_states")


def test_results_carry_their_source_and_each_measured_method_has_one() -> None:
    for method in METHODS:
        assert all(anchor.source and anchor.result for anchor in find_published_results(method))
    for row in read_step_costs().drafting:
        assert all(find_published_results(method) for method in row.measured)


def test_kinds_of_traffic_agree_with_themselves() -> None:
    for name, kind in read_traffic_kinds().items():
        assert name == kind.name
        assert 0 <= kind.place <= 1
        assert kind.overlap == "high" or not kind.repetitive


def test_what_was_seen_names_its_traffic_and_source() -> None:
    kinds = read_traffic_kinds()
    for method in METHODS:
        for row in find_seen_acceptance(method):
            assert row.traffic in kinds
            assert 1 < row.length <= row.k + 1
            assert row.source


def test_sampling_lowers_acceptance_and_sampled_drafts_less() -> None:
    effect = read_temperature_effect()
    assert effect.factor(0.0) == effect.factor(0.0, sampled=True) == 1
    assert effect.factor(1.0) < effect.factor(1.0, sampled=True) < 1
