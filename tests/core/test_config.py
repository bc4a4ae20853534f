"""The speculative config keeps every key, and a mistake in it is one clear sentence."""

import json

import pytest

from draftwise.core import InvalidSetup, SpecConfig


def test_round_trip_keeps_unknown_options() -> None:
    given = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "not_a_key": [1]}
    assert json.loads(SpecConfig.parse(json.dumps(given)).to_json()) == given


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{method: ngram}", "not-json"),
        pytest.param("[" * 10**5, "not-json", id="deep"),
        pytest.param(f'{{"num_speculative_tokens": {"9" * 5000}}}', "not-json", id="digits"),
        ("[1]", "not-an-object"),
        ('{"method": 3}', "wrong-type"),
        ('{"num_speculative_tokens": true}', "wrong-type"),
        ('{"num_speculative_tokens": "5"}', "wrong-type"),
    ],
)
def test_mistakes_are_named(text: str, code: str) -> None:
    with pytest.raises(InvalidSetup) as caught:
        SpecConfig.parse(text)
    assert [finding.code for finding in caught.value.findings] == [code]


def test_options_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        SpecConfig.parse({"method": "ngram", "x": 1}).options["x"] = 2  # type: ignore[index]
