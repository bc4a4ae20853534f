"""The tensors that a drafter's config requires, with their shapes, in vLLM's names.

Sources: vLLM 0.32 and 0.33, `model_executor/models/` llama_eagle, llama_eagle3, qwen3_eagle3, qwen3_dflash,
qwen3_dspark, medusa, mlp_speculator and mimo_mtp.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from draftwise.checkpoints.config_values import Dimensions, TargetSizes, get_int, get_mapping
from draftwise.checkpoints.recognize import RecognizedDrafter

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Complete dimensions."""

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
        """Return the sizes; None if one is missing or zero."""
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
        prefix: prefix of their names, such as `layers.0.`.
        num_in: input width of its attention; None for the hidden size.
        qk_norm: whether queries and keys are normalized, as in Qwen3.
        qkv_bias: whether the query, key and value projections have biases.
        o_bias: whether the output projection has a bias.
        mlp_bias: whether the three MLP projections have biases.
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
    """Return the required and the optional tensors of a whole model; None for a family that is not covered."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedTensors:
    """The tensors of a complete checkpoint."""

    required: Shapes
    optional: Shapes = field(default_factory=dict)
    """Used if present; otherwise the target's are shared."""
    ignored: re.Pattern[str] = re.compile(r"(?!)")
    """Names that vLLM skips."""
    silent: re.Pattern[str] = re.compile(r"")
    """Required names whose absence vLLM does not detect; it rejects the checkpoint if any other is missing."""
    refuses_unknown: bool = True
    rename: Callable[[str], str] = field(default=str)
    """Maps a name in the file to the one used here."""


def expect_tensors(drafter: RecognizedDrafter, target: TargetSizes | None = None) -> ExpectedTensors | None:
    """Return the tensors of a drafter; None if its architecture is not covered or its config lacks a size.

    Args:
        target: sizes of the target; None assumes the drafter's width and vocabulary.
    """
    expect = _LAYOUTS.get(drafter.traits.layout)
    return None if expect is None else expect(drafter, target)


def _sizes(drafter: RecognizedDrafter, *architectures: str) -> Sizes | None:
    if drafter.architecture not in architectures:
        return None
    return Sizes.from_dimensions(Dimensions.from_config(drafter.config))


def _expect_layer(drafter: RecognizedDrafter, _: TargetSizes | None) -> ExpectedTensors | None:
    sizes = _sizes(drafter, "LlamaForCausalLM", "EagleLlamaForCausalLM")
    if sizes is None:
        return None
    config, hidden = drafter.config, sizes.hidden
    biased = bool(config.get("attention_bias") or config.get("bias"))
    qkv_bias = bool(config.get("qkv_bias", biased))
    required: Shapes = {"fc.weight": (hidden, 2 * hidden)}
    for i in range(sizes.num_layers):
        required |= decoder_layer(
            f"layers.{i}.", sizes, input_norm=i > 0, qkv_bias=qkv_bias, o_bias=biased, mlp_bias=_mlp_bias(config)
        )
    return ExpectedTensors(required=required, optional={"embed_tokens.weight": (sizes.vocab, hidden)}, ignored=_ROTARY)


def _expect_fused_layer(drafter: RecognizedDrafter, target: TargetSizes | None) -> ExpectedTensors | None:
    llama = _sizes(drafter, *_EAGLE3_LLAMA)
    sizes = llama or _sizes(drafter, "Qwen3ForCausalLM", "Eagle3Qwen3ForCausalLM", "PeagleQwen3ForCausalLM")
    if sizes is None:
        return None
    config, hidden = drafter.config, sizes.hidden
    required: Shapes = {"norm.weight": (hidden,), "layers.0.hidden_norm.weight": (hidden,)}
    optional: Shapes = {f"layers.{i}.hidden_norm.weight": (hidden,) for i in range(1, sizes.num_layers)}
    biased = bool(config.get("attention_bias"))
    for i in range(sizes.num_layers):
        required |= decoder_layer(
            f"layers.{i}.",
            sizes,
            num_in=2 * hidden if i == 0 else hidden,
            qkv_bias=biased,
            qk_norm=llama is None,
            o_bias=llama is not None and bool(biased or config.get("bias")),
            mlp_bias=_mlp_bias(config),
        )
    own, vocabulary = _vocabulary(config, sizes, target)
    required |= own | _fusion(drafter, hidden)
    ignored = _T2D if drafter.parallel else _T2D_OR_MASK
    return ExpectedTensors(
        required=required, optional=optional | vocabulary, ignored=ignored, silent=_ALL_BUT_MASK, rename=_from_midlayer
    )


