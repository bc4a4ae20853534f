"""What a drafter's decoder layers have in common with the target, and their part of config.json."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from draftwise.core import InvalidSetup, ModelShape
from draftwise.engine.models.rope import Rope

if TYPE_CHECKING:
    from draftwise.training.target import Target

__all__ = ["Blueprint"]

_CARRIED = ("bos_token_id", "eos_token_id", "pad_token_id", "rope_parameters", "rope_scaling", "rope_theta")
"""Keys of the target's config.json that its drafters share."""


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
        cls, target: Target, *, num_layers: int, intermediate_size: int = 0, num_key_value_heads: int = 0
    ) -> Blueprint:
        """Return the blueprint of a drafter.

        Args:
            target: what it drafts for.
            num_layers: decoder layers.
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
