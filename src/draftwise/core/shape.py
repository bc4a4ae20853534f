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
    chunked: bool = False
    """Whether `window` is a chunk of the sequence instead."""
    latent: bool = False
    """Whether the values are a latent."""

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
    """Layers without keys and values: those that keep a state of fixed size per sequence instead (linear attention,
    Mamba), or nothing (feed-forward layers of their own)."""
    layer_heads: tuple[tuple[int, int], ...] = ()
    """Key-value heads of each layer, and the values of a key and a value together; empty where all layers are alike."""
    shared_layers: int = 0
    """Last layers that read the keys and values of layers before them, and keep none."""
    chunked_layers: frozenset[int] = frozenset()
    """Layers whose window is a chunk of the sequence."""
    state_layers: frozenset[int] = frozenset()
    """Layers that keep a state of fixed size per sequence; some keep keys and values as well."""

    @classmethod
    def from_hf_config(cls, config: Mapping[str, Any], *, where: str = "config.json") -> ModelShape:
        """Return the shape that a config.json describes.

        Raises:
            InvalidSetup: a dimension is missing; all missing ones are named at once.
        """
        needed = ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"]
        if config.get("model_type") in _STATE_ALONE:
            needed.remove("num_attention_heads")
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
        heads = config.get("num_attention_heads") or 1
        kinds = read_layer_kinds(config)
        window, chunk = _read_window(config), config.get("attention_chunk_size") or 8192
        latent = 0 if config.get("model_type") in _LATENT_EXPANDED else config.get("kv_lora_rank") or 0
        return cls(
            hidden_size=config["hidden_size"],
            num_layers=config["num_hidden_layers"],
            num_heads=heads,
            num_kv_heads=_read_kv_heads(config, heads),
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            layer_heads=_read_layer_heads(config, kinds, _read_kv_heads(config, heads)),
            shared_layers=min(config.get("num_kv_shared_layers") or 0, config["num_hidden_layers"] - 1),
            intermediate_size=config["intermediate_size"],
            vocab_size=config["vocab_size"],
            max_position_embeddings=config.get("max_position_embeddings") or 2048,
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            latent_dim=latent + (config.get("qk_rope_head_dim") or 0) if latent else 0,
            windows=(
                tuple(window if kind == _SLIDING else chunk if kind == _CHUNKED else None for kind in kinds)
                if {_SLIDING, _CHUNKED} & set(kinds)
                else ()
            ),
            chunked_layers=frozenset(i for i, kind in enumerate(kinds) if kind == _CHUNKED),
            stateful_layers=frozenset(
                i for i, kind in enumerate(kinds) if kind not in (_SLIDING, _BOTH) and kind not in _SEES_ALL
            ),
            state_layers=frozenset(i for i, kind in enumerate(kinds) if kind in _KEEPS_STATE),
        )

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """Layers that keep keys and values."""
        kept = range(self.num_layers - self.shared_layers)
        return tuple(layer for layer in kept if layer not in self.stateful_layers)

    def kv_layers(self) -> tuple[KVLayer, ...]:
        """Return what each layer keeps of a token, layers with a state left out: the only KV formula."""
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
        """Return the bytes of keys and values of all layers for one token, all heads together."""
        return sum(layer.values for layer in self.kv_layers()) * bytes_per_value


_MOST_LAYERS = 10_000
_LARGEST = 1 << 40
"""No dimension of a model comes near it; larger numbers are damaged files."""


def _is_positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < _LARGEST


