"""Cases for the oracle, from a seed: half of them what guides show, the rest with one or two faults.

A case is drawn in three steps. A *shape* is a method with a target and a drafter that belong together (or a drafter alone,
whose method vLLM must infer); *extras* are keys and flags that make sense with it, of any release; *faults* are drawn from
one list and changed into the finished case, one in 37 %, two in 13 % of the cases. Every release gets the same cases, so that
a key of a later release is an unknown key to an earlier one. A generator of its own rather than hypothesis, because
a case must stay the same when a library changes: outcomes of old releases are kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

__all__ = ["generate", "read_guides"]

Case = dict[str, Any]

DENSE = ["llama", "llama", "llama", "qwen2", "qwen3", "mistral", "llama-rope", "gemma2", "gemma3", "gpt2", "llama-fp8",
         "mixtral", "phi3", "minicpm", "gpt-oss", "opt"]  # fmt: skip
MTP = ["deepseek", "deepseek", "deepseek-2", "mimo", "glm4-moe", "qwen3-next", "ernie", "qwen3-next-fp8", "deepseek-v32",
       "longcat", "exaone-moe", "glm4-moe-lite", "qwen3-5"]  # fmt: skip
MTP_NAMES = [
    "mtp", "mtp", "mtp", "mtp", "deepseek_mtp", "mimo_mtp", "glm4_moe_mtp", "ernie_mtp", "qwen3_next_mtp",
    "longcat_flash_mtp", "qwen3_5_mtp", "step3p5_mtp", "step5_mtp", "glm5_next_mtp",
]  # fmt: skip
SMALL = ["small-llama", "small-llama", "small-qwen2", "small-qwen3", "small-llama-long", "small-llama-short", "pard-llama",
         "small-llama-fp8"]  # fmt: skip
EAGLE = ["org/EAGLE-LLaMA3-Instruct-8B", "org/EAGLE-LLaMA3-Instruct-8B", "my-eagle-llama", "small-llama",
         "eagle-head-own-architecture", "head-eagle-type"]  # fmt: skip
EAGLE3 = ["org/EAGLE3-LLaMA3.1-Instruct-8B", "org/Qwen3-8B_eagle3", "org/Qwen3-8B_eagle3", "head-without-hint", "spec-eagle3",
          "head-eagle3-llama-own-architecture", "head-eagle3-short", "small-llama", "spec-peagle", "peagle-head-eagle3",
          "head-eagle3-unregistered"]  # fmt: skip
SPECULATORS = ["speculators-eagle3", "speculators-peagle", "speculators-dflash", "speculators-eagle3-qwen3"]
NAMED = ["my-eagle-llama", "eagle3-named-llama", "dflash-named-llama", "dspark-named-llama", "Qwen2.5-0.5B", "small.llama"]
EVERY_DRAFTER = [
    *SMALL, *EAGLE, *EAGLE3, *NAMED, "medusa-typed", "medusa-untyped", "mlp", "org/Qwen3-8B-DFlash-b16", "block-drafter",
    "org/dspark_qwen3_8b_block7", "semi-block-drafter", "spec-dflash", "spec-dflash2", "spec-dspark", "spec-unknown",
    "no-architectures", "small-llama-other-vocabulary",
]  # fmt: skip

K = [1, 2, 3, 3, 4, 5, 5, 7, 8, 16]


def generate(seed: int, count: int) -> Iterator[Case]:
    """Yield `count` cases; the same seed gives the same cases."""
    rng = Random(seed)
    for index in range(count):
        shape = rng.choices(list(SHAPES), weights=[weight for _, weight in SHAPES.values()])[0]
        case: Case = {"target": "llama", "spec": {}, "flags": {}, "env": {}}
        SHAPES[shape][0](rng, case)
        add_extras(rng, case)
        faults = rng.choices([0, 1, 2], weights=[50, 37, 13])[0]
        names = [rng.choice(list(FAULTS)) for _ in range(faults)]
        for name in names:
            FAULTS[name](rng, case)
        if case["spec"]:
            case["spec"] = _spelled_once(case["spec"])
        yield {"id": f"{seed}-{index}", "shape": shape, "faults": names, **case}


def read_guides(path: Path) -> list[Case]:
    """Return the examples of guides and documentation, each with the place that it comes from."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# Shapes


