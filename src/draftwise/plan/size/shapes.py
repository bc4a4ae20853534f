"""The shape of a language model's config.json, whatever its keys are called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftwise.core import ModelShape

__all__ = ["read_shape", "read_text_config", "rotary_bytes"]

_OTHER_NAMES = {
    "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings", "n_inner": "intermediate_size",
}  # fmt: skip
"""GPT-2's keys."""


def read_text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the language model's settings: a multimodal config's text part, with the outer ones that it leaves out."""
    inner = config.get("text_config")
    text = {**config, **inner} if isinstance(inner, Mapping) else dict(config)
    text |= {new: text[old] for old, new in _OTHER_NAMES.items() if old in text and new not in text}
    if "intermediate_size" not in text and isinstance(text.get("hidden_size"), int):
        text["intermediate_size"] = text.get("moe_intermediate_size") or 4 * text["hidden_size"]
    return text


def read_shape(config: Mapping[str, Any], *, where: str = "config.json") -> ModelShape:
    """Return the shape of a text config; InvalidSetup where it lacks a dimension."""
    return ModelShape.from_hf_config(read_text_config(config), where=where)


def rotary_bytes(config: Mapping[str, Any], shape: ModelShape) -> int:
    """Return the bytes of the table of sines and cosines that vLLM keeps for every position, in 16 bit."""
    scaling = config.get("rope_scaling") or {}
    dim = config.get("qk_rope_head_dim") or shape.head_dim
    dim = int(dim * (config.get("partial_rotary_factor") or scaling.get("partial_rotary_factor") or 1))
    stretched = scaling.get("rope_type", scaling.get("type")) in ("yarn", "dynamic", "linear", "longrope")
    original = scaling.get("original_max_position_embeddings")
    positions = shape.max_position_embeddings
    if stretched and isinstance(original, int):
        positions = max(positions, int(original * (scaling.get("factor") or 1)))
    return 2 * positions * dim