def _fusion(drafter: RecognizedDrafter, hidden: int) -> Shapes:
    """Return what joins the target's states."""
    config = drafter.config
    eagle_config = get_mapping(config, "eagle_config")
    if not eagle_config.get("use_aux_hidden_state", True):
        return {}
    named = 3 if drafter.aux_layers is None else len(drafter.aux_layers.ids)
    count = get_int(config, "num_aux_hidden_states") or named
    width = get_int(config, "target_hidden_size") or hidden
    shapes: Shapes = {"fc.weight": (hidden, count * width)}
    if eagle_config.get("norm_before_fc", config.get("norm_before_fc")):
        shapes["input_norm.weight"] = (count * width,)
    if config.get("fc_norm"):
        shapes |= {f"fc_norm.{i}.weight": (width,) for i in range(count)}
    if drafter.parallel:
        shapes["mask_hidden"] = (count * width,)
    return shapes


def _expect_block(drafter: RecognizedDrafter, target: TargetSizes | None) -> ExpectedTensors | None:
    sizes = _sizes(drafter, "DFlashDraftModel")
    return None if sizes is None else _expect_block_network(drafter, sizes, target)


def _expect_block_markov(drafter: RecognizedDrafter, target: TargetSizes | None) -> ExpectedTensors | None:
    sizes, rank = _sizes(drafter, "Qwen3DSparkModel", "Qwen3OmniDSparkModel"), get_int(drafter.config, "markov_rank")
    if sizes is None or rank is None:
        return None
    named = get_int(drafter.config, "draft_vocab_size") or sizes.vocab
    markov: Shapes = {
        "markov_head.markov_w1.weight": (sizes.vocab, rank),
        "markov_head.markov_w2.weight": (named, rank),
    }
    reads = sizes.hidden + (rank if drafter.config.get("confidence_head_with_markov") else 0)
    confidence: Shapes = {"confidence_head.proj.weight": (1, reads), "confidence_head.proj.bias": (1,)}
    block = _expect_block_network(drafter, sizes, target, may_exceed=True)
    optional = {**block.optional, **(confidence if drafter.config.get("enable_confidence_head") else {})}
    return ExpectedTensors(
        required={**block.required, **markov},
        optional=optional,
        ignored=_T2D_OR_CONFIDENCE,
        silent=_ALL_BUT_VOCABULARY,
        rename=_from_midlayer,
    )


def _expect_block_network(
    drafter: RecognizedDrafter, sizes: Sizes, target: TargetSizes | None, *, may_exceed: bool = False
) -> ExpectedTensors:
    """Return the tensors of DFlash's network, which dspark shares."""
    config, hidden = drafter.config, sizes.hidden
    width = get_int(config, "target_hidden_size") or hidden
    required: Shapes = {"norm.weight": (hidden,), "hidden_norm.weight": (hidden,)}
    count = len(drafter.aux_layers.ids) if drafter.aux_layers else sizes.num_layers
    required["fc.weight"] = (hidden, count * width)
    biased = bool(config.get("attention_bias"))
    for i in range(sizes.num_layers):
        required |= decoder_layer(f"layers.{i}.", sizes, qkv_bias=biased, o_bias=biased, qk_norm=True)
    own, vocabulary = _vocabulary(config, sizes, target, may_exceed=may_exceed)
    return ExpectedTensors(required=required | own, optional=vocabulary, ignored=_T2D, rename=_from_midlayer)


