"""Shapes of cases: a method with a target and a drafter that fit, or a drafter whose method vLLM must infer."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

__all__ = ["EVERY_DRAFTER", "SHAPES", "Case", "maybe"]

Case = dict[str, Any]

DENSE = ["llama", "llama", "llama", "qwen2", "qwen3", "mistral", "llama-rope", "gemma2", "gemma3", "gpt2", "llama-fp8",
         "mixtral", "phi3", "minicpm", "gpt-oss", "opt"]  # fmt: skip
MTP = ["deepseek", "deepseek", "deepseek-2", "mimo", "glm4-moe", "qwen3-next", "ernie", "qwen3-next-fp8",
       "deepseek-v32",
       "longcat", "exaone-moe", "glm4-moe-lite", "qwen3-5"]  # fmt: skip
MTP_NAMES = [
    "mtp", "mtp", "mtp", "mtp", "deepseek_mtp", "mimo_mtp", "glm4_moe_mtp", "ernie_mtp", "qwen3_next_mtp",
    "longcat_flash_mtp", "qwen3_5_mtp", "step3p5_mtp", "step5_mtp", "glm5_next_mtp",
]  # fmt: skip
SMALL = ["small-llama", "small-llama", "small-qwen2", "small-qwen3", "small-llama-long", "small-llama-short",
         "pard-llama",
         "small-llama-fp8"]  # fmt: skip
EAGLE = ["org/EAGLE-LLaMA3-Instruct-8B", "org/EAGLE-LLaMA3-Instruct-8B", "my-eagle-llama", "small-llama",
         "eagle-head-own-architecture", "head-eagle-type"]  # fmt: skip
EAGLE3 = ["org/EAGLE3-LLaMA3.1-Instruct-8B", "org/Qwen3-8B_eagle3", "org/Qwen3-8B_eagle3", "head-without-hint",
          "spec-eagle3",
          "head-eagle3-llama-own-architecture", "head-eagle3-short", "small-llama", "spec-peagle", "peagle-head-eagle3",
          "head-eagle3-unregistered"]  # fmt: skip
SPECULATORS = ["speculators-eagle3", "speculators-peagle", "speculators-dflash", "speculators-eagle3-qwen3"]
NAMED = [
    "my-eagle-llama",
    "eagle3-named-llama",
    "dflash-named-llama",
    "dspark-named-llama",
    "Qwen2.5-0.5B",
    "small.llama",
]
EVERY_DRAFTER = [
    *SMALL, *EAGLE, *EAGLE3, *NAMED, "medusa-typed", "medusa-untyped", "mlp", "org/Qwen3-8B-DFlash-b16",
    "block-drafter",
    "org/dspark_qwen3_8b_block7", "semi-block-drafter", "spec-dflash", "spec-dflash2", "spec-dspark", "spec-unknown",
    "no-architectures", "small-llama-other-vocabulary",
]  # fmt: skip

K = [1, 2, 3, 3, 4, 5, 5, 7, 8, 16]


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
    maybe(rng, case["spec"], 0.7, num_speculative_tokens=rng.choice([*K, 24, 32]))
    maybe(rng, case["spec"], 0.3, suffix_decoding_max_tree_depth=rng.choice([1, 8, 24, 64, 0]))
    maybe(rng, case["spec"], 0.2, suffix_decoding_max_cached_requests=rng.choice([0, 1000, -1]))
    maybe(rng, case["spec"], 0.2, suffix_decoding_max_spec_factor=rng.choice([0.5, 1, 2.0, -0.5]))
    maybe(rng, case["spec"], 0.2, suffix_decoding_min_token_prob=rng.choice([0, 0.1, 0.9, 1.5]))


def _draft_model(rng: Random, case: Case) -> None:
    case["target"] = rng.choice(DENSE)
    case["spec"] = {"method": "draft_model", "model": rng.choice(SMALL), "num_speculative_tokens": rng.choice(K)}
    if "gemma" in case["target"] or case["target"] == "gpt2":
        case["spec"]["model"] = rng.choice(["small-llama", "small-llama-other-vocabulary"])
    maybe(rng, case["spec"], 0.15, parallel_drafting=rng.random() < 0.8)
    maybe(rng, case["spec"], 0.1, use_heterogeneous_vocab=True)
    if rng.random() < 0.1:
        case["spec"]["model"] = "small-llama-other-vocabulary"


def _eagle(rng: Random, case: Case) -> None:
    case["target"] = rng.choice([*DENSE, *DENSE, *MTP])
    method, heads = rng.choice([("eagle", EAGLE), ("eagle3", EAGLE3), ("eagle3", EAGLE3)])
    case["spec"] = {"method": method, "model": rng.choice(heads), "num_speculative_tokens": rng.choice(K)}
    if "peagle" in case["spec"]["model"]:
        maybe(rng, case["spec"], 0.8, parallel_drafting=True)
    maybe(rng, case["spec"], 0.1, disable_padded_drafter_batch=rng.random() < 0.8)


def _medusa(rng: Random, case: Case) -> None:
    case["target"] = rng.choice(DENSE)
    case["spec"] = {
        "method": "medusa",
        "model": rng.choice(["medusa-typed", "medusa-typed", "medusa-untyped", "small-llama"]),
    }
    case["spec"]["num_speculative_tokens"] = rng.choice([1, 2, 3, 3, 5])


def _mlp(rng: Random, case: Case) -> None:
    case["spec"] = {"model": "mlp"}
    maybe(rng, case["spec"], 0.5, method="mlp_speculator")
    maybe(rng, case["spec"], 0.7, num_speculative_tokens=rng.choice([1, 3, 4, 6]))


def _mtp(rng: Random, case: Case) -> None:
    case["target"] = rng.choice([*MTP, *MTP, "deepseek-no-mtp", "llama"])
    case["spec"] = {"method": rng.choice(MTP_NAMES), "num_speculative_tokens": rng.choice([1, 1, 1, 2, 3, 4])}
    if rng.random() < 0.15:
        case["spec"]["model"] = case["target"]
        _drop(rng, case["spec"], 0.2, "method")
    maybe(rng, case["spec"], 0.05, index_share_for_mtp_iteration=True)


def _block(rng: Random, case: Case) -> None:
    case["target"] = rng.choice(["qwen3", "qwen3", "llama", "mistral", "gemma3", "deepseek"])
    method, models = rng.choice(
        [("dflash", ["org/Qwen3-8B-DFlash-b16", "org/Qwen3-8B-DFlash-b16", "block-drafter", "spec-dflash",
                     "spec-dflash2"]),
         ("dspark", ["org/dspark_qwen3_8b_block7", "semi-block-drafter", "spec-dspark"])]
    )  # fmt: skip
    case["spec"] = {
        "method": method,
        "model": rng.choice(models),
        "num_speculative_tokens": rng.choice([5, 7, 7, 8, 15]),
    }
    _drop(rng, case["spec"], 0.1, "num_speculative_tokens")
    maybe(rng, case["spec"], 0.1, parallel_drafting=True)
    if method == "dspark":
        maybe(rng, case["spec"], 0.1, enable_adaptive_verification=True)
        maybe(rng, case["spec"], 0.1, dspark_draft_topk=rng.choice([1, 32, 4000]))


def _inferred(rng: Random, case: Case) -> None:
    case["target"] = rng.choice(["llama", "llama", "qwen3"])
    case["spec"] = {"model": rng.choice(EVERY_DRAFTER), "num_speculative_tokens": rng.choice(K)}
    maybe(
        rng,
        case["spec"],
        0.3,
        method=rng.choice(["draft_model", "mtp", "medusa", "eagle", "eagle3", "dflash", "ngram"]),
    )


def _hidden_states(rng: Random, case: Case) -> None:
    case["target"] = rng.choice(DENSE)
    case["spec"] = {"method": "extract_hidden_states", "num_speculative_tokens": rng.choice([1, 1, 1, 3])}
    layers = {"hf_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]}}
    maybe(rng, case["spec"], 0.7, draft_model_config=layers)


def _custom(rng: Random, case: Case) -> None:
    case["spec"] = {"model": rng.choice(["my_package.MyProposer", "my.package.v2.Proposer"])}
    case["spec"]["num_speculative_tokens"] = rng.choice(K)
    maybe(rng, case["spec"], 0.6, method="custom_class")


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
    "medusa": (_medusa, 4), "mlp_speculator": (_mlp, 2), "mtp": (_mtp, 13), "block": (_block, 8),
    "inferred": (_inferred, 9),
    "extract_hidden_states": (_hidden_states, 2), "custom_class": (_custom, 2), "speculators target": (_checkpoint, 3),
    "no speculation": (_plain, 1),
}  # fmt: skip
"""Shape -> how a case of it is drawn, and how often of a hundred."""


def maybe(rng: Random, into: dict[str, Any], probability: float, **values: Any) -> None:
    if rng.random() < probability:
        into |= values


def _drop(rng: Random, of: dict[str, Any], probability: float, key: str) -> None:
    if rng.random() < probability:
        of.pop(key, None)
