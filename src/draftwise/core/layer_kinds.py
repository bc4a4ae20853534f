"""The kind of each layer of a model, from its config.json or its model type."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Config = Mapping[str, Any]
Kinds = tuple[str, ...]

FULL, SLIDING, CHUNKED, BOTH = "full_attention", "sliding_attention", "chunked_attention", "parallel"
"""Kinds of layers; `parallel` ones have attention and a state at the same place."""
KEEPS_TOKENS = frozenset({FULL, "attention", SLIDING, CHUNKED, BOTH})
"""Kinds of layers with keys and values."""
KEEPS_STATE = frozenset({BOTH, "mamba", "mamba2", "linear_attention", "kda", "conv", "recurrent"})
"""Kinds of layers with a state of fixed size for each sequence."""

_LARGEST = 1 << 40
"""No dimension of a model comes near it; larger numbers are damaged files."""
_WINDOW_UNSAID = {
    "cohere2": 4096,
    "gemma2": 4096,
    "gemma3_text": 4096,
    "gpt_oss": 128,
    "mistral": 4096,
    "qwen3_moe": 4096,
}
"""Windows of model types where config.json does not have the key: the defaults of transformers' classes."""
TIED_UNSAID = frozenset(
    {
        *("bloom", "cohere", "cohere2", "cohere2_moe", "ernie4_5", "ernie4_5_moe", "falcon", "falcon_mamba"),
        *("gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n_text", "gemma4_text", "gpt2", "gpt_bigcode", "gpt_neo"),
        *("jetmoe", "lfm2", "lfm2_moe", "mamba", "minicpm3", "mpt", "opt", "smollm3", "starcoder2", "zamba2"),
    }
)
"""Model types whose output matrix is the embedding where config.json does not say: likewise (transformers 5.17)."""
STATE_ALONE = frozenset({"mamba", "mamba2", "falcon_mamba"})
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


def is_positive(value: object) -> bool:
    """Return whether a value is a positive whole number, as dimensions are."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < _LARGEST


def positive_of(config: Config, key: str) -> int | None:
    """Return a positive number of config.json; None without one."""
    value = config.get(key)
    return value if is_positive(value) else None


def read_layer_kinds(config: Config) -> Kinds:
    """Return each layer's kind by its name in `layer_types`; empty if all layers see all tokens."""
    return next((kinds for read in _READERS if (kinds := read(config, _type_of(config))) is not None), ())


def read_window(config: Config) -> int | None:
    """Return the window of sliding layers from config.json, or the default of transformers' class."""
    if "sliding_window" in config:
        return config["sliding_window"] or None
    return _WINDOW_UNSAID.get(_type_of(config))


def read_kv_heads(config: Config, heads: int) -> int:
    """Return the key-value heads of a layer. Falcon and BigCode use flags for them, Step groups, MPT an object."""
    if _type_of(config) in ("falcon", "gpt_bigcode"):
        if config.get("new_decoder_architecture"):
            return positive_of(config, "num_kv_heads") or heads
        return 1 if config.get("multi_query", True) else heads
    inner = config.get("attn_config")
    own = positive_of(inner, "kv_n_heads") if isinstance(inner, Mapping) else None
    return config.get("num_key_value_heads") or positive_of(config, "num_attention_groups") or own or heads


def read_layer_heads(config: Config, kinds: Kinds, heads: int) -> tuple[tuple[int, int], ...]:
    """Return (key-value heads, numbers in a key and a value) by layer; empty if all layers are alike."""
    model_type, dim = _type_of(config), positive_of(config, "head_dim")
    if model_type == "minicpm3":
        both = sum(positive_of(config, key) or 0 for key in ("qk_nope_head_dim", "qk_rope_head_dim"))
        return ((heads, 2 * both),) * int(config["num_hidden_layers"])
    if dim is None or SLIDING not in kinds or not model_type.startswith(("gemma4", "mimo_v2")):
        return ()
    if model_type.startswith("gemma4"):
        slides = heads, 2 * dim
        full = positive_of(config, "num_global_key_value_heads") or heads
        whole = full, 2 * (positive_of(config, "global_head_dim") or 512)
    else:
        own = positive_of(config, "swa_head_dim") or dim
        width = own + (positive_of(config, "swa_v_head_dim") or own)
        slides = positive_of(config, "swa_num_key_value_heads") or heads, width
        whole = heads, dim + (positive_of(config, "v_head_dim") or dim)
    return tuple(slides if kind == SLIDING else whole for kind in kinds)