_FULL, _SLIDING, _CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
_SEES_ALL = frozenset({_FULL, "attention", _CHUNKED})
_WINDOW_UNSAID = {"cohere2": 4096, "gemma2": 4096, "gemma3_text": 4096, "gpt_oss": 128, "mistral": 4096}
"""Windows of model types where config.json does not have the key: the defaults of transformers' classes."""
_LATENT_EXPANDED = frozenset({"minicpm3"})
"""Model types whose latent vLLM expands before it caches: keys and values of every head are kept."""
_BOTH = "parallel"
_KEEPS_STATE = frozenset({_BOTH, "mamba", "mamba2", "linear_attention", "kda", "conv", "recurrent"})
"""Kinds of layers with a state of fixed size; `parallel` layers have attention at the same place."""
_STATE_ALONE = frozenset({"mamba", "mamba2", "falcon_mamba"})
"""Model types without attention."""
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
    if model_type in _STATE_ALONE:
        return ("mamba",) * count
    if model_type.startswith("mimo_v2") and isinstance(swa := config.get("hybrid_layer_pattern"), list | tuple):
        return tuple(_SLIDING if each == 1 else _FULL for each in swa[:count])
    if isinstance(given := config.get("layer_types"), list | tuple) and len(given) >= count:
        return tuple(str(kind) for kind in given[:count])
    if (layers := _read_positions(config, model_type)) is not None:
        return layers
    if model_type in _FOURTH_FULL:
        step = config.get("full_attention_interval") or 4
        return tuple(_FULL if (layer + 1) % step == 0 else "linear_attention" for layer in range(count))
    if model_type == "llama4_text" and isinstance(plain := config.get("no_rope_layers", ()), list | tuple):
        spread = plain or [int((layer + 1) % (config.get("no_rope_layer_interval") or 4) != 0) for layer in range(count)]
        return tuple(_CHUNKED if turned else _FULL for turned in spread[:count])
    if not _read_window(config):
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


def _read_kv_heads(config: Mapping[str, Any], heads: int) -> int:
    """Return the key-value heads of a layer; Falcon says them in flags, and Step as groups."""
    if config.get("model_type") == "falcon":
        if config.get("new_decoder_architecture"):
            return config.get("num_kv_heads") or heads
        return 1 if config.get("multi_query", True) else heads
    return config.get("num_key_value_heads") or config.get("num_attention_groups") or heads


def _read_layer_heads(config: Mapping[str, Any], kinds: tuple[str, ...], heads: int) -> tuple[tuple[int, int], ...]:
    """Return heads and the values of a key and a value by layer, for model types whose sliding layers differ."""
    full = _either(config, "global_head_dim") or 512, _either(config, "num_global_key_value_heads") or heads
    model_type, dim = str(config.get("model_type") or ""), config.get("head_dim")
    if model_type == "minicpm3":
        both = (config.get("qk_nope_head_dim") or 0) + (config.get("qk_rope_head_dim") or 0)
        return ((heads, 2 * both),) * config["num_hidden_layers"]
    if model_type.startswith("mimo_v2") and kinds and dim:
        wide = (heads, dim + (_either(config, "v_head_dim") or dim))
        own = _either(config, "swa_head_dim") or dim
        slides = _either(config, "swa_num_key_value_heads") or heads, own + (_either(config, "swa_v_head_dim") or own)
        return tuple(slides if kind == _SLIDING else wide for kind in kinds)
    if model_type.startswith("gemma4") and dim and kinds:
        return tuple((heads, 2 * dim) if kind == _SLIDING else (full[1], 2 * full[0]) for kind in kinds)
    return ()


def _either(config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if _is_positive(value) else None


def _read_window(config: Mapping[str, Any]) -> int | None:
    """Return the window of sliding layers, as the key says, or transformers' class where config.json lacks it."""
    if "sliding_window" in config:
        return config["sliding_window"] or None
    return _WINDOW_UNSAID.get(str(config.get("model_type") or ""))


def _read_positions(config: Mapping[str, Any], model_type: str) -> tuple[str, ...] | None:
    """Return the kinds where config.json says at which layers attention is; None where it does not."""
    count = config["num_hidden_layers"]
    if model_type == "falcon_h1":
        return (_BOTH,) * count
    if model_type == "jamba" and _is_positive(step := config.get("attn_layer_period", 8)):
        first = config.get("attn_layer_offset", 4)
        return tuple(_FULL if layer % step == first else "mamba" for layer in range(count))
    if model_type == "bamba" and isinstance(at := config.get("attn_layer_indices"), list | tuple):
        return tuple(_FULL if layer in at else "mamba" for layer in range(count))
    if model_type == "zamba2" and isinstance(at := config.get("hybrid_layer_ids"), list | tuple):
        return tuple(_BOTH if layer in at else "mamba" for layer in range(count))
    if isinstance(linear := config.get("linear_attn_config"), Mapping):
        at = linear.get("kda_layers")
        return tuple("kda" if layer + 1 in at else _FULL for layer in range(count)) if isinstance(at, list | tuple) else None
    return None
