"""Values of a drafter's config.json that its tensors must agree with: sizes, layers that it reads, mask token.

States are numbered as in EAGLE-3: 0 is the output of the embeddings, i the input of layer i, and L the output of the
last of L layers. Plain `target_layer_ids` of DFlash and DSpark number layers by their output: one less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_MOST = 2**31
_MOST_LAYERS = 10_000
"""Deeper models do not exist, and what a file says must not decide how long a check takes."""


def get_int(config: Mapping[str, Any], *keys: str) -> int | None:
    """Return the value of the first key that holds an integer of at least 0; None without one."""
    for key in keys:
        value = config.get(key)
        if type(value) is int and 0 <= value < _MOST:
            return value
    return None


def get_ints(config: Mapping[str, Any], *keys: str) -> tuple[int, ...] | None:
    """Return the value of the first key that holds a non-empty list of integers; None without one."""
    for key in keys:
        value = config.get(key)
        if isinstance(value, list) and 0 < len(value) <= _MOST_LAYERS and all(type(each) is int for each in value):
            return tuple(value)
    return None


def get_mapping(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the object under a key; empty if missing."""
    value = config.get(key)
    return value if isinstance(value, Mapping) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimensions:
    """Sizes of a decoder; None for each that its config does not state."""

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
        """Return the sizes of a plain config (of the language model, if there are several)."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSizes:
    """Sizes of the target that a head's tensors depend on."""

    hidden_size: int
    vocab_size: int
    num_layers: int

    @classmethod
    def from_dimensions(cls, of: Dimensions) -> TargetSizes | None:
        """Return the sizes; None if config.json lacks one."""
        if not (of.hidden_size and of.vocab_size and of.num_hidden_layers):
            return None
        return cls(hidden_size=of.hidden_size, vocab_size=of.vocab_size, num_layers=of.num_hidden_layers)


AUX_KEY = "eagle_aux_hidden_state_layer_ids"
TARGET_KEY = "dflash_config.target_layer_ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuxLayers:
    """The target's hidden states that a head reads."""

    ids: tuple[int, ...]
    """Layer ids in EAGLE-3's numbering, ascending and unique, as vLLM passes the states on."""
    key: str
    """Field for them in config.json."""
    is_stated: bool = True
    """False if the head names none, and these are vLLM's choice."""

    @classmethod
    def named(cls, ids: Iterable[int], key: str, *, is_stated: bool = True) -> AuxLayers:
        """Return the states of these ids, sorted and without duplicates."""
        return cls(ids=tuple(sorted(set(ids))), key=key, is_stated=is_stated)


def find_aux_layers(config: Mapping[str, Any]) -> AuxLayers | None:
    """Return the states that a plain config names; None if it names none."""
    ids = get_ints(config, AUX_KEY) or get_ints(get_mapping(config, "eagle_config"), AUX_KEY)
    if ids is not None:
        return AuxLayers.named(ids, AUX_KEY)
    below = get_ints(get_mapping(config, "dflash_config"), "target_layer_ids") or get_ints(config, "target_layer_ids")
    return None if below is None else AuxLayers.named((i + 1 for i in below), TARGET_KEY)


def usual_layers(num_layers: int) -> tuple[int, int, int]:
    """Return EAGLE-3's usual three layers: 2, L/2 and L - 3."""
    return 2, num_layers // 2, num_layers - 3


def default_layers(num_layers: int, key: str) -> AuxLayers:
    """Return the states that vLLM uses for a head that names none.

    Args:
        num_layers: number of the target's layers.
        key: field for them in such a head's config.
    """
    return AuxLayers.named(usual_layers(num_layers), key, is_stated=False)


MASK_KEYS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
"""Keys of the id in a plain config.json, in vLLM's order (v1/spec_decode/llm_base_proposer.py)."""


def find_mask_token(config: Mapping[str, Any]) -> int | None:
    """Return the id that a plain config.json names; None if it names none."""
    own = get_int(get_mapping(config, "dflash_config"), "mask_token_id")
    return get_int(config, *MASK_KEYS) if own is None else own
