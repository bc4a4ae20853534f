"""What the loader accepts, and the sentence it gives for what it does not."""

from __future__ import annotations

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwise.checkpoints.headers import MTP_COUNTS
from draftwise.core import InvalidSetup
from draftwise.engine.models import load_model
from draftwise.plan.size.shapes import read_shape


def refusal(path, **options) -> str:
    with pytest.raises(InvalidSetup) as caught:
        load_model(path, **{"dtype": "float32", "device": "cpu"} | options)
    return str(caught.value)


def test_shards_and_a_single_file_hold_the_same_model(save_tiny, run_paged):
    path, _ = save_tiny("qwen3", shard_size="20KB")
    assert len(list(path.glob("model-*.safetensors"))) > 2
    sharded = load_model(path, dtype="float64", device="cpu")
    single = load_model(save_tiny("qwen3")[0], dtype="float64", device="cpu")
    (a,), (b,) = (run_paged(model, [[1, 2, 3]], [[3]])[0] for model in (sharded, single))
    assert torch.equal(sharded.logits(a), single.logits(b))


def test_auto_takes_the_checkpoints_dtype(save_tiny, edit_config):
    path, _ = save_tiny("llama")
    assert load_model(path, device="cpu").dtype == torch.float32
    edit_config(path, dtype=None, torch_dtype="bfloat16")
    assert load_model(path, device="cpu").dtype == torch.bfloat16


def test_float16_runs(save_tiny, run_paged):
    path, _ = save_tiny("mistral", sliding_window=None)
    half, full = (load_model(path, dtype=dtype, device="cpu") for dtype in ("float16", "float32"))
    (a,), (b,) = (run_paged(model, [list(range(40))], [[35, 5]])[0] for model in (half, full))
    assert half.logits(a).dtype == torch.float16
    torch.testing.assert_close(half.logits(a).float(), full.logits(b), rtol=0.05, atol=0.1)


def test_missing_tensors_are_named(save_tiny):
    path, _ = save_tiny("qwen2")
    tensors = load_file(path / "model.safetensors")
    gone = ["model.layers.1.self_attn.k_proj.bias", "model.norm.weight", "lm_head.weight"]
    save_file({name: tensor for name, tensor in tensors.items() if name not in gone}, path / "model.safetensors")
    message = refusal(path)
    assert all(name in message for name in gone)
    assert "lacks tensors (3)" in message


def test_a_tensor_of_another_shape_is_named(save_tiny, edit_config):
    path, _ = save_tiny("llama")
    edit_config(path, intermediate_size=64)
    assert re.search(r"mlp.gate_proj.weight has shape \(48, 32\), but config.json asks for \(64, 32\)", refusal(path))


def test_an_absent_shard_is_named(save_tiny):
    path, _ = save_tiny("llama", shard_size="20KB")
    shard = next(path.glob("model-00002-*.safetensors"))
    shard.unlink()
    assert shard.name in refusal(path)


def test_a_truncated_file_is_refused(save_tiny):
    path, _ = save_tiny("llama")
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert "is cut short" in refusal(path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"architectures": None, "model_type": "gemma"}, "gemma"),
        ({"hidden_size": None}, "hidden_size"),
        ({"quantization_config": {"quant_method": "awq"}}, "Quantized"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "longrope"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, "factor"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial"),
    ],
)
def test_configs_that_cannot_work_are_refused(changes, words, save_tiny, edit_config):
    path, _ = save_tiny("llama")
    edit_config(path, **changes)
    assert words in refusal(path)


def test_model_type_stands_in_for_architectures(save_tiny, edit_config):
    path, _ = save_tiny("qwen3")
    edit_config(path, architectures=None)
    load_model(path, dtype="float32", device="cpu")


def test_paths_that_hold_no_checkpoint_are_refused(tmp_path, save_tiny):
    assert "not a directory" in refusal(tmp_path / "nowhere")
    assert "no config.json" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert "not valid JSON" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    assert "JSON object" in refusal(tmp_path)
    path, _ = save_tiny("llama")
    (path / "model.safetensors").unlink()
    assert "save_pretrained" in refusal(path)


