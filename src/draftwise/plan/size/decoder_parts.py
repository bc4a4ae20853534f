"""The weights of a decoder-only language model from its config.json: every matrix that vLLM allocates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from draftwise.core import ModelShape
from draftwise.core.layer_kinds import read_layer_kinds
from draftwise.knowledge.model_types import find_matrices, types_with
from draftwise.plan.size.weight_parts import Part, Sharding

Config = Mapping[str, Any]

_FEED_FORWARD = frozenset({"mlp", "moe"})
"""Kinds of layers that are a feed-forward network alone; all layers of other models end with one."""


def known_family(model_type: str) -> bool:
    """Return whether the inventory of a model type was verified; others get no number."""
    return model_type in types_with("known")


def decoder_parts(config: Config, shape: ModelShape) -> tuple[Part, ...]:
    """Return every matrix of a model, without multi-token prediction modules and other modalities."""
    hidden, vocab = shape.hidden_size, shape.vocab_size
    parts = [
        Part(
            name="embed_tokens",
            role="embedding",
            rows=vocab,
            cols=config.get("word_embed_proj_dim") or hidden,
            split=Sharding.VOCABULARY,
            quantized=False,
        ),
        *_position_parts(config, shape),
        *_layer_parts(config, shape),
        norm("norm", hidden, last=True),
    ]
    if not shape.tie_word_embeddings:
        parts.append(
            Part(
                name="lm_head",
                role="head",
                rows=vocab,
                cols=hidden,
                split=Sharding.VOCABULARY,
                quantized=False,
                last=True,
            )
        )
    return tuple(parts)


def _position_parts(config: Config, shape: ModelShape) -> Iterator[Part]:
    if config.get("model_type") in types_with("learned_positions"):
        rows, cols = shape.max_position_embeddings, shape.hidden_size
        yield Part(
            name="embed_positions", role="embedding", rows=rows, cols=cols, split=Sharding.COPIED, quantized=False
        )


def norm(name: str, width: int, layers: tuple[int, ...] = (), *, last: bool = False) -> Part:
    """Return a norm's weights."""
    return Part(name=name, role="norm", rows=width, layers=layers, split=Sharding.COPIED, quantized=False, last=last)


def _layer_parts(config: Config, shape: ModelShape) -> Iterator[Part]:
    every = tuple(range(shape.num_layers))
    attending = tuple(layer for layer in every if layer not in shape.stateful_layers)
    yield from attention_parts(config, shape, attending)
    kinds = read_layer_kinds(config)
    alone = tuple(layer for layer in every if kinds and kinds[layer] in _FEED_FORWARD)
    mamba = tuple(layer for layer in every if kinds and kinds[layer] == "mamba")
    delta = tuple(layer for layer in every if layer in shape.stateful_layers and layer not in {*alone, *mamba})
    if delta:
        yield from _linear_attention_parts(config, shape, delta)
    if mamba:
        yield from _mamba_parts(config, shape, mamba)
    yield from mlp_parts(config, shape, alone or every)
    usual = 1 if alone else 2
    count = 4 if config.get("model_type") in types_with("four_norms") else usual
    for index in range(count):
        yield norm(f"layernorm.{index}", shape.hidden_size, every)


