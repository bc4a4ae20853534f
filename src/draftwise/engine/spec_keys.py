"""The keys and methods of `--speculative-config` as the embedded engine knows them: data, with meaning and source."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

__all__ = [
    "ELSEWHERE",
    "KEYS",
    "LAYER_IDS_KEY",
    "METHODS",
    "MTP_SUFFIX",
    "NAME_TRAPS",
    "NO_EFFECT",
    "Key",
    "Kind",
    "Method",
]


@dataclass(frozen=True, slots=True)
class Kind:
    """What a value must be."""

    text: str
    accepts: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Key:
    """A key that acts here; what it means is in `facts.glossary`."""

    kind: Kind
    default: Any
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """What a method that runs here needs."""

    model: Literal["needed", "optional", "none"] = "none"
    """Whether a drafter's checkpoint must be given, or may be."""
    keys: frozenset[str] = frozenset()
    """Keys that act for this method and, unless another one lists them too, for no other."""
    required: str | None = None
    """One of `keys` that must be given."""
    default_k_key: str | None = None
    """Key whose value is k when num_speculative_tokens is not given; None: it must be given."""


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _integer(low: int) -> Kind:
    return Kind(f"an integer of at least {low}", lambda v: _is_int(v) and v >= low)


def _number(low: float, high: float = math.inf) -> Kind:
    text = f"a number of at least {low:g}" if high == math.inf else f"a number in {low:g}..{high:g}"
    return Kind(text, lambda v: _is_number(v) and low <= v <= high)


def _one_of(*words: str) -> Kind:
    return Kind(f"one of {', '.join(words)}", lambda v: v in words)


def _list_of(text: str, accepts: Callable[[Any], bool]) -> Kind:
    return Kind(f"a list of {text}", lambda v: isinstance(v, list | tuple) and len(v) > 0 and all(map(accepts, v)))


