import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwise.setups.read.arguments.flag_values import read_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(JSON)
def test_json_is_read_as_json(value):
    found = read_json(json.dumps(value))
    assert (found.value, found.mistake) == (value, "")


@given(st.text(max_size=200))
def test_anything_else_has_a_mistake(text):
    found = read_json(text)
    try:
        assert repr(found.value) == repr(json.loads(text))  # NaN is not equal to itself
    except ValueError:
        assert found.mistake


MEANT = {"method": "ngram", "num_speculative_tokens": 5, "parallel_drafting": True}


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("{'method': 'ngram', 'num_speculative_tokens': 5, 'parallel_drafting': true}", "single quotes"),
        (str(MEANT), "Python"),
        ("'" + json.dumps(MEANT) + "'", "extra pair of quotes"),
        (json.dumps(MEANT).replace('"', '\\"'), "backslash"),
        (json.dumps(MEANT).replace('"', "\u201c"), "typographic"),
        ("{method: ngram, num_speculative_tokens: 5, parallel_drafting: true}", "no quotes"),
        (json.dumps(MEANT)[:-1] + ",}", "comma"),
        (json.dumps(MEANT)[:-1], "unclosed brace"),
    ],
)
def test_the_mistake_is_named_and_the_meaning_kept(text, hint):
    found = read_json(text)
    assert hint in found.mistake
    assert found.fix
    assert found.value == MEANT


def test_duplicates_are_named():
    assert read_json('{"a": 1, "b": {"c": 1, "c": 2}, "a": 2}').duplicates == ("c", "a")


@pytest.mark.parametrize("text", ["[" * 50_000, '{"a":' * 20_000, "1" * 5_000, "{" + "'" * 50_000, "x" * 200_000])
def test_hostile_texts_have_a_mistake(text):
    assert read_json(text).mistake
