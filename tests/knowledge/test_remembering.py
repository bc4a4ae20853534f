"""Which servers could remember answers: what is known by the method, and everything that is not known."""

import pytest

from draftwise.core import Arm, SpecConfig
from draftwise.knowledge.methods import methods_where
from draftwise.knowledge.spec_keys import find_memory, find_remembering, read_spec_keys


@pytest.mark.parametrize(
    "config",
    [
        {"method": "ngram", "num_speculative_tokens": 5},
        {"model": "[ngram]"},
        {"method": "eagle3", "model": "head", "parallel_drafting": True},
        {"model": "some/drafter", "num_speculative_tokens": 3},
        {"method": "deepseek_mtp"},
        {"method": "suffix", "suffix_decoding_max_cached_requests": 0},
        {"method": "dspark", "enable_adaptive_verification": False},
    ],
)
def test_these_keep_nothing(config: dict[str, object]) -> None:
    assert find_memory(SpecConfig.parse(config)) is None


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            {"method": "suffix"},
            "suffix drafts from what it answered before; suffix_decoding_max_cached_requests 0 turns",
        ),
        (
            {"method": "suffix", "suffix_decoding_max_cached_requests": 100},
            "suffix drafts from what it answered before",
        ),
        ({"method": "custom_class", "model": "my.Proposer"}, "it is unknown what custom_class keeps from one request"),
        ({"method": "telepathy"}, "it is unknown what 'telepathy' keeps from one request to the next"),
        ({}, "it is unknown what a config without a method keeps from one request to the next"),
        ({"method": "ngram", "learn_online": True}, "the effect of its option 'learn_online' is unknown"),
        ({"method": "dspark", "enable_adaptive_verification": True}, "enable_adaptive_verification may use what it"),
    ],
)
def test_these_could_remember(config: dict[str, object], reason: str) -> None:
    assert (find_memory(SpecConfig.parse(config)) or "").startswith(reason)


def test_a_server_of_which_nothing_is_known_could() -> None:
    assert find_memory(None) == "its speculative config is unknown"


def test_only_candidates_are_asked_about() -> None:
    arms = (Arm(name="plain", url="http://a"), Arm(name="new", url="http://b"))
    assert find_remembering(arms) == {"new": "its speculative config is unknown"}


def test_options_that_turn_a_memory_off_are_keys_of_vllm() -> None:
    """A row that says how to forget is of a method that remembers, with a value that its key can have."""
    for method in methods_where().values():
        assert bool(method.forgets_with) <= (method.remembers == "answers")
        for key, value in method.forgets_with.items():
            assert value >= read_spec_keys()[key].bounds["ge"]
            assert key in method.keys