def _is_range(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 3 and all(map(_is_int, value))


def _is_layer_choice(value: Any) -> bool:
    """Whether a draft_model_config says which layers' states to extract, and nothing else."""
    ids = value.get("hf_config", {}).get(LAYER_IDS_KEY) if isinstance(value, dict) else None
    return isinstance(ids, list | tuple) and len(ids) > 0 and all(_is_int(i) and i >= 0 for i in ids)


LAYER_IDS_KEY = "eagle_aux_hidden_state_layer_ids"

_SWITCH = Kind("true or false", lambda v: isinstance(v, bool))
_TEXT = Kind("a string", lambda v: isinstance(v, str) and v != "")

_V0 = "vLLM 0.9.2 (V0 engine), vllm/config.py"
_V1 = "vLLM 0.32.0, vllm/config/speculative.py"

KEYS: dict[str, Key] = {
    "method": Key(_TEXT, None, _V1),
    "model": Key(_TEXT, None, _V1),
    "num_speculative_tokens": Key(_integer(1), None, _V1),
    "prompt_lookup_max": Key(_integer(1), None, _V1),
    "prompt_lookup_min": Key(_integer(1), None, _V1),
    "suffix_decoding_max_tree_depth": Key(_integer(1), 24, _V1),
    "suffix_decoding_max_cached_requests": Key(_integer(0), 10_000, _V1),
    "suffix_decoding_max_spec_factor": Key(_number(0), 1.0, _V1),
    "suffix_decoding_min_token_prob": Key(_number(0, 1), 0.1, _V1),
    "disable_by_batch_size": Key(
        _integer(2),
        None,
        "vLLM 0.9.2, vllm/spec_decode/spec_decode_worker.py, _should_disable_all_speculation; a no-op on V1",
    ),
    "num_speculative_tokens_per_batch_size": Key(
        _list_of("[first batch size, last batch size, k], whole numbers", _is_range),
        None,
        "vLLM 0.32.0, vllm/v1/spec_decode/dynamic/utils.py",
    ),
    "draft_sample_method": Key(_one_of("greedy", "probabilistic"), "greedy", _V1),
    "parallel_drafting": Key(_SWITCH, False, _V1),
    "draft_model_config": Key(
        Kind(f'{{"hf_config": {{"{LAYER_IDS_KEY}": [layer, ...]}}}}', _is_layer_choice),
        None,
        _V1,
    ),
    "rejection_sample_method": Key(_one_of("standard", "synthetic"), "standard", _V1),
    "synthetic_acceptance_rates": Key(
        _list_of("numbers in 0..1", _number(0, 1).accepts),
        None,
        _V1,
    ),
    "synthetic_acceptance_length": Key(_number(1), None, _V1),
    "acceptance_method": Key(
        _one_of("rejection_sampler", "typical_acceptance_sampler"),
        "rejection_sampler",
        _V0,
    ),
    "posterior_threshold": Key(Kind("a number in [0, 1)", lambda v: _is_number(v) and 0 <= v < 1), 0.09, _V0),
    "posterior_alpha": Key(_number(0), 0.3, _V0),
}

_ONE_DEVICE = "the embedded engine decodes on one device"
_NO_SUCH_METHOD = "it belongs to a method that the embedded engine does not have"
_NO_SUCH_KERNEL = "it chooses among vLLM's kernels"
_FROM_DISK = "drafters are read from a local directory as they are"

NO_EFFECT: dict[str, str] = {
    "attention_backend": _NO_SUCH_KERNEL,
    "code_revision": _FROM_DISK,
    "disable_eagle_block_drop": "the last page in common is always computed again where a drafter needs it",
    "disable_logprobs": "log-probabilities are always available",
    "disable_lookahead_block_hashes": _NO_SUCH_METHOD,
    "disable_mqa_scorer": _NO_SUCH_KERNEL,
    "disable_padded_drafter_batch": "drafts of unequal length share a batch anyway",
    "draft_lm_head_quantization": _FROM_DISK,
    "draft_load_config": _FROM_DISK,
    "draft_tensor_parallel_size": _ONE_DEVICE,
    "dspark_draft_topk": _NO_SUCH_METHOD,
    "enable_adaptive_verification": _NO_SUCH_METHOD,
    "enforce_eager": "the embedded engine always runs eagerly",
    "fly_entropy_threshold": _NO_SUCH_METHOD,
    "fly_entropy_top_k": _NO_SUCH_METHOD,
    "fly_window_size": _NO_SUCH_METHOD,
    "index_share_for_mtp_iteration": _NO_SUCH_METHOD,
    "kv_cache_dtype": "the drafter's cache has the drafter's type",
    "max_model_len": "a drafter drafts as far as its own positions reach",
    "moe_backend": _NO_SUCH_KERNEL,
    "quantization": _FROM_DISK,
    "revision": _FROM_DISK,
    "speculative_token_tree": "drafts are chains",
    "use_heterogeneous_vocab": "target and drafter must share a tokenizer",
    "use_local_argmax_reduction": _ONE_DEVICE,
    "xpress_topc": _NO_SUCH_METHOD,
}
"""Keys that some vLLM from 0.9.2 to 0.33.0 knows and that change nothing here, with the reason."""

_LOOKUP = frozenset({"prompt_lookup_max", "prompt_lookup_min"})
_SAMPLED = frozenset({"draft_sample_method"})
_EITHER_WAY = frozenset({"draft_sample_method", "parallel_drafting"})

METHODS: dict[str, Method] = {
    "ngram": Method(keys=_LOOKUP),
    "ngram_gpu": Method(keys=_LOOKUP),
    "suffix": Method(
        keys=frozenset(name for name in KEYS if name.startswith("suffix_")),
        default_k_key="suffix_decoding_max_tree_depth",
    ),
    "draft_model": Method(model="needed", keys=_EITHER_WAY),
    "medusa": Method(model="needed", keys=_SAMPLED),
    "mlp_speculator": Method(model="needed", keys=_SAMPLED),
    "eagle": Method(model="needed", keys=_SAMPLED),
    "eagle3": Method(model="needed", keys=_EITHER_WAY),
    "mtp": Method(model="optional", keys=_SAMPLED),
    "dflash": Method(model="needed", keys=_EITHER_WAY),
    "extract_hidden_states": Method(keys=frozenset({"draft_model_config"}), required="draft_model_config"),
}

ELSEWHERE = ("custom_class", "dspark")
"""Methods that only vLLM runs so far."""

MTP_SUFFIX = "_mtp"
"""vLLM's names for one family's modules end in it (deepseek_mtp, mimo_mtp, ...); they all mean mtp."""

NAME_TRAPS = ("eagle-", "eagle3", "dflash", "dspark")
"""vLLM takes a model with one of these in its path for a head of that kind, even if the method says draft_model."""
