"""Names and shapes of a dense decoder's tensors in the layout of Llama, Mistral and Qwen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftwise.checkpoints.dimensions import Dimensions

__all__ = ["Shapes", "Sizes", "decoder_layer", "decoder_model"]

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Dimensions of which none is missing."""

    hidden: int
    inner: int
    num_layers: int
    query: int
    """Query heads times head dimension."""
    key: int
    """Key-value heads times head dimension."""
    head: int
    vocab: int

    @classmethod
    def from_dimensions(cls, of: Dimensions) -> Sizes | None:
        """Return the sizes, None if one is missing or zero."""
        heads, kv_heads, head = of.num_attention_heads, of.num_key_value_heads, of.head_dim
        hidden, inner, layers, vocab = of.hidden_size, of.intermediate_size, of.num_hidden_layers, of.vocab_size
        if not (heads and kv_heads and head and hidden and inner and layers and vocab):
            return None
        return cls(
            hidden=hidden,
            inner=inner,
            num_layers=layers,
            query=heads * head,
            key=kv_heads * head,
            head=head,
            vocab=vocab,
        )


def decoder_layer(
    prefix: str,
    sizes: Sizes,
    *,
    num_in: int | None = None,
    input_norm: bool = True,
    qk_norm: bool = False,
    qkv_bias: bool = False,
    o_bias: bool = False,
    mlp_bias: bool = False,
) -> Shapes:
    """Return the tensors of one layer.

    Args:
        prefix: of their names, such as `layers.0.`.
        sizes: of the decoder.
        num_in: width of what its attention reads; None: the hidden size.
        input_norm: whether it has one.
        qk_norm: whether queries and keys are normed, as in Qwen3.
        qkv_bias: whether those three projections have biases.
        o_bias: whether the attention's output has one.
        mlp_bias: whether the three of the MLP have.
    """
    hidden, inner = sizes.hidden, sizes.inner
    outs = {"q_proj": sizes.query, "k_proj": sizes.key, "v_proj": sizes.key}
    shapes: Shapes = {f"self_attn.{name}.weight": (size, num_in or hidden) for name, size in outs.items()}
    shapes["self_attn.o_proj.weight"] = (hidden, sizes.query)
    shapes["mlp.gate_proj.weight"] = shapes["mlp.up_proj.weight"] = (inner, hidden)
    shapes["mlp.down_proj.weight"] = (hidden, inner)
    shapes["post_attention_layernorm.weight"] = (hidden,)
    if input_norm:
        shapes["input_layernorm.weight"] = (hidden,)
    if qk_norm:
        shapes["self_attn.q_norm.weight"] = shapes["self_attn.k_norm.weight"] = (sizes.head,)
    if qkv_bias:
        shapes |= {f"self_attn.{name}.bias": (size,) for name, size in outs.items()}
    if o_bias:
        shapes["self_attn.o_proj.bias"] = (hidden,)
    if mlp_bias:
        shapes |= {"mlp.gate_proj.bias": (inner,), "mlp.up_proj.bias": (inner,), "mlp.down_proj.bias": (hidden,)}
    return {prefix + name: shape for name, shape in shapes.items()}


def decoder_model(architecture: str, config: Mapping[str, Any], sizes: Sizes) -> tuple[Shapes, Shapes] | None:
    """Return the required and the optional tensors of a whole model, None for a family that is not covered."""
    if architecture not in _FAMILIES:
        return None
    biases = _FAMILIES[architecture]
    shapes: Shapes = {"model.embed_tokens.weight": (sizes.vocab, sizes.hidden), "model.norm.weight": (sizes.hidden,)}
    attention_bias = bool(config.get("attention_bias"))
    for i in range(sizes.num_layers):
        shapes |= decoder_layer(
            f"model.layers.{i}.",
            sizes,
            qk_norm=biases.qk_norm,
            qkv_bias=attention_bias if biases.qkv is None else biases.qkv,
            o_bias=biases.o_follows and attention_bias,
            mlp_bias=biases.mlp_follows and bool(config.get("mlp_bias")),
        )
    head: Shapes = {"lm_head.weight": (sizes.vocab, sizes.hidden)}
    return (shapes, head) if config.get("tie_word_embeddings") else (shapes | head, {})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """Where a family departs from a Llama without biases."""

    qkv: bool | None = False
    """Whether q, k and v have biases; None: as config's `attention_bias` says."""
    o_follows: bool = False
    """Whether the output projection follows `attention_bias`."""
    mlp_follows: bool = False
    qk_norm: bool = False


_FAMILIES: Mapping[str, _Family] = {
    "LlamaForCausalLM": _Family(qkv=None, o_follows=True, mlp_follows=True),
    "MistralForCausalLM": _Family(),
    "Qwen2ForCausalLM": _Family(qkv=True),
    "MiMoForCausalLM": _Family(qkv=True),
    "Qwen3ForCausalLM": _Family(qkv=None, o_follows=True, qk_norm=True),
}
