from __future__ import annotations

import pytest

from draftwise.checkpoints.recognize import find_format_fault, flatten, from_plain, to_plain
from draftwise.core import InvalidSetup
from draftwise.knowledge.methods import methods_where

_LAYERS = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
}


def _file(kind: str, layers: dict | None = None, **own) -> dict:
    return {
        "speculators_model_type": kind,
        "speculators_config": {"algorithm": kind},
        "transformer_layer_config": {**_LAYERS, **(layers or {})},
        "draft_vocab_size": 32,
        **own,
    }


def test_a_plain_config_is_returned_as_it_is():
    config = {"architectures": ["LlamaForCausalLMEagle3"], **_LAYERS}
    assert to_plain(config, where="config.json") == config


def test_eagle3_layers_are_flattened_and_the_other_default_is_written_out():
    plain = to_plain(_file("eagle3", eagle_aux_hidden_state_layer_ids=[1, 2, 3]), where="x")
    assert plain == {
        **_LAYERS,
        "architectures": ["Eagle3LlamaForCausalLM"],
        "draft_vocab_size": 32,
        "norm_before_residual": True,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
    }
    assert to_plain(_file("eagle3", norm_before_residual=False), where="x")["norm_before_residual"] is False


def test_peagle_defaults_to_the_norm_of_plain_files_and_names_its_mask_token():
    plain = to_plain(_file("peagle", {"model_type": "qwen3"}, mask_token_id=7), where="x")
    assert plain["architectures"] == ["PeagleQwen3ForCausalLM"]
    assert (plain["norm_before_residual"], plain["pard_token"]) == (False, 7)
    assert "eagle_aux_hidden_state_layer_ids" not in plain


def test_dflash_counts_its_layers_from_zero_in_plain_files():
    config = _file("dflash", mask_token_id=0, aux_hidden_state_layer_ids=[1, 3], block_size=8)
    plain = to_plain(config, where="x")
    assert plain["dflash_config"] == {"mask_token_id": 0, "target_layer_ids": [0, 2], "causal": False}
    assert plain["eagle_aux_hidden_state_layer_ids"] == [1, 3]
    assert (plain["architectures"], plain["block_size"]) == (["DFlashDraftModel"], 8)


def test_dflash_full_attention_is_not_made_causal_by_the_flag_for_sliding_windows():
    config = _file("dflash", mask_token_id=0, aux_hidden_state_layer_ids=[1], sliding_window_non_causal=False)
    assert "causal" not in to_plain(config, where="x")["dflash_config"]


def test_the_file_is_not_changed():
    config = _file("dflash", mask_token_id=0, aux_hidden_state_layer_ids=[1])
    to_plain(config, where="x")
    assert config == _file("dflash", mask_token_id=0, aux_hidden_state_layer_ids=[1])


@pytest.mark.parametrize(
    ("config", "code"),
    [
        (_file("eagle9"), "unknown-speculators-type"),
        (_file("peagle"), "speculators-key-missing"),
        (_file("dflash", mask_token_id=3), "speculators-key-missing"),
        (_file("dspark", aux_hidden_state_layer_ids=[1]), "speculators-key-missing"),
        ({"speculators_model_type": "eagle3"}, "speculators-incomplete"),
    ],
)
def test_what_cannot_be_read_is_refused(config, code):
    with pytest.raises(InvalidSetup) as error:
        to_plain(config, where="drafter/config.json")
    assert [finding.code for finding in error.value.findings] == [code]
    flatten(config)  # what only looks at a file goes on


def test_every_type_that_a_method_names_is_read_and_no_other():
    named = {name for method in methods_where().values() for name in method.speculators}
    complete = {"mask_token_id": 1, "aux_hidden_state_layer_ids": [1]}
    assert all(find_format_fault(_file(name, **complete), where="x") is None for name in named)
    assert all(flatten(_file(name, **complete))["architectures"] for name in named)
    assert find_format_fault(_file("eagle9", **complete), where="x") is not None


def test_block_drafters_name_their_layers_and_their_class():
    config = _file("dspark", mask_token_id=3, aux_hidden_state_layer_ids=[1, 3], markov_rank=16)
    plain = to_plain(config, where="x")
    assert (plain["architectures"], plain["markov_rank"]) == (["Qwen3DSparkModel"], 16)
    assert plain["dflash_config"] == {"mask_token_id": 3, "target_layer_ids": [0, 2]}
    assert to_plain(config | {"speculators_model_type": "dflash2"}, where="x")["architectures"] == ["DFlash2DraftModel"]


_PLAIN = {
    "eagle3": {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": 32,
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
        **_LAYERS,
    },
    "peagle": {
        "architectures": ["Eagle3LlamaForCausalLM"],
        "ptd_token_id": 5,
        "norm_before_residual": True,
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
        **_LAYERS,
    },
    "dflash": {
        "architectures": ["DFlashDraftModel"],
        "block_size": 8,
        "dflash_config": {"mask_token_id": 9, "target_layer_ids": [0, 2]},
        **_LAYERS,
        "model_type": "qwen3",
    },
}


@pytest.mark.parametrize("kind", _PLAIN)
def test_what_is_written_reads_back_with_the_same_meaning(kind):
    written = from_plain(_PLAIN[kind], verifier="org/target", k=5)
    assert written["speculators_model_type"] == kind
    assert written["speculators_config"]["verifier"]["name_or_path"] == "org/target"
    assert written["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 5
    plain, again = to_plain(written, where="x"), _PLAIN[kind]
    meaning = {**again, "draft_vocab_size": again.get("draft_vocab_size", 128)}
    renamed = {"architectures", "ptd_token_id", "dflash_config"}
    assert {key: plain[key] for key in meaning if key not in renamed} == {
        key: value for key, value in meaning.items() if key not in renamed
    }
    assert plain.get("pard_token") == again.get("ptd_token_id")
    if "dflash_config" in again:
        assert plain["dflash_config"] == {**again["dflash_config"], "causal": False}


@pytest.mark.parametrize("kind", _PLAIN)
def test_the_library_reads_what_is_written(kind):
    speculators = pytest.importorskip("speculators")
    written = from_plain(_PLAIN[kind], verifier="org/target", k=5)
    config = speculators.SpeculatorModelConfig.from_dict(written)
    assert config.speculators_config.proposal_methods[0].speculative_tokens == 5
    layers = config.transformer_layer_config
    assert (layers.model_type, layers.hidden_size) == (_PLAIN[kind]["model_type"], 64)
    again, plain = to_plain(config.to_dict(), where="x"), to_plain(written, where="x")
    assert {key: again[key] for key in plain if key in _PLAIN[kind]} == {
        key: plain[key] for key in plain if key in _PLAIN[kind]
    }


@pytest.mark.parametrize(
    "plain",
    [
        {"architectures": ["MedusaModel"]},
        {**_PLAIN["dflash"], "dflash_config": {"mask_token_id": 9, "target_layer_ids": [0], "use_swa": True}},
        {**_PLAIN["dflash"], "dflash_config": {"mask_token_id": 9, "target_layer_ids": [0], "causal": True}},
        {**_PLAIN["dflash"], "dflash_config": {"mask_token_id": 9}},
    ],
)
def test_what_the_format_cannot_say_is_refused(plain):
    with pytest.raises(InvalidSetup) as error:
        from_plain(plain, verifier="org/target", k=5)
    assert [finding.code for finding in error.value.findings] == ["not-in-speculators-format"]
