"""Rules of thumb, bands and results cite and name methods that exist."""

from dataclasses import replace

import pytest

from draftwise.knowledge.advice import (
    all_advice,
    find_drafting_cost,
    get_advice,
    read_temperature_effect,
    read_traffic_kinds,
)
from draftwise.knowledge.methods import find_method, get_method, methods_where
from draftwise.knowledge.vllm import releases

RELEASED = {found.name for release in releases() for name in release.table("methods") if (found := find_method(name))}
METHODS = sorted(name for name, method in methods_where().items() if method.drafts_from not in ("own_code", "none"))


def test_rules_are_sourced_and_named_like_findings() -> None:
    for code, rule in all_advice().items():
        assert code == rule.code == code.lower().replace(" ", "-")
        assert rule.title
        assert rule.source


def test_an_unknown_rule_is_an_error() -> None:
    with pytest.raises(KeyError):
        get_advice("no-such-rule")


@pytest.mark.parametrize("method", [each for each in METHODS if each in RELEASED])
def test_every_method_of_a_release_has_a_band_a_cost_and_a_place(method: str) -> None:
    advice = get_method(method).advice
    band, cost = advice.find_prior(), find_drafting_cost(method)
    assert band is not None
    assert 0 < band.low < band.high < 1
    assert cost is not None
    assert cost.per_token_s >= 0
    assert 0 <= advice.rank < len(METHODS)


@pytest.mark.parametrize("method", ["extract_hidden_states", "custom_class", "no-method"])
def test_methods_that_draft_nothing_known_cost_nothing_known(method: str) -> None:
    assert find_drafting_cost(method) is None


def test_a_method_that_was_not_measured_costs_what_one_of_its_kind_does() -> None:
    for method, like in {"mtp": "eagle3", "dspark": "dflash", "mlp_speculator": "medusa", "suffix": "ngram"}.items():
        cost, measured = find_drafting_cost(method), find_drafting_cost(like)
        assert cost is not None
        assert measured is not None
        assert cost == replace(measured, measured=False)


def test_results_carry_their_source_and_each_measured_method_has_one() -> None:
    for method in METHODS:
        advice = get_method(method).advice
        assert all(anchor.source and anchor.result for anchor in advice.published_results)
        assert advice.published_results or advice.cost is None or not advice.cost.measured


def test_kinds_of_traffic_agree_with_themselves() -> None:
    for name, kind in read_traffic_kinds().items():
        assert name == kind.name
        assert 0 <= kind.place <= 1
        assert kind.overlap == "high" or not kind.repetitive


def test_what_was_seen_names_its_traffic_and_source() -> None:
    kinds = read_traffic_kinds()
    for method in METHODS:
        for row in get_method(method).advice.seen_acceptance:
            assert row.traffic in kinds
            assert 1 < row.length <= row.k + 1
            assert row.source


def test_sampling_lowers_acceptance_and_sampled_drafts_less() -> None:
    effect = read_temperature_effect()
    assert effect.factor(0.0) == effect.factor(0.0, sampled=True) == 1
    assert effect.factor(1.0) < effect.factor(1.0, sampled=True) < 1
