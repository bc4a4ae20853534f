"""The table of well-known models agrees with itself and with the published parameter counts."""

from collections.abc import Mapping
from typing import Any

import pytest

from draftwise.knowledge.models import KnownModel, find_model, read_models, suggest_models


def text_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config.get("text_config", config)


def attention(c: Mapping[str, Any]) -> int:
    """Projections of one attention layer."""
    hidden, heads = c["hidden_size"], c["num_attention_heads"]
    if "kv_lora_rank" in c:
        rope, nope, value, rank, query = (
            c[key] for key in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "kv_lora_rank", "q_lora_rank")
        )
        whole = hidden * (query + rank + rope + heads * value) + query * heads * (nope + rope)
        whole += rank * heads * (nope + value)
        if "index_head_dim" in c:
            whole += query * c["index_n_heads"] * c["index_head_dim"] + hidden * (
                c["index_head_dim"] + c["index_n_heads"]
            )
        return whole
    width = c.get("head_dim") or hidden // heads
    gate = heads * width if c["model_type"] in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text") else 0
    return hidden * width * (2 * heads + 2 * c.get("num_key_value_heads", heads)) + hidden * gate


def linear_attention(c: Mapping[str, Any]) -> int:
    """Projections and convolution of one gated delta-net layer."""
    key = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    value = c["linear_num_value_heads"] * c["linear_value_head_dim"]
    return c["hidden_size"] * (2 * key + 3 * value + 2 * c["linear_num_value_heads"]) + 4 * (2 * key + value)


def mamba(c: Mapping[str, Any]) -> int:
    """Projections and convolution of one Mamba-2 layer, in Nemotron's keys or in Granite's."""
    heads = c.get("mamba_num_heads") or c["mamba_n_heads"]
    inner = heads * (c.get("mamba_head_dim") or c["mamba_d_head"])
    states = (c.get("n_groups") or c["mamba_n_groups"]) * (c.get("ssm_state_size") or c["mamba_d_state"])
    return c["hidden_size"] * (3 * inner + 2 * states + heads) + 4 * (inner + 2 * states)


def count_nemotron(c: Mapping[str, Any]) -> int:
    """Layers that are Mamba, attention, feed-forward or experts alone; two matrices a feed-forward network."""
    width = {"M": mamba(c), "*": attention(c), "-": 2 * c["hidden_size"] * c["intermediate_size"]}
    if "n_routed_experts" in c:
        experts_width = c["n_routed_experts"] * c["moe_intermediate_size"] + c["moe_shared_expert_intermediate_size"]
        width["E"] = 2 * c["hidden_size"] * experts_width
    return 2 * c["vocab_size"] * c["hidden_size"] + sum(width[letter] for letter in c["hybrid_override_pattern"])


def experts(c: Mapping[str, Any]) -> int:
    """Experts of one mixture layer, with router and shared ones."""
    hidden = c["hidden_size"]
    count = c.get("num_local_experts") or c.get("num_experts") or c["n_routed_experts"]
    width = c.get("moe_intermediate_size") or c["intermediate_size"]
    shared = c.get("shared_expert_intermediate_size") or c.get("n_shared_experts", 0) * width
    if c["model_type"] == "llama4_text":
        shared = width
    return 3 * hidden * (count * width + shared) + hidden * count


def is_sparse(c: Mapping[str, Any], layer: int) -> bool:
    if not any(c.get(key) for key in ("num_local_experts", "num_experts", "n_routed_experts")):
        return False
    if pattern := c.get("hybrid_override_pattern"):
        return bool(pattern[layer] == "E")
    return layer >= c.get("first_k_dense_replace", 0) and (layer + 1) % c.get("interleave_moe_layer_step", 1) == 0


def vision(c: Mapping[str, Any]) -> int:
    depth, hidden = c.get("num_hidden_layers") or c.get("depth", 0), c.get("hidden_size", 0)
    return depth * (4 * hidden * hidden + 2 * hidden * c.get("intermediate_size", 0))


