"""The numbers of a decoder-only model that memory and speed depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftwise.core.finding import InvalidSetup

__all__ = ["KVLayer", "ModelShape", "read_layer_kinds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayer:
    """What one decoder layer keeps of every token."""

    values: int
    """Values a token: keys and values of all heads, or the latent that multi-head latent attention keeps instead."""
    num_heads: int
    """Heads that can be divided among GPUs; 1 for a latent, of which every GPU keeps its own copy."""
    window: int | None = None
    """Tokens that stay visible under sliding-window attention; None for all of them."""

    def values_per_rank(self, tensor_parallel_size: int = 1) -> int:
        """Return the values that one GPU keeps: with fewer heads than GPUs, heads are kept several times."""
        heads = max(1, self.num_heads // tensor_parallel_size)
        return self.values // self.num_heads * heads


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
    latent_dim: int = 0
    """Values a token and layer under multi-head latent attention: `kv_lora_rank` + `qk_rope_head_dim`; 0 without it."""
    windows: tuple[int | None, ...] = ()
    """Sliding window of each layer, None for a layer that sees all; empty where every layer does."""
    stateful_layers: frozenset[int] = frozenset()
    """Layers that keep a state of fixed size per sequence instead of keys and values (linear attention, Mamba), or
    nothing (feed-forward layers of their own)."""

    @classmethod
    def from_hf_config(cls, config: Mapping[str, Any], *, where: str = "config.json") -> ModelShape:
        """Return the shape that a config.json describes.

        Raises:
            InvalidSetup: a dimension is missing; all missing ones are named at once.
        """
        needed = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
        missing = [key for key in needed if not _is_positive(config.get(key))]
        if not missing and config["num_hidden_layers"] > _MOST_LAYERS:
            missing = ["a believable num_hidden_layers"]
        if missing:
            raise InvalidSetup.because(
                "config-incomplete",
                f"{where} lacks {', '.join(missing)}.",
                where=where,
                fix="Give the directory of a Hugging Face checkpoint of a decoder-only language model.",
            )
        heads = config["num_attention_heads"]
        kinds = read_layer_kinds(config)
        window = config.get("sliding_window")
        latent = config.get("kv_lora_rank") or 0
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
            latent_dim=latent + (config.get("qk_rope_head_dim") or 0) if latent else 0,
            windows=tuple(window if kind == _SLIDING else None for kind in kinds) if _SLIDING in kinds else (),
            stateful_layers=frozenset(i for i, kind in enumerate(kinds) if kind != _SLIDING and kind not in _SEES_ALL),
        )

    def kv_layers(self) -> tuple[KVLayer, ...]:
        """Return what each layer keeps of a token, layers with a state left out: the only KV formula."""
        values, heads = (
            (self.latent_dim, 1) if self.latent_dim else (2 * self.num_kv_heads * self.head_dim, self.num_kv_heads)
        )
        return tuple(
            KVLayer(values=values, num_heads=heads, window=self.windows[layer] if self.windows else None)
            for layer in range(self.num_layers)
            if layer not in self.stateful_layers
        )

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Return the bytes of keys and values of all layers for one token, all heads together."""
        return sum(layer.values for layer in self.kv_layers()) * bytes_per_value


_MOST_LAYERS = 10_000
_LARGEST = 1 << 40
"""No dimension of a model comes near it; larger numbers are damaged files."""


def _is_positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < _LARGEST


_FULL, _SLIDING = "full_attention", "sliding_attention"
_SEES_ALL = frozenset({_FULL, "attention", "chunked_attention"})
"""Chunked attention is kept like full attention: vLLM turns its hybrid allocator off for it."""
_EVERY_OTHER = frozenset({"gemma2", "gpt_oss"})
"""Model types whose layers 0, 2, 4 ... slide where config.json names no `layer_types`."""
_SIXTH_FULL = frozenset({"gemma3", "gemma3_text"})
"""Model types of which every sixth layer sees all."""
_FOURTH_FULL = frozenset({"qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"})
"""Model types of which every fourth layer has attention, the others a state."""
_OPT_IN = ("qwen", "mimo")
"""Families whose `sliding_window` counts only with `use_sliding_window`."""


_PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""Letters of Nemotron-H's `hybrid_override_pattern`: each layer is one of them alone."""


def read_layer_kinds(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return each layer's kind by its name in `layer_types`; empty where all layers see all tokens."""
    count, model_type = config["num_hidden_layers"], str(config.get("model_type") or "")
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str) and len(pattern) == count and set(pattern) <= set(_PATTERN):
        return tuple(_PATTERN[letter] for letter in pattern)
    if isinstance(given := config.get("layer_types"), list | tuple) and len(given) >= count:
        return tuple(str(kind) for kind in given[:count])
    if model_type in _FOURTH_FULL:
        step = config.get("full_attention_interval") or 4
        return tuple(_FULL if (layer + 1) % step == 0 else "linear_attention" for layer in range(count))
    if not config.get("sliding_window"):
        return ()
    if model_type in _SIXTH_FULL:
        step = config.get("sliding_window_pattern") or 6
        return tuple(_FULL if (layer + 1) % step == 0 else _SLIDING for layer in range(count))
    if model_type in _EVERY_OTHER:
        return tuple(_SLIDING if layer % 2 == 0 else _FULL for layer in range(count))
    if not config.get("use_sliding_window", not model_type.startswith(_OPT_IN)):
        return ()
    first = config.get("max_window_layers") or 0 if model_type.startswith(_OPT_IN) else 0
    return tuple(_FULL if layer < first else _SLIDING for layer in range(count))
