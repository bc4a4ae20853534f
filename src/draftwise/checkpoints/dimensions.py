"""The numbers of a config.json that a checkpoint's tensors must agree with; what is no number is left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Dimensions", "get_int", "get_ints", "get_mapping"]

_MOST = 2**31
_MOST_LAYERS = 10_000
"""Deeper models do not exist, and what a file says must not decide how long a check takes."""


def get_int(config: Mapping[str, Any], *keys: str) -> int | None:
    """Return the first of some keys that holds an integer of at least 0, None if none does."""
    for key in keys:
        value = config.get(key)
        if type(value) is int and 0 <= value < _MOST:
            return value
    return None


def get_ints(config: Mapping[str, Any], *keys: str) -> tuple[int, ...] | None:
    """Return the first of some keys that holds a list of integers and is not empty, None if none does."""
    for key in keys:
        value = config.get(key)
        if isinstance(value, list) and 0 < len(value) <= _MOST_LAYERS and all(type(each) is int for each in value):
            return tuple(value)
    return None


def get_mapping(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the object under a key, an empty one if there is none."""
    value = config.get(key)
    return value if isinstance(value, Mapping) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimensions:
    """Sizes of a decoder, None for each that its config does not state."""

    hidden_size: int | None
    intermediate_size: int | None
    num_hidden_layers: int | None
    num_attention_heads: int | None
    num_key_value_heads: int | None
    head_dim: int | None
    vocab_size: int | None
    max_position_embeddings: int | None
    rope_theta: float | None

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Dimensions:
        """Return the sizes of a plain config (of the language model, where it is one of several)."""
        heads, hidden = get_int(config, "num_attention_heads"), get_int(config, "hidden_size")
        layers = get_int(config, "num_hidden_layers")
        rope = get_mapping(config, "rope_parameters") or get_mapping(config, "rope_scaling")
        theta = config.get("rope_theta", rope.get("rope_theta"))
        return cls(
            hidden_size=hidden,
            intermediate_size=get_int(config, "intermediate_size"),
            num_hidden_layers=layers if layers is not None and layers <= _MOST_LAYERS else None,
            num_attention_heads=heads,
            num_key_value_heads=get_int(config, "num_key_value_heads") or heads,
            head_dim=get_int(config, "head_dim") or (hidden // heads if hidden and heads else None),
            vocab_size=get_int(config, "vocab_size"),
            max_position_embeddings=get_int(config, "max_position_embeddings"),
            rope_theta=float(theta) if type(theta) in (int, float) and 0 < theta < _MOST**2 else None,
        )