def count_without_gate(c: Mapping[str, Any]) -> int:
    hidden, heads = c.get("hidden_size") or c.get("n_embd") or c["n_embed"], c.get("num_attention_heads") or c["n_head"]
    inner = c.get("intermediate_size") or c.get("n_inner") or c.get("ffn_dim") or 4 * hidden
    key_value = hidden // heads if c.get("multi_query") else hidden
    layer = hidden * (2 * inner + 2 * hidden + 2 * key_value)
    rows = c["vocab_size"] * (2 if c.get("tie_word_embeddings") is False else 1)
    if c["model_type"] in ("gpt2", "gpt_bigcode", "opt"):
        rows += c.get("n_positions") or c["max_position_embeddings"]
    return int(rows * hidden + (c.get("num_hidden_layers") or c["n_layer"]) * layer)


def count(model: KnownModel) -> int:
    c = text_of(model.config)
    if model.config["model_type"] in ("bloom", "gpt2", "gpt_bigcode", "gpt_neox", "gptj", "opt", "phi"):
        return count_without_gate(c)
    if "hybrid_override_pattern" in c:
        return count_nemotron(c)
    every = c.get("full_attention_interval", 1)
    kinds = c.get("layer_types") if "linear_num_key_heads" in c or "mamba_n_heads" in c else None
    whole = (
        c["vocab_size"]
        * c["hidden_size"]
        * (1 if c.get("tie_word_embeddings", model.config.get("tie_word_embeddings")) else 2)
    )
    for layer in range(c["num_hidden_layers"]):
        linear = kinds[layer] == "linear_attention" if kinds else "linear_num_key_heads" in c and (layer + 1) % every
        whole += linear_attention(c) if linear else mamba(c) if kinds and kinds[layer] == "mamba" else attention(c)
        dense = c.get("intermediate_size_mlp") or c.get("intermediate_size", 0)
        whole += experts(c) if is_sparse(c, layer) else 3 * c["hidden_size"] * dense
    return whole + vision(model.config.get("vision_config", {}))


PUBLISHED = [model for model in read_models() if model.params is not None]


@pytest.mark.parametrize("model", PUBLISHED, ids=lambda model: model.id)
def test_the_shape_gives_the_published_parameter_count(model: KnownModel) -> None:
    assert count(model) == pytest.approx(model.params, rel=0.02)


@pytest.mark.parametrize("model", PUBLISHED, ids=lambda model: model.id)
def test_every_row_says_what_vllm_asks_first(model: KnownModel) -> None:
    assert model.source
    assert model.config["architectures"]
    assert model.config["model_type"]
    assert (model.active_params is None) == (not any(is_sparse(text_of(model.config), layer) for layer in range(8)))
    assert model.active_params is None or model.active_params < model.params


def test_no_name_stands_twice() -> None:
    names = [name.lower() for model in read_models() for name in model.names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "qwen/qwen3-8b", "Qwen3-8B", " qwen3-8b "])
def test_case_and_organisation_do_not_matter(name: str) -> None:
    found = find_model(name)
    assert found is not None
    assert found.id == "Qwen/Qwen3-8B"


@pytest.mark.parametrize("name", ["", "Qwen3", "other/Qwen3-8B", "Qwen/Qwen3-8B/", "Qwen3-8B-Other"])
def test_nothing_else_may_be_left_out_or_added(name: str) -> None:
    assert find_model(name) is None


def test_every_name_finds_its_row() -> None:
    for model in read_models():
        assert all(find_model(name) is model for name in model.names)


def test_names_that_were_not_found_are_answered_with_their_neighbours() -> None:
    assert suggest_models("Qwen/Qwen3-8")[0] == "Qwen/Qwen3-8B"
    assert suggest_models("zzz") == ()
    assert suggest_models("/models/llama") == ()  # a folder is not a misspelled name


def test_a_path_with_a_slash_at_its_end_resembles_what_stands_before_it() -> None:
    assert suggest_models("~/models/Qwen3.6-27B/") == suggest_models("Qwen3.6-27B")
    assert suggest_models("/models/") == suggest_models("models")
