"""Which hidden states of the target a drafter reads, and which token is its mask."""

from __future__ import annotations

import math
from dataclasses import replace

from draftwise.checkpoints.config_values import AuxLayers, usual_layers
from draftwise.checkpoints.head_faults import find_layers_fault, find_mask_fault
from draftwise.core import InvalidSetup
from draftwise.training.target import Target

__all__ = ["check_aux_layers", "choose_mask_token", "even_aux_layers", "usual_aux_layers"]

_MASK_OPTION = "mask_token_id"


def usual_aux_layers(num_layers: int) -> tuple[int, ...]:
    """Return EAGLE-3's 2, L / 2 and L - 3, or what takes their place in a target that is too shallow for these."""
    usual = usual_layers(num_layers)
    return usual if 2 < usual[1] < usual[2] else (1, max(num_layers // 2, 1), num_layers)


def even_aux_layers(num_layers: int) -> tuple[int, ...]:
    """Return DFlash's five layers, evenly from the second to the third from the end."""
    first = min(2, num_layers)
    last = max(num_layers - 2, first)
    return tuple(first + math.floor(i * (last - first) / 4 + 0.5) for i in range(5))


def check_aux_layers(wanted: tuple[int, ...], target: Target) -> tuple[int, ...]:
    """Return the layers in ascending order without doubles, as vLLM hands their states over.

    Args:
        wanted: numbered as `Proposer.aux_layers`, up to the target's L layers.
        target: whose states they are.

    Raises:
        InvalidSetup: the target has no such state.
    """
    layers = AuxLayers.named(wanted, key="target_layers")
    if fault := find_layers_fault(layers, target.num_layers, where="target_layers"):
        raise InvalidSetup(replace(fault, fix=f"Name layers up to {target.num_layers}."))
    return layers.ids


def choose_mask_token(wanted: int, target: Target) -> int:
    """Return the mask token, which marks positions to draft.

    Args:
        wanted: -1: the target's padding token, or its last token if it has none.
        target: whose vocabulary it is from.

    Raises:
        InvalidSetup: there is no such token.
    """
    if wanted >= 0 and (fault := find_mask_fault(wanted, target.vocab_size, key=_MASK_OPTION, where=_MASK_OPTION)):
        raise InvalidSetup(replace(fault, fix="Name one that texts do not contain."))
    padding = target.config.get("pad_token_id")
    return wanted if wanted >= 0 else int(padding) if padding is not None else target.vocab_size - 1
