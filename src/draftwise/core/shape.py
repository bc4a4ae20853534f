"""The dimensions of a decoder-only model that memory and speed depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftwise.core.finding import InvalidSetup
from draftwise.core.layer_kinds import (
    CHUNKED,
    KEEPS_STATE,
    KEEPS_TOKENS,
    SLIDING,
    STATE_ALONE,
    TIED_UNSAID,
    is_positive,
    positive_of,
    read_kv_heads,
    read_layer_heads,
    read_layer_kinds,
    read_window,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayer:
    """What one decoder layer keeps for every token."""

    values: int
    """Values per token: keys and values of all heads, or the latent of multi-head latent attention."""
    num_heads: int
    """Heads that can be divided among GPUs; 1 for a latent, which every GPU keeps in full."""
    window: int | None = None
    """Tokens that stay visible under sliding-window attention; None for all."""
    chunked: bool = False
    """Whether `window` is a chunk of the sequence instead."""
    latent: bool = False
    """Whether the values are a latent."""

    def values_per_rank(self, tensor_parallel_size: int = 1) -> int:
        """Return the values per token on one GPU; with fewer heads than GPUs, heads are duplicated."""
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
    """Values per token and layer under multi-head latent attention: `kv_lora_rank` + `qk_rope_head_dim`; else 0."""
    windows: tuple[int | None, ...] = ()
    """Sliding window of each layer in tokens, None for a layer without one; empty if no layer has one."""
    stateful_layers: frozenset[int] = frozenset()
    """Layers without keys and values: those with a state of fixed size per sequence instead (linear attention, Mamba),
    and separate feed-forward layers."""
    layer_heads: tuple[tuple[int, int], ...] = ()
    """(key-value heads, numbers in a key and a value) of each layer; empty if all layers are alike."""
    shared_layers: int = 0
    """Number of last layers that keep none and read the keys and values of earlier layers."""
    chunked_layers: frozenset[int] = frozenset()
    """Layers whose window is a chunk of the sequence."""
    state_layers: frozenset[int] = frozenset()
    """Layers with a state of fixed size per sequence; some also keep keys and values."""

    @classmethod
    def from_hf_config(cls, config: Mapping[str, Any], *, where: str = "config.json") -> ModelShape:
        """Return the shape that a config.json describes.

        Raises:
            InvalidSetup: dimensions are missing; the message names all of them.
        """
        needed = ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"]
        if config.get("model_type") in STATE_ALONE:
            needed.remove("num_attention_heads")
        missing = [key for key in needed if not is_positive(config.get(key))]
        if not missing and config["num_hidden_layers"] > _MOST_LAYERS:
            missing = ["a believable num_hidden_layers"]
        if missing:
            raise InvalidSetup.because(
                "config-incomplete",
                f"{where} lacks {', '.join(missing)}.",
                where=where,
                fix="Give the directory of a Hugging Face checkpoint of a decoder-only language model.",
            )
        heads = config.get("num_attention_heads") or 1
        kinds = read_layer_kinds(config)
        window, chunk = read_window(config), positive_of(config, "attention_chunk_size") or 8192
        latent = 0 if config.get("model_type") in _LATENT_EXPANDED else config.get("kv_lora_rank") or 0
        return cls(
            hidden_size=config["hidden_size"],
            num_layers=config["num_hidden_layers"],
            num_heads=heads,
            num_kv_heads=read_kv_heads(config, heads),
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            layer_heads=read_layer_heads(config, kinds, read_kv_heads(config, heads)),
            shared_layers=min(positive_of(config, "num_kv_shared_layers") or 0, config["num_hidden_layers"] - 1),
            intermediate_size=config["intermediate_size"],
            vocab_size=config["vocab_size"],
            max_position_embeddings=config.get("max_position_embeddings") or 2048,
            tie_word_embeddings=bool(config.get("tie_word_embeddings", config.get("model_type") in TIED_UNSAID)),
            latent_dim=latent + (config.get("qk_rope_head_dim") or 0) if latent else 0,
            windows=(
                tuple(window if kind == SLIDING else chunk if kind == CHUNKED else None for kind in kinds)
                if {SLIDING, CHUNKED} & set(kinds)
                else ()
            ),
            chunked_layers=frozenset(i for i, kind in enumerate(kinds) if kind == CHUNKED),
            stateful_layers=frozenset(i for i, kind in enumerate(kinds) if kind not in KEEPS_TOKENS),
            state_layers=frozenset(i for i, kind in enumerate(kinds) if kind in KEEPS_STATE),
        )

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """Layers that keep keys and values."""
        kept = range(self.num_layers - self.shared_layers)
        return tuple(layer for layer in kept if layer not in self.stateful_layers)

    def kv_layers(self) -> tuple[KVLayer, ...]:
        """Return what each layer keeps for a token, without layers that keep only a state. The only KV formula."""
        alike = (1, self.latent_dim) if self.latent_dim else (self.num_kv_heads, 2 * self.head_dim)
        heads = self.layer_heads or (alike,) * self.num_layers
        return tuple(
            KVLayer(
                values=heads[layer][0] * heads[layer][1],
                num_heads=heads[layer][0],
                window=self.windows[layer] if self.windows else None,
                chunked=layer in self.chunked_layers,
                latent=bool(self.latent_dim),
            )
            for layer in self.attention_layers
        )

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Return the bytes of keys and values per token, over all layers and heads."""
        return sum(layer.values for layer in self.kv_layers()) * bytes_per_value


_MOST_LAYERS = 10_000
_LATENT_EXPANDED = frozenset({"minicpm3"})
"""Model types whose latent vLLM expands before it caches: keys and values of every head are kept."""
