"""Cases for the oracle, from a seed: half of them what guides show, the rest with one or two faults.

A case is drawn in three steps. A *shape* is a method with a target and a drafter that belong together (or a drafter
alone, whose method vLLM must infer); *extras* are keys and flags that make sense with it, of any release; *faults* are
drawn from one list and worked into the finished case, one in 37 %,
two in 13 % of the cases. Every release gets the same
cases, so that a key of a later release is an unknown key to an earlier one. A generator of its own rather than
hypothesis, because a case must stay the same when a library changes: outcomes of old releases are kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from catalogue.oracle.faults import FAULTS
from catalogue.oracle.shapes import SHAPES, Case

__all__ = ["add_extras", "add_faults", "generate", "read_guides"]


def generate(seed: int, count: int) -> Iterator[Case]:
    """Yield `count` cases; the same seed gives the same cases."""
    rng = Random(seed)
    for index in range(count):
        shape = rng.choices(list(SHAPES), weights=[weight for _, weight in SHAPES.values()])[0]
        case: Case = {"target": "llama", "spec": {}, "flags": {}, "env": {}}
        SHAPES[shape][0](rng, case)
        add_extras(rng, case)
        names = add_faults(rng, case, rng.choices([0, 1, 2], weights=[50, 37, 13])[0])
        yield {"id": f"{seed}-{index}", "shape": shape, "faults": names, **case}


def read_guides(path: Path) -> list[Case]:
    """Return the examples of guides and documentation, each with the place that it comes from."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def add_faults(rng: Random, case: Case, count: int) -> list[str]:
    """Work `count` faults into a case and return their names."""
    names = [rng.choice(list(FAULTS)) for _ in range(count)]
    for name in names:
        FAULTS[name](rng, case)
    if case["spec"]:
        case["spec"] = _spelled_once(case["spec"])
    return names


def _spelled_once(spec: dict[str, Any]) -> dict[str, Any]:
    """Leave one of two spellings of a key: which of them wins depends on the order of a JSON object's keys."""
    return {key: value for key, value in spec.items() if "-" not in key or key.replace("-", "_") not in spec}


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
