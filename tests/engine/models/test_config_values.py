"""Whatever stands in a config.json, a model is built or the value is named; nothing is allocated before that."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwise.core import InvalidSetup
from draftwise.engine.models.checkpoint import check_config

GOOD = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "head_dim": None,
    "num_attention_heads": 4,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "short_factor": [1, 1.5], "truncate": False},
}
WRONG = ["x", -1, 10**12, 10**30, 1.5, True, [], {}, [1], float("inf"), float("nan")]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


def test_what_checkpoints_have_passes():
    check_config(GOOD, where="config.json")
    check_config({}, where="config.json")


@pytest.mark.parametrize("value", WRONG, ids=str)
@pytest.mark.parametrize("key", ["hidden_size", "vocab_size", "max_position_embeddings", "num_key_value_heads"])
def test_a_size_is_a_whole_number(key, value):
    with pytest.raises(InvalidSetup, match=f"{key} must be a whole number"):
        check_config(GOOD | {key: value}, where="config.json")


@pytest.mark.parametrize("key", ["max_position_embeddings", "num_key_value_heads", "head_dim", "intermediate_size"])
def test_a_size_that_would_be_another_one_is_refused(key):
    with pytest.raises(InvalidSetup, match=f"{key} must be a whole number from 1 to 2147483647, got '0'"):
        check_config(GOOD | {key: 0}, where="config.json")


def test_no_context_is_no_length():
    """As in transformers, whose configs take none."""
    with pytest.raises(InvalidSetup, match="max_position_embeddings must be a whole number from 1"):
        check_config(GOOD | {"max_position_embeddings": None}, where="config.json")


@pytest.mark.parametrize("value", ["x", -1, 0, True, [], float("inf"), float("nan")], ids=str)
def test_a_rate_is_a_positive_number(value):
    with pytest.raises(InvalidSetup, match="rms_norm_eps must be a positive number"):
        check_config(GOOD | {"rms_norm_eps": value}, where="config.json")
    with pytest.raises(InvalidSetup, match=r"rope_parameters\.factor must be"):
        check_config(GOOD | {"rope_parameters": {"factor": [value]}}, where="config.json")


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("model_type", {"a": 1}, "a name"),
        ("tie_word_embeddings", "false", "true or false"),
        ("attention_bias", 0.5, "true or false"),
        ("use_sliding_window", [[]], "true or false"),
    ],
)
def test_a_value_of_another_type_is_refused(key, value, kind):
    with pytest.raises(InvalidSetup, match=f"{key} must be {kind}"):
        check_config(GOOD | {key: value}, where="config.json")


@given(st.dictionaries(st.sampled_from(sorted(GOOD)), JSON))
@settings(max_examples=200, deadline=None)
def test_any_value_passes_or_is_named(values):
    try:
        check_config(values, where="config.json")
    except InvalidSetup:
        return
    size = values.get("hidden_size")
    assert size is None or (isinstance(size, int) and 0 <= size < 2**31)


@pytest.mark.parametrize("name", ["hidden_size", "intermediate_size", "vocab_size"])
def test_a_size_that_the_weights_contradict_takes_no_memory(tiny_target, tmp_path, name):
    from draftwise.engine.models.weight_loading import load_model

    for path in tiny_target.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {name: 2**30}))
    with pytest.raises(InvalidSetup):
        load_model(str(tmp_path), dtype="float32", device="cpu", load_format="auto", quantization=None)


@pytest.mark.parametrize("cut", [0, 1, 100, -1])
def test_a_damaged_state_of_training_is_named(tmp_path, cut):
    from draftwise.training.run_folder import RunFolder

    folder = RunFolder(tmp_path)
    folder.open({"lr": 1})
    folder.save({"step": 1})
    file = tmp_path / "training" / "checkpoint.pt"
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(InvalidSetup, match="cannot be read"):
        RunFolder(tmp_path).load()
    for text, told in {"{": "Expecting property", "5": "a value has another type"}.items():
        (tmp_path / "training" / "settings.json").write_text(text)
        with pytest.raises(InvalidSetup, match=rf"settings\.json .*{told}"):
            RunFolder(tmp_path).open({"lr": 1})
