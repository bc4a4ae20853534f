"""The model families that the engine runs, and how each differs from Llama. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftwise.checkpoints.text_files import quote
from draftwise.knowledge.messages import refusal

_GELU = "gelu_pytorch_tanh"
_OF_OTHER_GEMMAS = ("attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How a family differs from plain Llama. Source: transformers' modeling file of that name."""

    architecture: str
    qkv_bias: bool | None = False
    """Whether q, k and v have biases. None: as `attention_bias` in the config says, and o has one, too."""
    mlp_bias_key: str | None = None
    qk_norm: bool = False
    """Whether each head of q and k gets an RMS norm before the rotation."""
    window_switch: str | None = None
    """Config key that enables `sliding_window`. None: the window applies whenever it is set."""
    window_period: int | None = None
    """Period of layers that attend to all tokens, for a config.json without `layer_types`."""
    has_experts: bool = False
    """Whether layers have a mixture of experts (`MixtureShape`)."""
    has_multipliers: bool = False
    """Whether config.json scales embeddings, residuals, attention scores and logits (`Multipliers`)."""
    is_gemma: bool = False
    """Whether norm weights are centered at 0 and norms also cover each layer's output, the MLP uses GELU, and
    embeddings are scaled by the root of the hidden size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Multipliers:
    """Factors between parts of a model. Source: transformers' `modeling_granite.py`."""

    embedding: float = 1.0
    residual: float = 1.0
    """Factor on the output of each attention and MLP."""
    attention: float | None = None
    """Factor on attention scores. None: 1 / sqrt(head dimension)."""
    logits: float = 1.0

    @classmethod
    def from_hf_config(cls, config: Mapping[str, Any], family: Family) -> Multipliers:
        """Return the multipliers of a config.json; all 1 if the family has none."""
        if family.is_gemma:
            return cls(
                embedding=float(config["hidden_size"]) ** 0.5,
                attention=float(config.get("query_pre_attn_scalar") or 256) ** -0.5,
            )
        if not family.has_multipliers:
            return cls()
        return cls(
            embedding=float(config.get("embedding_multiplier") or 1.0),
            residual=float(config.get("residual_multiplier") or 1.0),
            attention=float(config.get("attention_multiplier") or 1.0),
            logits=1.0 / float(config.get("logits_scaling") or 1.0),
        )


FAMILIES: dict[str, Family] = {
    "llama": Family(architecture="LlamaForCausalLM", qkv_bias=None, mlp_bias_key="mlp_bias"),
    "granite": Family(architecture="GraniteForCausalLM", qkv_bias=None, mlp_bias_key="mlp_bias", has_multipliers=True),
    "gemma3_text": Family(architecture="Gemma3ForCausalLM", qk_norm=True, is_gemma=True, window_period=6),
    "mistral": Family(architecture="MistralForCausalLM"),
    "qwen2": Family(architecture="Qwen2ForCausalLM", qkv_bias=True, window_switch="use_sliding_window"),
    "mimo": Family(architecture="MiMoForCausalLM", qkv_bias=True, window_switch="use_sliding_window"),
    "qwen3": Family(architecture="Qwen3ForCausalLM", qkv_bias=None, qk_norm=True, window_switch="use_sliding_window"),
    "qwen3_moe": Family(
        architecture="Qwen3MoeForCausalLM",
        qkv_bias=None,
        qk_norm=True,
        window_switch="use_sliding_window",
        has_experts=True,
    ),
}


def names_quantization(config: Mapping[str, Any]) -> bool:
    """Return whether a config.json says that its weights are quantized."""
    return bool(config.get("quantization_config") or config.get("compression_config"))


def get_family(config: Mapping[str, Any], *, where: str) -> Family:
    """Return the family of a target's config.json, by `architectures` or else by `model_type`.

    Raises:
        InvalidSetup: the family is unknown, the weights are quantized, or layers are of another kind.
    """
    named = config.get("architectures") or []
    for model_type, family in FAMILIES.items():
        if family.architecture in named or (not named and config.get("model_type") == model_type):
            if names_quantization(config):
                raise refusal("quantized", where=where)
            check_layers(config, family, where=where)
            return family
    raise refusal(
        "unsupported-architecture",
        case="target",
        named=", ".join(named) or config.get("model_type"),
        where=where,
        families=", ".join(family.architecture for family in FAMILIES.values()),
    )


def check_layers(config: Mapping[str, Any], family: Family, *, where: str) -> None:
    """Raise InvalidSetup where a config.json asks for layers that the engine does not have."""
    key, known = ("hidden_activation", (_GELU,)) if family.is_gemma else ("hidden_act", ("silu", "swish"))
    unknown = [name for name in _OF_OTHER_GEMMAS if family.is_gemma and config.get(name)]
    unknown += [key] if config.get(key, known[0]) not in known else []
    if unknown:
        raise refusal(
            "unsupported-architecture",
            case="layers",
            architecture=family.architecture,
            key=unknown[0],
            value=quote(config[unknown[0]]),
            where=where,
        )