def _vocabulary(
    config: Mapping[str, Any], sizes: Sizes, target: TargetSizes | None, *, may_exceed: bool = False
) -> tuple[Shapes, Shapes]:
    """Return the required and the optional tensors that read and name tokens.

    A head that names fewer tokens than the target has needs a head and a map of its own; in any other the target's
    stand in for what is not there. A head that `may_exceed` the target's vocabulary, by padding, needs no map then.
    """
    named = get_int(config, "draft_vocab_size") or sizes.vocab
    embedding: Shapes = {"embed_tokens.weight": (sizes.vocab, sizes.hidden)}
    head: Shapes = {"lm_head.weight": (named, sizes.hidden)}
    vocab, width = (sizes.vocab, sizes.hidden) if target is None else (target.vocab_size, target.hidden_size)
    is_mapped = named < vocab if may_exceed else named != vocab
    d2t: Shapes = {"d2t": (named,)} if is_mapped else {}
    narrow = width != sizes.hidden
    required = {**(embedding if narrow else {}), **(head if narrow or d2t else {}), **d2t}
    return required, {name: shape for name, shape in (embedding | head).items() if name not in required}


def _expect_residual_heads(drafter: RecognizedDrafter, target: TargetSizes | None) -> ExpectedTensors | None:
    config = drafter.config
    hidden = get_int(config, "hidden_size") or (target.hidden_size if target else None)
    vocab = get_int(config, "vocab_size") or (target.vocab_size if target else None)
    heads = get_int(config, "num_heads", "medusa_num_heads")
    layers = get_int(config, "num_hidden_layers", "medusa_num_layers")
    if not (hidden and vocab and heads and layers) or heads * layers > _MOST_BLOCKS:
        return None
    required: Shapes = {}
    for i, j in ((i, j) for i in range(heads) for j in range(layers)):
        required[f"blocks.{i}.layers.{j}.weight"] = (hidden, hidden)
        if config.get("medusa_fc_bias"):
            required[f"blocks.{i}.layers.{j}.bias"] = (hidden,)
    own_heads = 1 if config.get("original_lm_head") else heads
    required |= {f"lm_heads.{i}.weight": (vocab, hidden) for i in range(own_heads)}
    return ExpectedTensors(required=required, silent=_LM_HEADS, refuses_unknown=False, rename=_from_old_medusa)


def _expect_recurrent_heads(drafter: RecognizedDrafter, _: TargetSizes | None) -> ExpectedTensors | None:
    config = drafter.config
    keys = ("emb_dim", "inner_dim", "vocab_size", "n_predict")
    width, inner, vocab, steps = (get_int(config, key) for key in keys)
    if not (width and vocab and steps) or inner is None or steps > _MOST_BLOCKS:
        return None
    inner = inner or width
    stages = 1 if config.get("tie_weights") else steps
    required: Shapes = {}
    for s in range(stages):
        required[f"emb.{s}.weight"] = required[f"head.{s}.weight"] = (vocab, inner)
        required[f"ln.{s}.weight"] = required[f"ln.{s}.bias"] = (inner,)
    for s in range(min(steps, 2) if config.get("tie_weights") else steps):
        required[f"proj.{s}.weight"] = (inner, width if s == 0 else inner)
    return ExpectedTensors(required=required, silent=_NONE, refuses_unknown=False, rename=_without_speculator)