def test_unknown_dtypes_and_devices_are_refused(save_tiny):
    path, _ = save_tiny("llama")
    assert "int8" in refusal(path, dtype="int8")
    assert "tpu" in refusal(path, device="tpu")
    if not torch.cuda.is_available():
        assert "no CUDA" in refusal(path, device="cuda")


@pytest.mark.parametrize(
    ("family", "settings", "longest"),
    [
        ("llama", {}, 64),
        ("mistral", {"sliding_window": 24}, 64),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}}, 64),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}, 256),
        (
            "llama",
            {
                "rope_parameters": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "rope_theta": 1e4,
                    "original_max_position_embeddings": 64,
                }
            },
            256,
        ),
    ],
)
def test_the_longest_context_is_what_is_computed_exactly(family, settings, longest, save_tiny):
    path, _ = save_tiny(family, **settings)
    assert load_model(path, dtype="float32", device="cpu").shape.max_position_embeddings == longest


@pytest.mark.parametrize(
    ("family", "settings", "windows"),
    [
        ("llama", {}, {None}),
        ("mistral", {"sliding_window": 24}, {24}),
        ("mistral", {"sliding_window": None}, {None}),
        ("qwen2", {"sliding_window": 24}, {None}),
        ("qwen2", {"sliding_window": 24, "use_sliding_window": True, "max_window_layers": 1}, {None, 24}),
        ("qwen2", {"sliding_window": 24, "use_sliding_window": True, "max_window_layers": 3}, {None}),
        ("gemma3_text", {"sliding_window": 24, "sliding_window_pattern": 3}, {None, 24}),
        ("gemma3_text", {"sliding_window": 24, "sliding_window_pattern": 4}, {24}),
    ],
)
@pytest.mark.parametrize("listed", [True, False])
def test_windows(family, settings, windows, listed, save_tiny, edit_config):
    path, _ = save_tiny(family, **settings)
    if not listed:  # as older configs
        edit_config(path, layer_types=None)
    edit_config(path, **settings)
    assert load_model(path, dtype="float32", device="cpu").windows == windows


@pytest.mark.parametrize("types", [["sliding_attention"], ["full_attention", "linear_attention", "full_attention"]])
def test_unknown_kinds_of_layers_are_refused(types, save_tiny, edit_config):
    path, _ = save_tiny("gemma3_text")
    edit_config(path, layer_types=types)
    assert "layer_types" in refusal(path)


@pytest.mark.parametrize(
    ("family", "name", "value"),
    [
        ("gemma3_text", "final_logit_softcapping", 30.0),
        ("gemma3_text", "hidden_activation", "silu"),
        ("llama", "hidden_act", "gelu"),
        ("llama", "hidden_act", ["silu"]),
        ("qwen3_moe", "hidden_act", "relu"),
    ],
)
def test_layers_of_another_kind_are_refused(family, name, value, save_tiny, edit_config):
    path, _ = save_tiny(family)
    edit_config(path, **{name: value})
    assert f"{name} {value} is not supported" in refusal(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    "name", ["model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight", "model.norm.weight"]
)
def test_weights_that_are_not_finite_are_named(save_tiny, name, value):
    path, _ = save_tiny("llama")
    tensors = load_file(path / "model.safetensors")
    tensors[name].view(-1)[-1] = value
    save_file(tensors, path / "model.safetensors")
    assert f"Tensors with NaN or infinity (1): {name}" in refusal(path)


