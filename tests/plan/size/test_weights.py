"""Weights from shapes and from safetensors headers."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwise.checkpoints.headers import read_headers
from draftwise.knowledge.models import find_model, read_models
from draftwise.plan.size.decoder_parts import decoder_parts
from draftwise.plan.size.drafter_parts import describe_drafter
from draftwise.plan.size.shapes import read_shape, read_text_config
from draftwise.plan.size.weight_bytes import stored_bytes
from draftwise.plan.size.weight_parts import PRECISIONS, elements, get_precision, num_bytes, precision_of, stages

_WITH_BIASES_OF_NORMS = {"gpt2", "bloom", "gptj", "gpt_neox", "opt", "phi"}
"""Types whose norms' biases are not counted: they are within 0.1 % (test_published_sizes)."""
EXACT = [
    model for model in read_models()
    if model.params and model.params % 100_000_000
    and "vision_config" not in model.config and model.config.get("model_type") not in _WITH_BIASES_OF_NORMS
    and not model.id.startswith(("meta-llama/Llama-4", "moonshotai/", "XiaomiMiMo/"))
]  # fmt: skip
"""Models whose parameter count is published to the last one, and counts nothing but the language model's weights."""


def text(name: str) -> dict[str, Any]:
    model = find_model(name)
    assert model is not None
    return read_text_config(model.config)


@pytest.mark.parametrize("model", EXACT, ids=[model.id for model in EXACT])
def test_parameters_are_those_published(model: Any) -> None:
    config = read_text_config(model.config)
    assert elements(decoder_parts(config, read_shape(config))) == model.params


def test_enough_models_are_checked() -> None:
    kinds = {str(model.config["model_type"]) for model in EXACT}
    assert kinds >= {"llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral", "gemma2", "phi3", "olmo2", "granite"}


def test_deepseek_has_the_parameters_of_its_published_index() -> None:
    config = text("deepseek-ai/DeepSeek-V3")
    assert elements(decoder_parts(config, read_shape(config))) == 671_026_419_200


def test_gpt_oss_has_the_parameters_of_its_model_card() -> None:
    config = text("openai/gpt-oss-120b")
    assert elements(decoder_parts(config, read_shape(config))) == pytest.approx(116.83e9, rel=1e-4)


def test_the_published_table_of_a_70b_target_with_an_8b_drafter() -> None:
    """Decimal gigabytes and the nominal width for every weight: no scales, embeddings narrowed too."""
    target, drafter = (elements(decoder_parts(config, read_shape(config))) for config in map(text, (
        "meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Llama-3.1-8B-Instruct",
    )))  # fmt: skip
    published = {(16, 16): 156, (8, 16): 86, (8, 8): 78, (4, 16): 51, (4, 4): 39}
    for (of_target, of_drafter), gigabytes in published.items():
        total = (target * of_target + drafter * of_drafter) / 8 / 1e9
        assert total == pytest.approx(gigabytes, rel=0.01)
        rounded = (70 * of_target + 8 * of_drafter) / 8
        assert rounded == pytest.approx(gigabytes, abs=0.01)
    both, narrowed = (target + drafter) * 2 / 1e9, (target + 2 * drafter) / 1e9
    assert [160 - both, 160 - narrowed, 282 - both] == pytest.approx([4, 74, 126], abs=1.5)


def test_real_formats_take_more_than_the_published_table_says() -> None:
    config = text("meta-llama/Llama-3.1-70B-Instruct")
    parts = decoder_parts(config, read_shape(config))
    nominal = elements(parts) / 2
    assert num_bytes(parts, PRECISIONS["int4"]) / nominal == pytest.approx(1.127, abs=0.005)


def test_mxfp4_experts_leave_attention_in_16_bit() -> None:
    from draftwise.core import Setup
    from draftwise.plan.size import size

    sizing = size(Setup(target="openai/gpt-oss-120b", engine="vllm", engine_version="0.33.0"), gpu="H100")
    assert sizing.budget.target == pytest.approx(65.25e9, rel=0.002)  # bytes of the published checkpoint


TINY = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 96, "vocab_size": 100, "max_position_embeddings": 64,
}  # fmt: skip


def write_checkpoint(folder: Path, tensors: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    widths = {"BF16": 2, "F32": 4, "I64": 8, "F8_E4M3": 1}
    header, position = {}, 0
    for name, (dtype, shape) in tensors.items():
        end = position + widths[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, end]}
        position = end
    encoded = json.dumps(header).encode()
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(encoded)) + encoded + bytes(position))


