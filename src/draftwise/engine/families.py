"""The families of models that the engine runs, and where each departs from Llama; read before torch is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftwise.knowledge.messages import refusal

_GELU = "gelu_pytorch_tanh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Where a family departs from plain Llama; source: transformers' modeling file of that name."""

    architecture: str
    qkv_bias: bool | None = False
    """Biases of q, k and v; None: as config's `attention_bias` says, and o has one too."""
    mlp_bias_key: str | None = None
    qk_norm: bool = False
    """RMS norm over each head of q and k before the rotation."""
    window_switch: str | None = None
    """Config key that turns `sliding_window` on; None: the window counts whenever it is set."""
    window_period: int | None = None
    """The n of "every n-th layer attends to all tokens", for a config.json without `layer_types`."""
    has_experts: bool = False
    """Whether layers have a mixture of experts (`MixtureShape`)."""
    has_multipliers: bool = False
    """Whether config.json scales embeddings, residuals, attention scores and logits (`Multipliers`)."""
    is_gemma: bool = False
    """Whether norms have weights around 0 and are also over what a layer adds, the MLP's activation is GELU, and
    embeddings are scaled by the root of the hidden size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Multipliers:
    """Factors between the parts of a model; source: transformers' `modeling_granite.py`."""

    embedding: float = 1.0
    residual: float = 1.0
    """Factor on what each layer's attention and MLP add."""
    attention: float | None = None
    """Factor on attention scores; None: one over the root of the head dimension."""
    logits: float = 1.0

    @classmethod
    def from_hf_config(cls, config: Mapping[str, Any], family: Family) -> Multipliers:
        """Return the multipliers of a config.json: ones where the family has none."""
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


def get_family(config: Mapping[str, Any], *, where: str) -> Family:
    """Return the family of a target's config.json, by `architectures` or else by `model_type`.

    Raises:
        InvalidSetup: it is not one of the families, or its weights are quantized.
    """
    named = config.get("architectures") or []
    for model_type, family in FAMILIES.items():
        if family.architecture in named or (not named and config.get("model_type") == model_type):
            if config.get("quantization_config"):
                raise refusal("quantized", where=where)
            _check_gemma(config, family, where)
            return family
    raise refusal(
        "unsupported-architecture",
        case="target",
        named=", ".join(named) or config.get("model_type"),
        where=where,
        families=", ".join(family.architecture for family in FAMILIES.values()),
    )


def _check_gemma(config: Mapping[str, Any], family: Family, where: str) -> None:
    """Raise InvalidSetup where a config.json asks of Gemma's layers what later and earlier ones of them have."""
    if not family.is_gemma:
        return
    unknown = [
        *(key for key in ("attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention")
          if config.get(key)),
        *(["hidden_activation"] if config.get("hidden_activation", _GELU) != _GELU else []),
    ]  # fmt: skip
    if unknown:
        raise refusal(
            "unsupported-architecture",
            case="gemma",
            architecture=family.architecture,
            key=unknown[0],
            value=config[unknown[0]],
            where=where,
        )
