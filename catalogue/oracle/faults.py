"""What is wrong with a case, and how it comes in; some of it is harmless in some releases."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from catalogue.oracle.shapes import EVERY_DRAFTER, Case, maybe

__all__ = ["FAULTS"]

Fault = Callable[[Random, Case], None]


def _set(key: str, values: list[Any]) -> Fault:
    """Return the fault that gives a key of the speculative config one of these values."""

    def fault(rng: Random, case: Case) -> None:
        case["spec"] = {**(case["spec"] or {}), key: rng.choice(values)}

    return fault


def _flag(name: str, values: list[Any]) -> Fault:
    """Return the fault that gives a flag one of these values."""

    def fault(rng: Random, case: Case) -> None:
        case["flags"][name] = rng.choice(values)

    return fault


def _several_flags(*choices: dict[str, Any]) -> Fault:
    def fault(rng: Random, case: Case) -> None:
        case["flags"] |= rng.choice(choices)

    return fault


def _without(key: str) -> Fault:
    def fault(_: Random, case: Case) -> None:
        case["spec"] = {name: value for name, value in (case["spec"] or {}).items() if name != key}

    return fault


def _several(*choices: dict[str, Any]) -> Fault:
    """Return the fault that adds one of these groups of keys."""

    def fault(rng: Random, case: Case) -> None:
        case["spec"] = (case["spec"] or {}) | rng.choice(choices)

    return fault


def _other_drafter(rng: Random, case: Case) -> None:
    case["spec"] = {**(case["spec"] or {}), "model": rng.choice([*EVERY_DRAFTER, "no-config"])}


def _dashes(_: Random, case: Case) -> None:
    case["spec"] = {key.replace("_", "-"): value for key, value in (case["spec"] or {}).items()}


def _both_flag_and_key(rng: Random, case: Case) -> None:
    flag, value = rng.choice([("spec_method", "ngram"), ("spec_tokens", 3), ("spec_model", "small-llama")])
    case["flags"][flag] = value
    if rng.random() < 0.4:
        case["spec"] = None


def _lookup(rng: Random, case: Case) -> None:
    low = rng.randint(2, 6)
    case["spec"] = {**(case["spec"] or {}), "prompt_lookup_min": low, "prompt_lookup_max": low - rng.randint(1, 2)}


def _synthetic(rng: Random, case: Case) -> None:
    spec = case["spec"] = {**(case["spec"] or {})}
    k = spec.get("num_speculative_tokens")
    k = k if isinstance(k, int) else 3
    maybe(rng, spec, 0.85, rejection_sample_method="synthetic")
    spec |= rng.choice(
        [{}, {"synthetic_acceptance_rate": 0.7}, {"synthetic_acceptance_rate": 1.5},
         {"synthetic_acceptance_length": 2.5},
         {"synthetic_acceptance_length": k + 1}, {"synthetic_acceptance_length": k + 2},
         {"synthetic_acceptance_length": 0.5},
         {"synthetic_acceptance_rates": [0.5] * k}, {"synthetic_acceptance_rates": [0.5] * (k + 1)},
         {"synthetic_acceptance_rates": [0.2, 0.8, *[0.1] * (k - 2)]}, {"synthetic_acceptance_rates": [1.2] * k},
         {"synthetic_acceptance_rates": [0.5] * k, "synthetic_acceptance_length": 2.0}]
    )  # fmt: skip


FAULTS: dict[str, Fault] = {
    "k of a wrong type": _set("num_speculative_tokens", ["4", "four", 2.0, 2.5, True, False, None, [3], {}]),
    "k out of range": _set("num_speculative_tokens", [0, -1, 5000]),
    "k that n_predict does not divide": _set("num_speculative_tokens", [3, 5, 7]),
    "no k": _without("num_speculative_tokens"),
    "no method": _without("method"),
    "no model": _without("model"),
    "method of a wrong kind": _set("method", ["ngrams", "EAGLE", "Eagle3", "[ngram]", "", None, 3, "eagle2",
                                              "lookahead"]),
    "another method": _set(
        "method", ["ngram", "eagle", "eagle3", "medusa", "mtp", "draft_model", "dflash", "dspark", "suffix",
                   "mlp_speculator",
                   "ngram_gpu", "extract_hidden_states", "deepseek_mtp", "custom_class"],
    ),
    "another drafter": _other_drafter,
    "model of a wrong type": _set("model", [3, True, None, ["small-llama"], ""]),
    "unknown key": _several(
        {"foo": 1}, {"num_spec_tokens": 3}, {"speculative_model": "small-llama"}, {"k": 3}, {"draft_tp": 1},
        {"num_lookahead_slots": 3},
    ),
    "key that was removed": _several(
        {"disable_by_batch_size": 32}, {"disable_by_batch_size": 1}, {"speculative_token_tree": "[(0,), (0, 0)]"},
        {"disable_logprobs": False}, {"disable_mqa_scorer": True}, {"acceptance_method": "typical_acceptance_sampler"},
        {"posterior_threshold": 0.1},
    ),
    "dashes": _dashes,
    "lookup bounds": _lookup,
    "lookup of a wrong kind": _several(
        {"prompt_lookup_min": 0}, {"prompt_lookup_max": -1}, {"prompt_lookup_max": "4"}, {"prompt_lookup_min": 2.5},
        {"prompt_lookup_max": None},
    ),
    "draft tensor parallel size": _set("draft_tensor_parallel_size", [0, 1, 2, 3, 4, 8, "2", 1.5, None]),
    "tensor parallel size in the wrong place": _set("tensor_parallel_size", [1, 2]),
    "draft max_model_len": _set("max_model_len", [0, -1, 1, 4096, 100_000, "512", None]),
    "quantization": _set("quantization", ["nope", "awq", "gptq", "bitsandbytes", 8]),
    "boolean of a wrong kind": _several(
        {"parallel_drafting": "true"}, {"parallel_drafting": "maybe"}, {"parallel_drafting": 1},
        {"parallel_drafting": True},
        {"disable_padded_drafter_batch": True}, {"disable_padded_drafter_batch": None}, {"enforce_eager": "yes"},
        {"enforce_eager": "nope"},
    ),
    "synthetic acceptance": _synthetic,
    "rejection sampling": _set(
        "rejection_sample_method", ["standard", "strict", "probabilistic", "block", "fly", "synthetic", "nope", None]
    ),
    "draft sampling": _set("draft_sample_method", ["greedy", "probabilistic", "gumbel", "nope"]),
    "fly": _several(
        {"rejection_sample_method": "fly"}, {"rejection_sample_method": "fly", "fly_window_size": 2},
        {"rejection_sample_method": "fly", "fly_window_size": 8}, {"fly_entropy_threshold": -1},
        {"rejection_sample_method": "fly", "fly_window_size": 0}, {"fly_entropy_top_k": 0},
    ),
    "heterogeneous vocabularies": _several(
        {"use_heterogeneous_vocab": True}, {"use_heterogeneous_vocab": True, "draft_sample_method": "probabilistic"},
        {"use_heterogeneous_vocab": True, "use_local_argmax_reduction": True},
    ),
    "schedule": _set(
        "num_speculative_tokens_per_batch_size",
        [[[1, 8, 3], [9, 64, 1]], [[2, 8, 3]], [[1, 8, 3], [5, 9, 1]], [[1, 8]], "1-8:3", [], [[1, 8, -1]], [[1, 8,
                                                                                                              20]]],
    ),
    "adaptive verification": _several(
        {"enable_adaptive_verification": True}, {"enable_adaptive_verification": True,
                                                 "use_local_argmax_reduction": True}
    ),
    "keys of single methods": _several(
        {"dspark_draft_topk": 8}, {"dspark_draft_topk": 0}, {"index_share_for_mtp_iteration": True}, {"xpress_topc": 4},
        {"draft_lm_head_quantization": "fp8"}, {"draft_lm_head_quantization": "int8"},
        {"disable_eagle_block_drop": True},
        {"disable_lookahead_block_hashes": True}, {"suffix_decoding_max_tree_depth": 0}, {"xpress_topc": -1},
        {"use_local_argmax_reduction": True},
    ),
    "backends": _several(
        {"attention_backend": "nope"}, {"attention_backend": "Flash_Attn"}, {"attention_backend": 3},
        {"moe_backend": "nope"},
        {"kv_cache_dtype": "nope"}, {"kv_cache_dtype": "fp8_e5m2"}, {"attention_backend": "FLASHINFER"},
    ),
    "empty config": lambda _, case: case.update(spec={}),
    "spec flags": _both_flag_and_key,
    "pipeline parallelism": _flag("pipeline_parallel_size", [2]),
    "data parallelism": _flag("data_parallel_size", [2]),
    "target max_model_len": _flag("max_model_len", [0, 100, 4096, 16384, "2k", "auto", -1]),
    "tensor parallel size": _flag("tensor_parallel_size", [0, 3, 8, 16, "two", 1.5]),
    "target quantization": _flag("quantization", ["nope", "awq"]),
    "target kv_cache_dtype": _flag("kv_cache_dtype", ["nope", "fp8"]),
    "flag of another release": _several_flags(
        {"speculative_model": "small-llama"}, {"num_speculative_tokens": 3}, {"async_scheduling": True},
        {"use_v2_block_manager": True},
        {"per_request_spec_decode_metrics": "detailed"}, {"kv_sharing_fast_prefill": True}, {"spec_tokens": 3},
    ),
    "adapters": _flag("enable_lora", [True]),
}  # fmt: skip
"""What is wrong with a case, and how it comes in; several of them are harmless in some releases."""
