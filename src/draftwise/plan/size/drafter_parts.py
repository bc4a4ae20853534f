"""Lists the weights and KV layers of a drafter or head, except those shared with its target."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from draftwise.checkpoints.config_values import find_aux_layers
from draftwise.checkpoints.headers import MTP_COUNTS
from draftwise.core import ModelShape
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.methods import Method, find_method, get_method
from draftwise.plan.size.decoder_parts import attention_parts, decoder_parts, mlp_parts, norm
from draftwise.plan.size.shapes import read_shape
from draftwise.plan.size.weight_parts import Part, Sharding

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """Weights and KV layers that a method adds to the target."""

    method: str = ""
    """The method that vLLM resolves; empty without speculation."""
    parts: tuple[Part, ...] = ()
    shape: ModelShape | None = None
    """Shape of the layers that keep keys and values; None without such layers."""
    config: Config = field(default_factory=dict)
    """Config that `shape` was read from."""
    num_aux_layers: int = 0
    """Number of hidden states of the target that it reads in addition to the last one."""
    typical: bool = False
    """Whether the layout is the method's usual one, because the drafter's config.json is not available."""
    notes: tuple[str, ...] = ()
    """Unknown parts of its memory."""

    @property
    def facts(self) -> Method:
        """Facts about the method; KeyError without speculation."""
        return get_method(self.method)


def describe_drafter(method: str, k: int, target: Config, config: Config | None) -> Drafter:
    """Return the weights and KV layers of a drafter.

    Args:
        method: method as vLLM resolves it.
        k: draft tokens per step.
        target: the target's text config.
        config: the drafter's config; None if only the method is known, or if it is in the target's checkpoint.

    Raises:
        InvalidSetup: the method, or the tensors of its drafters, are unknown.
    """
    facts = find_method(method)
    if facts is None:
        raise refusal("method-memory-unknown", case="method", method=method)
    if facts.drafts_from == "own_code":
        return Drafter(method=method, notes=("your own proposer class",))
    if not facts.has_weights:
        return Drafter(method=method)
    describe = _find_layout(facts)
    found = describe(target, _flat(config) if config is not None else None, k)
    return replace(found, method=method, typical=config is None and facts.weights != "target")


def _find_layout(method: Method) -> Callable[[Config, Config | None, int], Drafter]:
    if not method.layout:
        raise refusal("method-memory-unknown", name=method.name)
    known = _LAYOUTS.get(method.layout)
    return known if known is not None else method.load("layout")


def _flat(config: Config) -> Config:
    """Return a speculators config with the layer settings that it nests at the top."""
    inner = config.get("transformer_layer_config")
    return {**inner, **config} if isinstance(inner, Mapping) else config


def _describe_decoder(_target: Config, config: Config | None, _k: int) -> Drafter:
    if config is None:
        return Drafter(notes=("the layers of the draft model, whose config.json is not available",))
    shape = read_shape(config)
    return Drafter(parts=decoder_parts(config, shape), shape=shape, config=config)


def _describe_layer(target: Config, config: Config | None, _k: int) -> Drafter:
    """Return one Llama layer and `fc` over embedding and hidden state. Embedding and lm_head are the target's."""
    like = config or _head_of(target)
    shape = read_shape(like)
    layers = tuple(range(shape.num_layers))
    parts = (
        _fc(shape.hidden_size, 2 * shape.hidden_size),
        *attention_parts(like, shape, layers),
        *mlp_parts(like, shape, layers),
        norm("layernorms", 2 * shape.hidden_size, layers),
    )
    return Drafter(parts=parts, shape=shape, config=like)


def _describe_fused_layer(target: Config, config: Config | None, _k: int) -> Drafter:
    """Return a layer over twice the width, `fc` over the auxiliary states, and an lm_head over the draft vocabulary."""
    like = config or {**_head_of(target), "draft_vocab_size": min(32000, target["vocab_size"])}
    shape = read_shape(like)
    layers, width = tuple(range(shape.num_layers)), shape.hidden_size
    stated = find_aux_layers(like)
    num_aux_layers = len(stated.ids) if stated else 3  # the paper's
    vocab = like.get("draft_vocab_size") or shape.vocab_size
    parts = (
        _fc(width, num_aux_layers * (like.get("target_hidden_size") or target["hidden_size"])),
        *attention_parts(like, shape, layers[:1], inputs=2 * width),
        *attention_parts(like, shape, layers[1:]),
        *mlp_parts(like, shape, layers),
        norm("layernorms", 3 * width, layers),
        norm("norm", width),
        *_own_head(vocab, width),
        *_vocabulary_map(vocab, shape.vocab_size),
    )
    return Drafter(parts=parts, shape=shape, config=like, num_aux_layers=num_aux_layers)


def _describe_block(target: Config, config: Config | None, _k: int) -> Drafter:
    """Return Qwen3 layers and `fc` over the auxiliary hidden states. Embedding and lm_head are the target's."""
    like = config or {**_head_of(target), "num_hidden_layers": 5}
    shape = read_shape(like)
    layers, inner = tuple(range(shape.num_layers)), like.get("dflash_config") or {}
    ids = inner.get("target_layer_ids") or like.get("aux_hidden_state_layer_ids")
    num_aux_layers = len(ids) if isinstance(ids, list) and ids else 5
    width, vocab = shape.hidden_size, like.get("draft_vocab_size")
    parts = (
        _fc(width, num_aux_layers * target["hidden_size"]),
        *attention_parts({**like, "model_type": "qwen3"}, shape, layers),
        *mlp_parts(like, shape, layers),
        norm("layernorms", 2 * width, layers),
        norm("norm, hidden_norm", 2 * width),
        *(() if not vocab or vocab == shape.vocab_size else (*_own_head(vocab, width), *_vocabulary_map(vocab, vocab))),
    )
    return Drafter(parts=parts, shape=shape, config=like, num_aux_layers=num_aux_layers)