def test_weights_that_a_smaller_type_cannot_hold_are_named(save_tiny):
    path, _ = save_tiny("llama")
    tensors = load_file(path / "model.safetensors")
    tensors["model.norm.weight"][0] = 1e6
    save_file(tensors, path / "model.safetensors")
    load_model(path, dtype="float32", device="cpu")
    assert "NaN or infinity (1): model.norm.weight" in refusal(path, dtype="float16")


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.q_proj.weight", "model.norm.weight", "lm_head.weight"])
@pytest.mark.parametrize("kind", [torch.int8, torch.uint8, torch.int32, torch.bool, torch.float8_e4m3fn])
def test_numbers_of_a_quantization_that_nothing_explains_are_no_weights(save_tiny, name, kind):
    path, _ = save_tiny("qwen2")
    tensors = load_file(path / "model.safetensors")
    save_file(tensors | {name: tensors[name].to(kind)}, path / "model.safetensors")
    assert f"Tensor {name} has type" in refusal(path)


@pytest.mark.parametrize(("family", "length"), [("llama", 2048), ("qwen3", 32768)])
def test_a_checkpoint_without_a_length_has_that_of_its_type(save_tiny, family, length):
    """As in transformers."""
    path, _ = save_tiny(family)
    config = json.loads((path / "config.json").read_text())
    del config["max_position_embeddings"]
    (path / "config.json").write_text(json.dumps(config))
    assert load_model(path, device="cpu").shape.max_position_embeddings == length
    assert read_shape(config).max_position_embeddings == length


BIASES = ["self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj", "input_layernorm"]


@pytest.mark.parametrize("name", [*(f"model.layers.1.{each}.bias" for each in BIASES), "lm_head.bias", "score.weight"])
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_weight_that_would_change_numbers_and_is_not_used_is_named(save_tiny, name, value):
    path, _ = save_tiny("llama")
    tensors = load_file(path / "model.safetensors")
    save_file(tensors | {name: torch.full((4,), value)}, path / "model.safetensors")
    if value or not name.endswith(".bias"):
        assert f"does not describe (1): {name}" in refusal(path)
    else:  # as GPTQ writes them
        load_model(path, device="cpu")


def test_a_tied_head_that_is_stored_again_is_not_read(save_tiny):
    path, _ = save_tiny("llama", tie_word_embeddings=True)
    tensors = load_file(path / "model.safetensors")
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, path / "model.safetensors")
    load_model(path, device="cpu")


@pytest.mark.parametrize("key", MTP_COUNTS)
@pytest.mark.parametrize("count", [1, 2, 2**31 - 1])
def test_layers_for_drafts_behind_the_last_are_as_many_as_config_json_says(save_tiny, edit_config, key, count):
    path, _ = save_tiny("qwen3")
    tensors = load_file(path / "model.safetensors")
    layers = len({name.split(".")[2] for name in tensors if name.startswith("model.layers.")})
    extra = [f"model.layers.{layers + i}.{name}.weight" for i in (0, 1) for name in ("mlp.up_proj", "post_norm")]
    save_file(tensors | {name: torch.ones(4) for name in extra}, path / "model.safetensors")
    assert "does not describe (4)" in refusal(path)
    edit_config(path, **{key: count})
    if count == 1:
        assert f"does not describe (2): model.layers.{layers + 1}." in refusal(path)
    else:
        load_model(path, device="cpu")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model.layers.0.self_attn.q_proj.weight_scale", "does not describe (1)"),
        ("model.layers.0.mlp.down_proj.weight_scale_inv", "does not describe (1)"),
        ("model.layers.9.mlp.down_proj.weight", "does not describe (1)"),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", None),
        ("model.layers.0.self_attn.masked_bias", None),
        ("model.embeddings.position_ids", None),
        ("model.mtp_layers.0.input_proj.weight", None),
        ("model.vision_tower.layers.9.mlp.fc1.bias", None),
        ("mtp.layers.0.mlp.down_proj.weight_scale", None),
        ("model.layers.9.eh_proj.weight", None),
    ],
)
def test_scales_and_layers_that_config_json_does_not_have_are_named(save_tiny, name, words):
    path, _ = save_tiny("llama")
    tensors = load_file(path / "model.safetensors")
    save_file(tensors | {name: torch.full((4,), torch.nan)}, path / "model.safetensors")
    if words is None:
        load_model(path, device="cpu")
    else:
        assert words in refusal(path)
        assert name in refusal(path)
