"""The shape of a language model from its config.json, for all spellings of its keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftwise.core import ModelShape
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.model_types import read_config_keys, rename, with_positions

_MOST = 10**8
"""Number above which a file is taken as damaged, for keys without a limit of their own."""


def read_text_config(config: Mapping[str, Any], *, where: str = "config.json") -> dict[str, Any]:
    """Return the language model's config: a multimodal config's text part, completed from the outer level.

    Raises:
        InvalidSetup: values have wrong types; the error lists all of them.
    """
    inner = config.get("text_config")
    text = with_positions(rename({**config, **inner} if isinstance(inner, Mapping) else config))
    keys = read_config_keys()
    text |= {new: text[old] for old, new in keys["other_names"].items() if old in text and new not in text}
    faults = [
        *_find_odd(text),
        *_find_missing(text),
        *(f"{key}.{name}" for key in keys["objects"] for name in _find_odd(text.get(key))),
    ]
    if faults:
        raise refusal("config-odd", case="values", where=where, names=", ".join(faults[:8]))
    text["model_type"] = text["model_type"] if isinstance(text.get("model_type"), str) else ""
    if not text.get("intermediate_size") and isinstance(text.get("hidden_size"), int):
        text["intermediate_size"] = text.get("moe_intermediate_size") or 4 * text["hidden_size"]
    return text


def _find_odd(config: object) -> list[str]:
    """Return the keys of an object whose values have the wrong kind. Null stands for an absent key."""
    if not isinstance(config, Mapping):
        return []
    keys = read_config_keys()
    limits = dict.fromkeys(keys["numbers"], _MOST) | keys["limits"]
    odd = [key for key, most in limits.items() if not _is_count(config.get(key), most)]
    odd += [key for key in keys["objects"] if not isinstance(config.get(key, {}), Mapping | None)]
    return odd + [key for key in keys["lists"] if not isinstance(config.get(key, []), list | tuple | None)]


def _find_missing(text: Mapping[str, Any]) -> list[str]:
    """Return what multi-head latent attention and its indexer need besides the key that turns them on."""
    needed = ["qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"] if text.get("kv_lora_rank") else []
    if text.get("index_n_heads"):
        needed.append("index_head_dim")
    return [key for key in needed if not text.get(key)]


def _is_count(value: object, most: int) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most)


def read_shape(config: Mapping[str, Any], *, where: str = "config.json") -> ModelShape:
    """Return the shape of a text config; raises InvalidSetup if it lacks a dimension."""
    shape = ModelShape.from_hf_config(read_text_config(config, where=where), where=where)
    if shape.head_dim < 1:
        raise refusal("config-odd", case="heads", where=where, num_heads=shape.num_heads, hidden_size=shape.hidden_size)
    return shape


def rotary_bytes(config: Mapping[str, Any], shape: ModelShape) -> int:
    """Return the bytes of vLLM's table of sines and cosines for all positions, in 16 bits."""
    scaling = config.get("rope_scaling") or {}
    dim = config.get("qk_rope_head_dim") or shape.head_dim
    dim = int(dim * _number(config.get("partial_rotary_factor") or scaling.get("partial_rotary_factor")))
    stretched = scaling.get("rope_type", scaling.get("type")) in ("yarn", "dynamic", "linear", "longrope")
    original = scaling.get("original_max_position_embeddings")
    positions = shape.max_position_embeddings
    if stretched and original:
        positions = max(positions, int(original * _number(scaling.get("factor"))))
    return 2 * positions * dim


def _number(value: object) -> float:
    """Return the factor, or 1 if it is not positive."""
    return float(value) if isinstance(value, int | float) and 0 < value < 1e6 else 1.0