def _ngram(rng: Random, case: Case) -> None:
    case["target"] = rng.choice([*DENSE, *MTP, "gemma3-vision"])
    case["spec"] = {"method": rng.choice(["ngram"] * 5 + ["ngram_gpu"] * 2), "num_speculative_tokens": rng.choice(K)}
    if rng.random() < 0.15:
        case["spec"]["model"] = rng.choice(["ngram", "[ngram]"])
        if rng.random() < 0.6:
            del case["spec"]["method"]
    low = rng.randint(1, 4)
    case["spec"] |= rng.choice(
        [{}, {"prompt_lookup_max": low}, {"prompt_lookup_min": low}]
        + [{"prompt_lookup_min": low, "prompt_lookup_max": low + rng.randint(0, 4)}] * 3
    )


def _suffix(rng: Random, case: Case) -> None:
    case["target"] = rng.choice(DENSE)
    case["spec"] = {"method": "suffix"}
    _maybe(rng, case["spec"], 0.7, num_speculative_tokens=rng.choice([*K, 24, 32]))
    _maybe(rng, case["spec"], 0.3, suffix_decoding_max_tree_depth=rng.choice([1, 8, 24, 64, 0]))
    _maybe(rng, case["spec"], 0.2, suffix_decoding_max_cached_requests=rng.choice([0, 1000, -1]))
    _maybe(rng, case["spec"], 0.2, suffix_decoding_max_spec_factor=rng.choice([0.5, 1, 2.0, -0.5]))
    _maybe(rng, case["spec"], 0.2, suffix_decoding_min_token_prob=rng.choice([0, 0.1, 0.9, 1.5]))


def _draft_model(rng: Random, case: Case) -> None:
    case["target"] = rng.choice(DENSE)
    case["spec"] = {"method": "draft_model", "model": rng.choice(SMALL), "num_speculative_tokens": rng.choice(K)}
    if "gemma" in case["target"] or case["target"] == "gpt2":
        case["spec"]["model"] = rng.choice(["small-llama", "small-llama-other-vocabulary"])
    _maybe(rng, case["spec"], 0.15, parallel_drafting=rng.random() < 0.8)
    _maybe(rng, case["spec"], 0.1, use_heterogeneous_vocab=True)
    if rng.random() < 0.1:
        case["spec"]["model"] = "small-llama-other-vocabulary"


def _eagle(rng: Random, case: Case) -> None:
    case["target"] = rng.choice([*DENSE, *DENSE, *MTP])
    method, heads = rng.choice([("eagle", EAGLE), ("eagle3", EAGLE3), ("eagle3", EAGLE3)])
    case["spec"] = {"method": method, "model": rng.choice(heads), "num_speculative_tokens": rng.choice(K)}
    if "peagle" in case["spec"]["model"]:
        _maybe(rng, case["spec"], 0.8, parallel_drafting=True)
    _maybe(rng, case["spec"], 0.1, disable_padded_drafter_batch=rng.random() < 0.8)


def _medusa(rng: Random, case: Case) -> None:
    case["target"] = rng.choice(DENSE)
    case["spec"] = {"method": "medusa", "model": rng.choice(["medusa-typed", "medusa-typed", "medusa-untyped", "small-llama"])}
    case["spec"]["num_speculative_tokens"] = rng.choice([1, 2, 3, 3, 5])


def _mlp(rng: Random, case: Case) -> None:
    case["spec"] = {"model": "mlp"}
    _maybe(rng, case["spec"], 0.5, method="mlp_speculator")
    _maybe(rng, case["spec"], 0.7, num_speculative_tokens=rng.choice([1, 3, 4, 6]))


def _mtp(rng: Random, case: Case) -> None:
    case["target"] = rng.choice([*MTP, *MTP, "deepseek-no-mtp", "llama"])
    case["spec"] = {"method": rng.choice(MTP_NAMES), "num_speculative_tokens": rng.choice([1, 1, 1, 2, 3, 4])}
    if rng.random() < 0.15:
        case["spec"]["model"] = case["target"]
        _drop(rng, case["spec"], 0.2, "method")
    _maybe(rng, case["spec"], 0.05, index_share_for_mtp_iteration=True)


