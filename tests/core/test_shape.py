"""What a config.json keeps of every token."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwise.core import ModelShape

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
}  # fmt: skip


def shape(**changes: Any) -> ModelShape:
    return ModelShape.from_hf_config(LLAMA | changes)


def test_llama_keeps_keys_and_values_of_every_head() -> None:
    assert shape().kv_bytes_per_token(2) == 131072
    assert shape().windows == ()


def test_a_latent_takes_the_place_of_heads() -> None:
    latent = shape(kv_lora_rank=512, qk_rope_head_dim=64, num_hidden_layers=61)
    assert latent.kv_bytes_per_token(2) == 61 * 576 * 2
    assert latent.kv_layers()[0].values_per_rank(8) == 576


@given(heads=st.sampled_from([1, 2, 4, 8, 16]), size=st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_every_gpu_keeps_at_least_one_head(heads: int, size: int) -> None:
    layer = shape(num_attention_heads=32, num_key_value_heads=heads).kv_layers()[0]
    assert layer.values_per_rank(size) == 2 * 128 * max(1, heads // size)
    assert layer.values_per_rank(size) * size >= layer.values


@pytest.mark.parametrize(
    ("changes", "sliding"),
    [
        ({"model_type": "gemma2", "sliding_window": 4096}, 16),
        ({"model_type": "gemma3_text", "sliding_window": 1024, "num_hidden_layers": 34}, 29),
        ({"model_type": "mistral", "sliding_window": 4096}, 32),
        ({"model_type": "mistral", "sliding_window": None}, 0),
        ({"model_type": "qwen2", "sliding_window": 4096}, 0),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 28}, 4),
        ({"model_type": "qwen3", "sliding_window": 4096, "use_sliding_window": False}, 0),
        ({"model_type": "qwen3_moe"}, 0),
        ({"model_type": "qwen3_moe", "use_sliding_window": True, "max_window_layers": 28}, 32),
        ({"layer_types": ["sliding_attention", "full_attention"] * 16, "sliding_window": 128}, 16),
        ({"layer_types": ["chunked_attention", "full_attention"] * 16}, 16),
        ({"layer_types": ["sliding_attention"]}, 0),  # too short to say anything
    ],
)  # fmt: skip
def test_windows_are_those_of_the_family(changes: dict[str, Any], sliding: int) -> None:
    found = shape(**changes)
    assert sum(layer.window is not None for layer in found.kv_layers()) == sliding
    assert len(found.kv_layers()) == found.num_layers


def test_layers_with_a_state_keep_nothing_of_a_token() -> None:
    hybrid = shape(model_type="qwen3_next", num_hidden_layers=48)
    assert len(hybrid.kv_layers()) == 12
    assert hybrid.kv_bytes_per_token(2) == 12 * 2 * 8 * 128 * 2
