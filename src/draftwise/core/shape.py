"""The numbers of a decoder-only model that memory and speed depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftwise.core.finding import InvalidSetup

__all__ = ["ModelShape"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Dimensions read from a Hugging Face config.json."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool = False

    @classmethod
    def from_hf_config(cls, config: Mapping[str, Any], *, where: str = "config.json") -> ModelShape:
        """Return the shape that a config.json describes.

        Raises:
            InvalidSetup: a dimension is missing; all missing ones are named at once.
        """
        needed = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
        missing = [key for key in needed if not isinstance(config.get(key), int)]
        if missing:
            raise InvalidSetup.because(
                "config-incomplete",
                f"lacks {', '.join(missing)}.",
                where=where,
                fix="Give the directory of a Hugging Face checkpoint of a decoder-only language model.",
            )
        heads = config["num_attention_heads"]
        return cls(
            hidden_size=config["hidden_size"],
            num_layers=config["num_hidden_layers"],
            num_heads=heads,
            num_kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            intermediate_size=config["intermediate_size"],
            vocab_size=config["vocab_size"],
            max_position_embeddings=config.get("max_position_embeddings") or 2048,
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        )

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Return the bytes of keys and values of all layers for one token: the only KV formula."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * bytes_per_value