def attention_parts(
    config: Config, shape: ModelShape, layers: tuple[int, ...], *, inputs: int | None = None
) -> Iterator[Part]:
    """Yield the matrices of attention.

    Args:
        config: config of the model.
        shape: shape of the model.
        layers: layers with attention.
        inputs: input width of queries, keys and values; by default the hidden size.
    """
    if not layers:
        return
    if shape.latent_dim:
        yield from _latent_parts(config, shape, layers)
        return
    kind, hidden = config.get("model_type"), shape.hidden_size
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    width, gate = inputs or hidden, 2 if kind in types_with("gated_query") else 1
    part = partial(Part, role="attention", layers=layers)
    by_head = partial(part, split=Sharding.KV, heads=shape.num_kv_heads)
    yield part(name="q_proj", rows=gate * queries, cols=width)
    yield by_head(name="kv_proj", rows=2 * keys, cols=width)
    yield part(name="o_proj", rows=queries, cols=hidden)
    bias = bool(config.get("attention_bias", config.get("bias", kind in types_with("always_biased"))))
    if bias:
        yield part(name="q_proj.bias", rows=gate * queries)
        yield by_head(name="kv_proj.bias", rows=2 * keys)
    if bias and kind not in types_with("qkv_bias"):
        yield part(name="o_proj.bias", rows=hidden, split=Sharding.COPIED)
    if kind in types_with("head_norm") or (kind == "glm4_moe" and config.get("use_qk_norm")):
        yield norm("qk_norm", 2 * shape.head_dim, layers)
    if kind in types_with("whole_norm"):
        yield norm("qk_norm", queries + keys, layers)
    if kind == "gpt_oss":
        yield part(name="sinks", rows=shape.num_heads)


def _latent_parts(config: Config, shape: ModelShape, layers: tuple[int, ...]) -> Iterator[Part]:
    """Yield multi-head latent attention: projections into the latent are copied, those out of it divided by heads."""
    hidden, heads = shape.hidden_size, shape.num_heads
    rank, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
    nope, value = config["qk_nope_head_dim"], config["v_head_dim"]
    part = partial(Part, role="attention", layers=layers)
    copied = partial(part, split=Sharding.COPIED)
    if query_rank := config.get("q_lora_rank"):
        yield copied(name="q_a_proj", rows=query_rank, cols=hidden)
        yield norm("q_a_layernorm", query_rank, layers)
    width = query_rank or hidden
    yield part(name="q_b_proj", rows=heads * (nope + rope), cols=width)
    yield copied(name="kv_a_proj", rows=rank + rope, cols=hidden)
    yield norm("kv_a_layernorm", rank, layers)
    yield part(name="kv_b_proj", rows=heads * (nope + value), cols=rank)
    yield part(name="o_proj", rows=heads * value, cols=hidden)
    if indexer := config.get("index_n_heads"):
        dim = config["index_head_dim"]
        yield copied(name="indexer.wq_b", rows=indexer * dim, cols=width)
        yield copied(name="indexer.wk", rows=dim, cols=hidden)
        yield copied(name="indexer.weights_proj", rows=indexer, cols=hidden, quantized=False)


def _linear_attention_parts(config: Config, shape: ModelShape, layers: tuple[int, ...]) -> Iterator[Part]:
    """Yield a gated delta net, the layer of Qwen3-Next and Qwen3.5 that keeps a state."""
    hidden, value_heads = shape.hidden_size, config.get("linear_num_value_heads") or shape.num_heads
    keys = (config.get("linear_num_key_heads") or shape.num_heads) * (config.get("linear_key_head_dim") or 128)
    head = config.get("linear_value_head_dim") or 128
    values = value_heads * head
    part = partial(Part, role="state", layers=layers)
    yield part(name="in_proj_qkvz", rows=2 * keys + 2 * values, cols=hidden)
    yield part(name="in_proj_ba", rows=2 * value_heads, cols=hidden)
    kernel = config.get("linear_conv_kernel_dim") or 4
    yield part(name="conv1d", rows=2 * keys + values, cols=kernel, quantized=False)
    yield part(name="A_log, dt_bias", rows=2 * value_heads)
    yield norm("linear_attn.norm", head, layers)
    yield part(name="out_proj", rows=values, cols=hidden)


def _mamba_parts(config: Config, shape: ModelShape, layers: tuple[int, ...]) -> Iterator[Part]:
    """Yield Mamba-2, as in Nemotron-H and in Granite 4.0, whose keys have other names."""

    def size(nemotron: str, granite: str) -> int:
        return int(config.get(nemotron) or config.get(granite) or 1)

    heads = size("mamba_num_heads", "mamba_n_heads")
    inner = heads * size("mamba_head_dim", "mamba_d_head")
    states = size("n_groups", "mamba_n_groups") * size("ssm_state_size", "mamba_d_state")
    part = partial(Part, role="state", layers=layers)
    yield part(name="in_proj", rows=2 * inner + 2 * states + heads, cols=shape.hidden_size)
    yield part(name="conv1d", rows=inner + 2 * states, cols=size("conv_kernel", "mamba_d_conv"), quantized=False)
    yield part(name="A, D, dt_bias", rows=3 * heads, quantized=False)
    yield norm("mamba.norm", inner, layers)
    yield part(name="out_proj", rows=inner, cols=shape.hidden_size)