def _type_of(config: Config) -> str:
    return str(config.get("model_type") or "")


def _items(config: Config, key: str) -> list[Any] | None:
    """Return a list of config.json that covers every layer. None for lack of one."""
    value = config.get(key)
    return list(value) if isinstance(value, list | tuple) and len(value) >= config["num_hidden_layers"] else None


def _layers(config: Config) -> Iterator[int]:
    return iter(range(config["num_hidden_layers"]))


def _read_pattern(config: Config, model_type: str) -> Kinds | None:
    if model_type == "nemotron_h" and (named := _items(config, "layers_block_type")) is not None:
        return tuple(str(named[layer]) for layer in _layers(config))
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str) and len(pattern) == config["num_hidden_layers"] and set(pattern) <= set(_PATTERN):
        return tuple(_PATTERN[letter] for letter in pattern)
    if model_type in STATE_ALONE:
        return tuple("mamba" for _ in _layers(config))
    return tuple(BOTH for _ in _layers(config)) if model_type == "falcon_h1" else None


def _read_slides(config: Config, model_type: str) -> Kinds | None:
    slides = _items(config, "hybrid_layer_pattern") if model_type.startswith("mimo_v2") else None
    return None if slides is None else tuple(SLIDING if slides[layer] == 1 else FULL for layer in _layers(config))


def _read_names(config: Config, _model_type: str) -> Kinds | None:
    given = _items(config, "layer_types")
    return None if given is None else tuple(str(given[layer]) for layer in _layers(config))


def _read_positions(config: Config, model_type: str) -> Kinds | None:
    """Return the kinds where config.json says at which layers attention is."""
    if model_type == "jamba":
        step, first = positive_of(config, "attn_layer_period") or 8, config.get("attn_layer_offset", 4)
        return tuple(FULL if layer % step == first else "mamba" for layer in _layers(config))
    key, kind = {"bamba": ("attn_layer_indices", FULL), "zamba2": ("hybrid_layer_ids", BOTH)}.get(model_type, ("", ""))
    if isinstance(at := config.get(key), list | tuple):
        return tuple(kind if layer in at else "mamba" for layer in _layers(config))
    linear = config.get("linear_attn_config")
    at = linear.get("kda_layers") if isinstance(linear, Mapping) else None
    return (
        tuple("kda" if layer + 1 in at else FULL for layer in _layers(config)) if isinstance(at, list | tuple) else None
    )


def _read_intervals(config: Config, model_type: str) -> Kinds | None:
    """Return the kinds of model types that repeat a few layers with other kinds than a window's."""
    if model_type in _FOURTH_FULL:
        step = positive_of(config, "full_attention_interval") or 4
        return tuple(FULL if (layer + 1) % step == 0 else "linear_attention" for layer in _layers(config))
    if model_type != "llama4_text":
        return None
    step = positive_of(config, "no_rope_layer_interval") or 4
    turned = _items(config, "no_rope_layers") or [(layer + 1) % step for layer in _layers(config)]
    return tuple(CHUNKED if turned[layer] else FULL for layer in _layers(config))


def _read_windows(config: Config, model_type: str) -> Kinds | None:
    """Return the kinds of model types whose layers see all tokens, or a window."""
    if not read_window(config):
        return None
    if model_type in _SIXTH_FULL:
        step = positive_of(config, "sliding_window_pattern") or 6
        return tuple(FULL if (layer + 1) % step == 0 else SLIDING for layer in _layers(config))
    if model_type in _EVERY_OTHER:
        return tuple(SLIDING if layer % 2 == 0 else FULL for layer in _layers(config))
    if not config.get("use_sliding_window", not model_type.startswith(_OPT_IN)):
        return None
    is_split = model_type.startswith(_OPT_IN) and model_type != "qwen3_moe"
    first = config.get("max_window_layers", 28) or 0 if is_split else 0  # 28 is the default of transformers' classes
    return tuple(FULL if layer < first else SLIDING for layer in _layers(config))


_READERS: tuple[Callable[[Config, str], Kinds | None], ...] = (
    _read_pattern,
    _read_slides,
    _read_names,
    _read_positions,
    _read_intervals,
    _read_windows,
)
"""Ways of saying what layers are, those that say most first."""
