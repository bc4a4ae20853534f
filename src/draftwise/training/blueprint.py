"""Derives a drafter from its target: dimensions, rotations, the states that it reads, its mask token."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from draftwise.checkpoints.config_values import AuxLayers, usual_layers
from draftwise.checkpoints.head_faults import find_layers_fault, find_mask_fault
from draftwise.core import InvalidSetup, ModelShape
from draftwise.engine.models.rope import Rope
from draftwise.training.frozen_target import FrozenTarget

if TYPE_CHECKING:
    from draftwise.training.frozen_target import FrozenTarget

_CARRIED = ("bos_token_id", "eos_token_id", "pad_token_id", "rope_parameters", "rope_scaling", "rope_theta")
"""Keys of the target's config.json that its drafters share."""
_MASK_OPTION = "mask_token_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """Dimensions, rotations and epsilon of a drafter's layers: the target's, but for depth, MLP and key-value heads."""

    shape: ModelShape
    eps: float
    rope: Rope
    dtype: torch.dtype
    """The target's, in which the drafter is stored."""
    carried: dict[str, Any]
    """Entries of the target's config.json that its drafters repeat."""

    @classmethod
    def for_target(
        cls, target: FrozenTarget, *, num_layers: int, intermediate_size: int = 0, num_key_value_heads: int = 0
    ) -> Blueprint:
        """Return the blueprint of a drafter.

        Args:
            intermediate_size: width of their MLP; 0: the target's.
            num_key_value_heads: of their attention; 0: the target's.

        Raises:
            InvalidSetup: the target's config.json lacks a dimension, or has rotations of an unknown kind; or its
                attention heads cannot share that many key-value heads.
        """
        config, where = target.config, str(target.path / "config.json")
        shape = ModelShape.from_hf_config(config, where=where)
        rope = Rope.from_hf_config(config, shape, where=where)
        kv_heads = num_key_value_heads or shape.num_kv_heads
        if shape.num_heads % kv_heads:
            raise InvalidSetup.because(
                "bad-option",
                f"num_key_value_heads is {kv_heads}, which does not divide the target's {shape.num_heads} heads.",
                where="num_key_value_heads",
                fix=f"Use a divisor of {shape.num_heads}.",
            )
        carried = {key: config[key] for key in _CARRIED if config.get(key) is not None}
        if "rope_parameters" not in carried:
            carried.setdefault("rope_theta", 10000.0)
        return cls(
            shape=dataclasses.replace(
                shape,
                num_layers=num_layers,
                num_kv_heads=kv_heads,
                intermediate_size=intermediate_size or shape.intermediate_size,
            ),
            eps=float(config.get("rms_norm_eps") or 1e-6),
            rope=dataclasses.replace(rope, frequencies_D=rope.frequencies_D.to(target.device)),
            dtype=target.dtype,
            carried=carried,
        )

    def config(self, *, architecture: str, model_type: str) -> dict[str, Any]:
        """Return the layers' part of config.json, without relying on defaults, which differ between libraries."""
        shape = self.shape
        return {
            "architectures": [architecture],
            "model_type": model_type,
            "dtype": str(self.dtype).removeprefix("torch."),
            "hidden_size": shape.hidden_size,
            "intermediate_size": shape.intermediate_size,
            "num_hidden_layers": shape.num_layers,
            "num_attention_heads": shape.num_heads,
            "num_key_value_heads": shape.num_kv_heads,
            "head_dim": shape.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": self.eps,
            "attention_bias": False,
            "mlp_bias": False,
            "vocab_size": shape.vocab_size,
            "max_position_embeddings": shape.max_position_embeddings,
            "tie_word_embeddings": False,
            **self.carried,
        }


def usual_aux_layers(num_layers: int) -> tuple[int, ...]:
    """Return EAGLE-3's 2, L / 2 and L - 3, or what takes their place in a target that is too shallow for these."""
    usual = usual_layers(num_layers)
    return usual if 2 < usual[1] < usual[2] else (1, max(num_layers // 2, 1), num_layers)


def even_aux_layers(num_layers: int) -> tuple[int, ...]:
    """Return DFlash's five layers, evenly from the second to the third from the end."""
    first = min(2, num_layers)
    last = max(num_layers - 2, first)
    return tuple(first + math.floor(i * (last - first) / 4 + 0.5) for i in range(5))


def check_aux_layers(wanted: tuple[int, ...], target: FrozenTarget) -> tuple[int, ...]:
    """Return the layers in ascending order without doubles, as vLLM hands their states over.

    Args:
        wanted: numbered as `Proposer.aux_layers`, up to the target's L layers.

    Raises:
        InvalidSetup: the target has no such state.
    """
    layers = AuxLayers.named(wanted, key="target_layers")
    if fault := find_layers_fault(layers, target.num_layers, where="target_layers"):
        raise InvalidSetup(replace(fault, fix=f"Name layers up to {target.num_layers}."))
    return layers.ids


def choose_mask_token(wanted: int, target: FrozenTarget) -> int:
    """Return the mask token, which marks positions to draft.

    Args:
        wanted: -1: the target's padding token, or its last token if it has none.

    Raises:
        InvalidSetup: there is no such token.
    """
    if wanted >= 0 and (fault := find_mask_fault(wanted, target.vocab_size, key=_MASK_OPTION, where=_MASK_OPTION)):
        raise InvalidSetup(replace(fault, fix="Name a token that texts do not contain."))
    padding = target.config.get("pad_token_id")
    return wanted if wanted >= 0 else int(padding) if padding is not None else target.vocab_size - 1
