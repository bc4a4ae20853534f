"""Model types of the transformers library, and the defaults of their config classes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from draftwise.knowledge.stored import read_data


def find_model_type(name: str) -> Mapping[str, Any] | None:
    """Return the row of a model type; None for one that the library does not have.

    A row may hold `vocab_size`, `max_position_embeddings`, `num_attention_heads`, `chunk_size` and `rope_parameters`
    (values that a config.json may leave out), `rename` (names that draftwise reads -> the type's own spelling, such as
    GPT-2's `n_head`) and `model_class` (the architecture that stands for a config without `architectures`).
    """
    row: Mapping[str, Any] | None = read_data("transformers")["types"].get(name)
    return row


def fill_in(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a config with what its transformers class adds: defaults, and the common name of renamed attributes."""
    known = find_model_type(str(config.get("model_type") or ""))
    if known is None:
        return config
    names = ("vocab_size", "max_position_embeddings", "num_attention_heads", "rope_parameters")
    defaults = {name: known[name] for name in names if name in known}
    if config.get("rope_scaling"):
        defaults.pop("rope_parameters", None)
    return {**defaults, **rename(config)}


def rename(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a config with the common names of what its type spells in its own way."""
    known = find_model_type(str(config.get("model_type") or "")) or {}
    return {**{name: config[own] for name, own in known.get("rename", {}).items() if own in config}, **config}


def is_buildable(architecture: str, *, by_attention: bool) -> bool:
    """Return whether vLLM's Transformers backend can build a class that vLLM itself does not have.

    Args:
        architecture: name of the class.
        by_attention: whether the backend also takes classes that can merely set their attention implementation.
    """
    return architecture in _names("buildable") or (by_attention and architecture in _names("own_attention"))


@cache
def _names(part: str) -> frozenset[str]:
    return frozenset(read_data("transformers")[part])
