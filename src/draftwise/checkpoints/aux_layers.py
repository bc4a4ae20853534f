"""Which hidden states of the target a head reads: vLLM's auxiliary hidden states.

States are numbered as EAGLE-3 does: 0 is what the embeddings give, i what enters layer i, L what leaves the last of L
layers. Plain `target_layer_ids` of DFlash and DSpark name a layer by what leaves it: one less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from draftwise.checkpoints.dimensions import get_ints, get_mapping

__all__ = ["AUX_KEY", "TARGET_KEY", "AuxLayers", "default_layers", "find_aux_layers", "usual_layers"]

AUX_KEY = "eagle_aux_hidden_state_layer_ids"
TARGET_KEY = "dflash_config.target_layer_ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuxLayers:
    """The states that a head reads."""

    ids: tuple[int, ...]
    """In EAGLE-3's numbering, ascending and once each, as vLLM hands the states over."""
    key: str
    """Field that names them, or would."""
    is_stated: bool = True
    """False: the head names none, and these are vLLM's choice."""

    @classmethod
    def named(cls, ids: Iterable[int], key: str, *, is_stated: bool = True) -> AuxLayers:
        """Return those of these ids, in whatever order and however often they are given."""
        return cls(ids=tuple(sorted(set(ids))), key=key, is_stated=is_stated)


def find_aux_layers(config: Mapping[str, Any]) -> AuxLayers | None:
    """Return the states that a plain config names, None if it names none."""
    ids = get_ints(config, AUX_KEY) or get_ints(get_mapping(config, "eagle_config"), AUX_KEY)
    if ids is not None:
        return AuxLayers.named(ids, AUX_KEY)
    below = get_ints(get_mapping(config, "dflash_config"), "target_layer_ids") or get_ints(config, "target_layer_ids")
    return None if below is None else AuxLayers.named((i + 1 for i in below), TARGET_KEY)


def usual_layers(num_layers: int) -> tuple[int, int, int]:
    """Return EAGLE-3's usual three: 2, L/2 and L - 3."""
    return 2, num_layers // 2, num_layers - 3


def default_layers(num_layers: int, key: str) -> AuxLayers:
    """Return what vLLM takes for a head that names no states.

    Args:
        num_layers: L of the target.
        key: the field in which such a head would name them.
    """
    return AuxLayers.named(usual_layers(num_layers), key, is_stated=False)