def _block(rng: Random, case: Case) -> None:
    case["target"] = rng.choice(["qwen3", "qwen3", "llama", "mistral", "gemma3", "deepseek"])
    method, models = rng.choice(
        [("dflash", ["org/Qwen3-8B-DFlash-b16", "org/Qwen3-8B-DFlash-b16", "block-drafter", "spec-dflash", "spec-dflash2"]),
         ("dspark", ["org/dspark_qwen3_8b_block7", "semi-block-drafter", "spec-dspark"])]
    )  # fmt: skip
    case["spec"] = {"method": method, "model": rng.choice(models), "num_speculative_tokens": rng.choice([5, 7, 7, 8, 15])}
    _drop(rng, case["spec"], 0.1, "num_speculative_tokens")
    _maybe(rng, case["spec"], 0.1, parallel_drafting=True)
    if method == "dspark":
        _maybe(rng, case["spec"], 0.1, enable_adaptive_verification=True)
        _maybe(rng, case["spec"], 0.1, dspark_draft_topk=rng.choice([1, 32, 4000]))


def _inferred(rng: Random, case: Case) -> None:
    case["target"] = rng.choice(["llama", "llama", "qwen3"])
    case["spec"] = {"model": rng.choice(EVERY_DRAFTER), "num_speculative_tokens": rng.choice(K)}
    _maybe(rng, case["spec"], 0.3, method=rng.choice(["draft_model", "mtp", "medusa", "eagle", "eagle3", "dflash", "ngram"]))