def mlp_parts(config: Config, shape: ModelShape, layers: tuple[int, ...]) -> Iterator[Part]:
    """Yield the feed-forward matrices: dense layers, and those with a mixture of experts."""
    hidden, matrices = shape.hidden_size, find_matrices(config)
    sparse = tuple(layer for layer in layers if _is_sparse(config, layer))
    dense = tuple(layer for layer in layers if layer not in set(sparse))
    if dense:
        inner = config.get("intermediate_size_mlp") or shape.intermediate_size
        yield Part(name="mlp", role="mlp", rows=matrices * inner, cols=hidden, layers=dense)
        if config.get("mlp_bias", config.get("bias", config.get("model_type") in types_with("mlp_biased"))):
            yield Part(name="mlp.bias", role="mlp", rows=(matrices - 1) * inner + hidden, layers=dense)
    if not sparse:
        return
    inner, count = config.get("moe_intermediate_size") or shape.intermediate_size, num_experts(config)
    part = partial(Part, role="experts", layers=sparse)
    latent = config.get("moe_latent_size")
    yield part(name="experts", rows=matrices * inner, cols=latent or hidden, copies=count)
    if latent:
        yield part(name="latent projections", rows=2 * latent, cols=hidden, split=Sharding.COPIED)
    yield Part(
        name="router", role="router", rows=count, cols=hidden, layers=sparse, split=Sharding.COPIED, quantized=False
    )
    if config.get("scoring_func") == "sigmoid" or config.get("model_type") in types_with("router_correction"):
        yield Part(
            name="e_score_correction_bias",
            role="router",
            rows=count,
            layers=sparse,
            split=Sharding.COPIED,
            stored_bits=32,
        )
    if config.get("model_type") == "gpt_oss":
        yield part(name="experts.bias", rows=2 * inner + hidden, copies=count)
        yield Part(name="router.bias", role="router", rows=count, layers=sparse, split=Sharding.COPIED)
    if shared := _shared_width(config, inner):
        yield part(name="shared_expert", rows=matrices * shared, cols=hidden)
        if config.get("shared_expert_intermediate_size"):
            yield part(name="shared_expert_gate", rows=1, cols=hidden, split=Sharding.COPIED, quantized=False)


def num_experts(config: Config) -> int:
    """Return the number of routed experts per layer; 0 for a dense model."""
    keys = ("num_experts", "num_local_experts", "n_routed_experts")
    return next((int(config[key]) for key in keys if config.get(key)), 0)


def _shared_width(config: Config, inner: int) -> int:
    if config.get("model_type") == "llama4_text":
        return inner
    named = config.get("shared_expert_intermediate_size") or config.get("moe_shared_expert_intermediate_size")
    return int(named or (config.get("n_shared_experts") or 0) * inner)


def _is_sparse(config: Config, layer: int) -> bool:
    """Say whether a layer has experts: DeepSeek all but the first few, Llama 4 every n-th, Qwen by step and list."""
    if num_experts(config) == 0 or layer < (config.get("first_k_dense_replace") or 0):
        return False
    if "moe" in (kinds := read_layer_kinds(config)):
        return kinds[layer] == "moe"
    if layer in (config.get("mlp_only_layers") or ()):
        return False
    steps = ("interleave_moe_layer_step", "decoder_sparse_step", "moe_layer_freq")
    step = next((config[key] for key in steps if config.get(key)), 1)
    return not isinstance(step, int) or "moe_layer_freq" in config or (layer + 1) % step == 0