def llama_tensors(config: dict[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    h, i, v, d = (config[key] for key in ("hidden_size", "intermediate_size", "vocab_size", "head_dim"))
    q, kv = config["num_attention_heads"] * d, config["num_key_value_heads"] * d
    layer = {
        "self_attn.q_proj": (q, h), "self_attn.k_proj": (kv, h), "self_attn.v_proj": (kv, h),
        "self_attn.o_proj": (h, q),
        "mlp.gate_proj": (i, h), "mlp.up_proj": (i, h), "mlp.down_proj": (h, i), "input_layernorm": (h,),
        "post_attention_layernorm": (h,),
    }  # fmt: skip
    names = {
        f"model.layers.{j}.{key}.weight": shape
        for j in range(config["num_hidden_layers"]) for key, shape in layer.items()
    }  # fmt: skip
    names |= {"model.embed_tokens.weight": (v, h), "lm_head.weight": (v, h), "model.norm.weight": (h,)}
    return {name: ("BF16", shape) for name, shape in names.items()}


@pytest.mark.parametrize("tensor_parallel_size", [1, 2, 4, 8])
@pytest.mark.parametrize("pipeline_parallel_size", [1, 2, 3])
def test_headers_and_shape_say_the_same(tmp_path: Path, tensor_parallel_size: int, pipeline_parallel_size: int) -> None:
    write_checkpoint(tmp_path, llama_tensors(TINY))
    shape, headers = read_shape(TINY), read_headers(tmp_path)
    for stage in stages(shape.num_layers, pipeline_parallel_size):
        stored = stored_bytes(headers, shape, tensor_parallel_size=tensor_parallel_size, stage=stage)
        parts = decoder_parts(TINY, shape)
        counted = num_bytes(parts, get_precision("bf16"), tensor_parallel_size=tensor_parallel_size, stage=stage)
        assert stored == counted
    if tensor_parallel_size == pipeline_parallel_size == 1:
        padding = 2 * (128 - TINY["vocab_size"]) * TINY["hidden_size"] * 2
        assert stored == headers.num_bytes + padding


def test_what_vllm_does_not_load_is_not_counted(tmp_path: Path) -> None:
    tensors = llama_tensors(TINY)
    write_checkpoint(tmp_path, tensors)
    plain = stored_bytes(read_headers(tmp_path), read_shape(TINY))
    more = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": ("F32", (4,)),
        "model.layers.3.eh_proj.weight": ("BF16", (64, 128)),
    }
    write_checkpoint(tmp_path, tensors | more)
    assert stored_bytes(read_headers(tmp_path), read_shape(TINY)) == plain
    tied = read_shape({**TINY, "tie_word_embeddings": True})
    assert stored_bytes(read_headers(tmp_path), tied) == plain - 128 * 64 * 2


@given(layers=st.integers(1, 200), size=st.integers(1, 16))
def test_stages_share_all_layers_evenly(layers: int, size: int) -> None:
    cut = stages(layers, size)
    counts = [stage.end - stage.first for stage in cut]
    assert sum(counts) == layers
    assert cut[0].first == 0
    assert cut[-1].end == layers
    assert max(counts) - min(counts) <= 1
    assert [stage.is_last for stage in cut] == [False] * (size - 1) + [True]


def test_what_does_not_divide_goes_before_the_last_stage() -> None:
    assert [stage.end - stage.first for stage in stages(10, 4)] == [2, 3, 3, 2]


H, INNER, KV, V, DRAFT_VOCAB = 4096, 14336, 1024, 128256, 32000
MLP = 3 * H * INNER
HEADS = {
    "eagle": 2 * H * H + (2 * H * H + 2 * H * KV) + MLP,
    "eagle3": 3 * H * H + (H * 2 * H + 2 * KV * 2 * H + H * H) + MLP + DRAFT_VOCAB * H,
    "dflash": 5 * H * H + 5 * (2 * H * H + 2 * H * KV + MLP),
    "medusa": 3 * (V * H + H * H),
    "mlp_speculator": 3 * (2 * V * H + H * H),
}
"""Elements of the matrices of each method's usual head for Llama 3.1 8B and k=3."""


@pytest.mark.parametrize("method", sorted(HEADS))
def test_typical_heads_of_an_8b_target(method: str) -> None:
    drafter = describe_drafter(method, 3, text("meta-llama/Llama-3.1-8B-Instruct"), None)
    assert drafter.typical
    assert num_bytes(drafter.parts, get_precision("bf16")) == pytest.approx(2 * HEADS[method], rel=0.001)


def test_an_mtp_module_of_deepseek_is_one_layer_with_experts() -> None:
    drafter = describe_drafter("mtp", 1, text("deepseek-ai/DeepSeek-V3"), None)
    assert not drafter.typical
    assert elements(drafter.parts) == pytest.approx(11.6e9, rel=0.02)  # 14 B published with embedding and head
    assert drafter.shape is not None
    assert drafter.shape.num_layers == 1


@pytest.mark.parametrize("method", ["ngram", "suffix", "custom_class"])
def test_methods_without_weights_take_none(method: str) -> None:
    assert describe_drafter(method, 3, text("Qwen/Qwen3-8B"), None).parts == ()


@pytest.mark.parametrize(
    ("given_config", "name"),
    [
        ({}, "bf16"),
        ({"torch_dtype": "float32"}, "bf16"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}, "int4"),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}, "fp8-block"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4"),
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {
                "group_0": {"weights": {"num_bits": 8, "type": "int"}}}}},
            "int8",
        ),
    ],
)  # fmt: skip
def test_the_precision_is_read_from_the_config(given_config: dict[str, Any], name: str) -> None:
    assert precision_of(given_config).name == name


@given(rows=st.integers(1, 4096), cols=st.integers(1, 4096), name=st.sampled_from(sorted(PRECISIONS)))
def test_scales_only_add(rows: int, cols: int, name: str) -> None:
    precision = PRECISIONS[name]
    assert precision.matrix_bytes(rows, cols) >= rows * cols * precision.bits / 8