def _expect_mimo(drafter: RecognizedDrafter, _: TargetSizes | None) -> ExpectedTensors | None:
    sizes, count = _sizes(drafter, "MiMoForCausalLM"), get_int(drafter.config, "num_nextn_predict_layers")
    if sizes is None or count is None or count > _MOST_BLOCKS:
        return None
    required: Shapes = {}
    for i in range(count):
        prefix = f"model.mtp_layers.{i}."
        required |= decoder_layer(prefix, sizes, qkv_bias=True)
        required |= {prefix + norm + ".weight": (sizes.hidden,) for norm in _MIMO_NORMS}
        required[prefix + "input_proj.weight"] = (sizes.hidden, 2 * sizes.hidden)
    return ExpectedTensors(required=required, silent=_NONE)


def _expect_decoder(drafter: RecognizedDrafter, _: TargetSizes | None) -> ExpectedTensors | None:
    sizes = Sizes.from_dimensions(Dimensions.from_config(drafter.config))
    shapes = None if sizes is None else decoder_model(drafter.architecture, drafter.config, sizes)
    if shapes is None:
        return None
    return ExpectedTensors(required=shapes[0], optional=shapes[1], ignored=_BESIDE_A_MODEL, silent=_NONE)


_MOST_BLOCKS = 1000
_MIMO_NORMS = ("token_layernorm", "hidden_layernorm", "final_layernorm")
_EAGLE3_LLAMA = (
    *("LlamaForCausalLM", "LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "PeagleLlamaForCausalLM"),
    *("PEagleDraftModel", "Eagle3MiniMaxM2ForCausalLM", "Eagle3Qwen2_5vlForCausalLM", "Eagle3Qwen3vlForCausalLM"),
)
"""Architectures that vLLM serves with its class Eagle3LlamaForCausalLM."""
_ROTARY = re.compile(r".*rotary(?:_pos)?_emb\.(?:inv_freq|cos_cached|sin_cached)$")
_T2D = re.compile(rf".*t2d|{_ROTARY.pattern}")
_T2D_OR_MASK = re.compile(rf".*mask_hidden|{_T2D.pattern}")
_T2D_OR_CONFIDENCE = re.compile(rf".*confidence_head|{_T2D.pattern}")
_BESIDE_A_MODEL = re.compile(rf".*\.bias$|model\.mtp_layers\..*|{_ROTARY.pattern}")
"""vLLM skips biases that a Llama or Qwen has no place for, which GPTQ checkpoints hold, and a model its MTP modules."""
_NONE = re.compile(r"(?!)")
_LM_HEADS = re.compile(r"lm_heads\.")
_ALL_BUT_MASK = re.compile(r"(?!mask_hidden)")
_ALL_BUT_VOCABULARY = re.compile(r"(?!d2t|lm_head|embed_tokens)")
_OLD_MEDUSA = re.compile(r"(\d+)\.(\d+)\.(linear\.)?(weight|bias)")


def _mlp_bias(config: Mapping[str, Any]) -> bool:
    return bool(config.get("mlp_bias"))


def _from_midlayer(name: str) -> str:
    return name.replace("midlayer.", "layers.0.")


def _without_speculator(name: str) -> str:
    return name.removeprefix("speculator.")


def _from_old_medusa(name: str) -> str:
    """Return the new name of a tensor in FasterDecoding's layout: `0.0.linear.weight`, `0.1.weight` for the head."""
    name = name.removeprefix("medusa_heads.")
    if match := _OLD_MEDUSA.fullmatch(name):
        head, layer, linear, kind = match.groups()
        return f"blocks.{head}.layers.{layer}.{kind}" if linear else f"lm_heads.{head}.{kind}"
    return "lm_heads.0.weight" if name == "lm_head.weight" else name


_LAYOUTS: Mapping[str, Callable[[RecognizedDrafter, TargetSizes | None], ExpectedTensors | None]] = {
    "decoder": _expect_decoder,
    "layer": _expect_layer,
    "fused_layer": _expect_fused_layer,
    "block": _expect_block,
    "block_markov": _expect_block_markov,
    "residual_heads": _expect_residual_heads,
    "recurrent_heads": _expect_recurrent_heads,
    "target_layers": _expect_mimo,
}
"""Key: the method's column `layout`."""