def _hidden_states(rng: Random, case: Case) -> None:
    case["target"] = rng.choice(DENSE)
    case["spec"] = {"method": "extract_hidden_states", "num_speculative_tokens": rng.choice([1, 1, 1, 3])}
    layers = {"hf_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]}}
    _maybe(rng, case["spec"], 0.7, draft_model_config=layers)


def _custom(rng: Random, case: Case) -> None:
    case["spec"] = {"model": rng.choice(["my_package.MyProposer", "my.package.v2.Proposer"])}
    case["spec"]["num_speculative_tokens"] = rng.choice(K)
    _maybe(rng, case["spec"], 0.6, method="custom_class")


def _checkpoint(rng: Random, case: Case) -> None:
    case["target"] = rng.choice(SPECULATORS)
    case["spec"] = rng.choice(
        [None, None, {"num_speculative_tokens": 4}, {"draft_tensor_parallel_size": 1}, {"parallel_drafting": True},
         {"method": "eagle3", "model": "spec-eagle3", "num_speculative_tokens": 2}]
    )  # fmt: skip


def _plain(rng: Random, case: Case) -> None:
    case["target"] = rng.choice([*DENSE, *MTP, "gemma3-vision"])
    case["spec"] = None


SHAPES: dict[str, tuple[Callable[[Random, Case], None], int]] = {
    "ngram": (_ngram, 16), "suffix": (_suffix, 6), "draft_model": (_draft_model, 16), "eagle": (_eagle, 18),
    "medusa": (_medusa, 4), "mlp_speculator": (_mlp, 2), "mtp": (_mtp, 13), "block": (_block, 8), "inferred": (_inferred, 9),
    "extract_hidden_states": (_hidden_states, 2), "custom_class": (_custom, 2), "speculators target": (_checkpoint, 3),
    "no speculation": (_plain, 1),
}  # fmt: skip
"""Shape -> how a case of it is drawn, and how often of a hundred."""


# Extras


def add_extras(rng: Random, case: Case) -> None:
    """Add flags and keys that an operator may well set with this shape."""
    flags, spec = case["flags"], case["spec"]
    if case["target"] in ("mimo", "minicpm"):
        flags["trust_remote_code"] = True
    for probability, name, values in FLAGS:
        if rng.random() < probability:
            flags[name] = rng.choice(values)
    if rng.random() < 0.08:
        case["env"]["VLLM_USE_V2_MODEL_RUNNER"] = rng.choice(["0", "1"])
    if spec is None:
        return
    for probability, keys in KEYS:
        if rng.random() < probability:
            spec |= rng.choice(keys)
    if flags.get("tensor_parallel_size", 1) > 1 and rng.random() < 0.4:
        spec["draft_tensor_parallel_size"] = rng.choice([1, flags["tensor_parallel_size"]])


FLAGS: list[tuple[float, str, list[Any]]] = [
    (0.25, "tensor_parallel_size", [2, 2, 4]),
    (0.04, "pipeline_parallel_size", [2]),
    (0.04, "data_parallel_size", [2]),
    (0.18, "max_model_len", [512, 1024, 2048]),
    (0.04, "quantization", ["fp8"]),
    (0.05, "kv_cache_dtype", ["fp8", "auto", "fp8_e5m2"]),
    (0.05, "enable_lora", [True]),
    (0.12, "async_scheduling", [True, True, False]),
    (0.08, "enforce_eager", [True]),
    (0.06, "enable_chunked_prefill", [True, True, False]),
    (0.04, "enable_prefix_caching", [True, False]),
    (0.08, "max_num_seqs", [1, 16, 128, 512]),
    (0.08, "max_num_batched_tokens", [256, 2048, 8192]),
    (0.05, "gpu_memory_utilization", [0.5, 0.9, 0.95]),
    (0.03, "dtype", ["bfloat16", "float16", "auto"]),
    (0.02, "enable_expert_parallel", [True]),
    (0.02, "distributed_executor_backend", ["mp"]),
    (0.02, "seed", [1]),
    (0.02, "kv_sharing_fast_prefill", [True]),
    (0.02, "attention_backend", ["FLASH_ATTN", "TRITON_ATTN"]),
    (0.02, "per_request_spec_decode_metrics", ["summary"]),
    (0.02, "disable_log_stats", [True]),
    (0.02, "block_size", [16, 32]),
]
"""Probability, flag, values."""

KEYS: list[tuple[float, list[dict[str, Any]]]] = [
    (0.06, [{"max_model_len": 256}, {"max_model_len": 512}, {"max_model_len": 2048}]),
    (0.05, [{"enforce_eager": True}, {"enforce_eager": False}]),
    (0.04, [{"quantization": "fp8"}, {"quantization": None}]),
    (0.02, [{"revision": "main"}, {"code_revision": "main"}]),
    (0.05, [{"rejection_sample_method": name} for name in ("standard", "strict", "probabilistic", "block")]),
    (0.04, [{"draft_sample_method": name} for name in ("greedy", "probabilistic", "gumbel")]),
    (0.02, [{"attention_backend": name} for name in ("FLASH_ATTN", "flash_attn", "auto", "TRITON_ATTN")]),
    (0.02, [{"moe_backend": name} for name in ("triton", "auto")]),
    (0.02, [{"kv_cache_dtype": name} for name in ("fp8", "auto")]),
    (0.02, [{"use_local_argmax_reduction": True}]),
    (0.02, [{"draft_load_config": {"load_format": "dummy"}}]),
    (0.03, [{"num_speculative_tokens_per_batch_size": [[1, 8, 3], [9, 64, 1]]}]),
]
"""Probability, and keys of which one is added."""


# Faults


def _maybe(rng: Random, into: dict[str, Any], probability: float, **values: Any) -> None:
    if rng.random() < probability:
        into |= values


def _drop(rng: Random, of: dict[str, Any], probability: float, key: str) -> None:
    if rng.random() < probability:
        of.pop(key, None)


def _set(key: str, values: list[Any]) -> Callable[[Random, Case], None]:
    """Return the fault that gives a key of the speculative config one of these values."""

    def fault(rng: Random, case: Case) -> None:
        case["spec"] = {**(case["spec"] or {}), key: rng.choice(values)}

    return fault


def _flag(name: str, values: list[Any]) -> Callable[[Random, Case], None]:
    """Return the fault that gives a flag one of these values."""

    def fault(rng: Random, case: Case) -> None:
        case["flags"][name] = rng.choice(values)

    return fault


def _several_flags(*choices: dict[str, Any]) -> Callable[[Random, Case], None]:
    def fault(rng: Random, case: Case) -> None:
        case["flags"] |= rng.choice(choices)

    return fault


def _without(key: str) -> Callable[[Random, Case], None]:
    def fault(_: Random, case: Case) -> None:
        case["spec"] = {name: value for name, value in (case["spec"] or {}).items() if name != key}

    return fault


def _several(*choices: dict[str, Any]) -> Callable[[Random, Case], None]:
    """Return the fault that adds one of these groups of keys."""

    def fault(rng: Random, case: Case) -> None:
        case["spec"] = (case["spec"] or {}) | rng.choice(choices)

    return fault


def _other_drafter(rng: Random, case: Case) -> None:
    case["spec"] = {**(case["spec"] or {}), "model": rng.choice([*EVERY_DRAFTER, "no-config"])}


def _dashes(_: Random, case: Case) -> None:
    case["spec"] = {key.replace("_", "-"): value for key, value in (case["spec"] or {}).items()}


def _spelled_once(spec: dict[str, Any]) -> dict[str, Any]:
    """Leave one of two spellings of a key: which of them wins depends on the order of a JSON object's keys."""
    return {key: value for key, value in spec.items() if "-" not in key or key.replace("-", "_") not in spec}


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
    _maybe(rng, spec, 0.85, rejection_sample_method="synthetic")
    spec |= rng.choice(
        [{}, {"synthetic_acceptance_rate": 0.7}, {"synthetic_acceptance_rate": 1.5}, {"synthetic_acceptance_length": 2.5},
         {"synthetic_acceptance_length": k + 1}, {"synthetic_acceptance_length": k + 2}, {"synthetic_acceptance_length": 0.5},
         {"synthetic_acceptance_rates": [0.5] * k}, {"synthetic_acceptance_rates": [0.5] * (k + 1)},
         {"synthetic_acceptance_rates": [0.2, 0.8, *[0.1] * (k - 2)]}, {"synthetic_acceptance_rates": [1.2] * k},
         {"synthetic_acceptance_rates": [0.5] * k, "synthetic_acceptance_length": 2.0}]
    )  # fmt: skip


FAULTS: dict[str, Callable[[Random, Case], None]] = {
    "k of a wrong type": _set("num_speculative_tokens", ["4", "four", 2.0, 2.5, True, False, None, [3], {}]),
    "k out of range": _set("num_speculative_tokens", [0, -1, 5000]),
    "k that n_predict does not divide": _set("num_speculative_tokens", [3, 5, 7]),
    "no k": _without("num_speculative_tokens"),
    "no method": _without("method"),
    "no model": _without("model"),
    "method of a wrong kind": _set("method", ["ngrams", "EAGLE", "Eagle3", "[ngram]", "", None, 3, "eagle2", "lookahead"]),
    "another method": _set(
        "method", ["ngram", "eagle", "eagle3", "medusa", "mtp", "draft_model", "dflash", "dspark", "suffix", "mlp_speculator",
                   "ngram_gpu", "extract_hidden_states", "deepseek_mtp", "custom_class"],
    ),
    "another drafter": _other_drafter,
    "model of a wrong type": _set("model", [3, True, None, ["small-llama"], ""]),
    "unknown key": _several(
        {"foo": 1}, {"num_spec_tokens": 3}, {"speculative_model": "small-llama"}, {"k": 3}, {"draft_tp": 1}, {"num_lookahead_slots": 3},
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
        {"parallel_drafting": "true"}, {"parallel_drafting": "maybe"}, {"parallel_drafting": 1}, {"parallel_drafting": True},
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
        [[[1, 8, 3], [9, 64, 1]], [[2, 8, 3]], [[1, 8, 3], [5, 9, 1]], [[1, 8]], "1-8:3", [], [[1, 8, -1]], [[1, 8, 20]]],
    ),
    "adaptive verification": _several(
        {"enable_adaptive_verification": True}, {"enable_adaptive_verification": True, "use_local_argmax_reduction": True}
    ),
    "keys of single methods": _several(
        {"dspark_draft_topk": 8}, {"dspark_draft_topk": 0}, {"index_share_for_mtp_iteration": True}, {"xpress_topc": 4},
        {"draft_lm_head_quantization": "fp8"}, {"draft_lm_head_quantization": "int8"}, {"disable_eagle_block_drop": True},
        {"disable_lookahead_block_hashes": True}, {"suffix_decoding_max_tree_depth": 0}, {"xpress_topc": -1},
        {"use_local_argmax_reduction": True},
    ),
    "backends": _several(
        {"attention_backend": "nope"}, {"attention_backend": "Flash_Attn"}, {"attention_backend": 3}, {"moe_backend": "nope"},
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
        {"speculative_model": "small-llama"}, {"num_speculative_tokens": 3}, {"async_scheduling": True}, {"use_v2_block_manager": True},
        {"per_request_spec_decode_metrics": "detailed"}, {"kv_sharing_fast_prefill": True}, {"spec_tokens": 3},
    ),
    "adapters": _flag("enable_lora", [True]),
}  # fmt: skip
"""What is wrong with a case, and how it comes in; several of them are harmless in some releases."""