def _describe_block_markov(target: Config, config: Config | None, k: int) -> Drafter:
    """Return dflash's parts and the Markov head's two tables."""
    base = _describe_block(target, config, k)
    like = config or {}
    rank, vocab = like.get("markov_rank") or 256, like.get("draft_vocab_size") or target["vocab_size"]
    tables = (
        Part(
            name="markov_w1", role="head", rows=target["vocab_size"], cols=rank, split=Sharding.COPIED, quantized=False
        ),
        Part(name="markov_w2", role="head", rows=vocab, cols=rank, split=Sharding.COPIED, quantized=False),
    )
    return replace(base, parts=(*base.parts, *tables))


def _describe_residual_heads(target: Config, config: Config | None, k: int) -> Drafter:
    """Return one residual block and one lm_head for each token ahead."""
    like = config or {}
    width = like.get("hidden_size") or target["hidden_size"]
    heads = like.get("medusa_num_heads") or like.get("num_heads") or k
    layers = like.get("medusa_num_layers") or like.get("num_hidden_layers") or 1
    vocab = like.get("truncated_vocab_size") or like.get("vocab_size") or target["vocab_size"]
    blocks = Part(
        name="blocks", role="mlp", rows=width, cols=width, copies=heads * layers, split=Sharding.COPIED, quantized=False
    )
    copies = 1 if like.get("original_lm_head") else heads
    return Drafter(
        parts=(blocks, replace(blocks, name="blocks.bias", cols=1), replace(_own_head(vocab, width)[0], copies=copies))
    )


def _describe_recurrent_heads(target: Config, config: Config | None, k: int) -> Drafter:
    """Return embedding, projection, norm and lm_head of each token ahead. With `tie_weights` one set serves all."""
    like = config or {}
    vocab, width = like.get("vocab_size") or target["vocab_size"], like.get("emb_dim") or target["hidden_size"]
    inner, heads = like.get("inner_dim") or width, like.get("n_predict") or k
    copies = 1 if like.get("tie_weights") else heads
    table = Part(
        name="emb", role="embedding", rows=vocab, cols=inner, copies=copies, split=Sharding.VOCABULARY, quantized=False
    )
    projections = [Part(name="proj.0", role="mlp", rows=inner, cols=width, split=Sharding.COPIED, quantized=False)]
    if heads > 1:
        later = 1 if like.get("tie_weights") else heads - 1
        projections.append(replace(projections[0], name="proj", cols=inner, copies=later))
    norms = replace(norm("ln", 2 * inner), copies=copies)
    return Drafter(parts=(table, replace(table, name="head", role="head"), *projections, norms))


def _describe_target_layers(target: Config, _config: Config | None, _k: int) -> Drafter:
    """Return layers like the target's last, with norms and the projection of embedding and hidden state.

    They lie in the target's checkpoint; embedding and lm_head are the target's.
    """
    shape = read_shape(target)
    last, width = shape.num_layers - 1, shape.hidden_size
    count = next((target[key] for key in MTP_COUNTS if isinstance(target.get(key), int) and target[key] > 0), 1)
    like, layers = {**target, "mlp_only_layers": []}, tuple(range(count))
    block = (
        *attention_parts(like, shape, (last,)),
        *mlp_parts(like, shape, (last,)),
        norm("layernorms", 2 * width, (last,)),
        replace(_fc(width, 2 * width), layers=(last,)),
        norm("enorm, hnorm, norm", 3 * width, (last,)),
    )
    return Drafter(
        parts=tuple(replace(part, layers=layers) for part in block),
        config=like,
        shape=replace(shape, num_layers=count, windows=shape.windows[-1:] * count, stateful_layers=frozenset()),
    )


_LAYOUTS: Mapping[str, Callable[[Config, Config | None, int], Drafter]] = {
    "decoder": _describe_decoder,
    "layer": _describe_layer,
    "fused_layer": _describe_fused_layer,
    "block": _describe_block,
    "block_markov": _describe_block_markov,
    "residual_heads": _describe_residual_heads,
    "recurrent_heads": _describe_recurrent_heads,
    "target_layers": _describe_target_layers,
}
"""Key: the method's column `layout`."""


def _head_of(target: Config) -> dict[str, Any]:
    """Return the config of a one-layer Llama head of the target's width: the layout of most public heads."""
    shape = read_shape(target)
    return {
        "model_type": "llama",
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": 1,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads if not shape.latent_dim else shape.num_heads // 8 or 1,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.intermediate_size,
        "vocab_size": shape.vocab_size,
    }


def _fc(width: int, inputs: int) -> Part:
    return Part(name="fc", role="fc", rows=width, cols=inputs, split=Sharding.COPIED, quantized=False)


def _own_head(vocab: int, width: int) -> tuple[Part]:
    return (Part(name="lm_head", role="head", rows=vocab, cols=width, split=Sharding.VOCABULARY, quantized=False),)


def _vocabulary_map(draft: int, target: int) -> Iterator[Part]:
    """Yield `d2t`, one 8-byte id for each token of the draft vocabulary."""
    if draft != target:
        yield Part(name="d2t", role="other", rows=draft, split=Sharding.COPIED, quantized=False, stored_bits=64)
