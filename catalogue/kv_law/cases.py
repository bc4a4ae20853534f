"""The cases of the law: models of every architecture that a config.json can be had for, times a grid of settings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from draftwise.knowledge.stored import read_rows

__all__ = ["write_cases"]

SHAPES: dict[str, dict[str, Any]] = {
    row["name"]: row["config"]
    for row in map(json.loads, Path(__file__).with_name("shapes.jsonl").read_text().splitlines())
}
"""Configs of published models, by kind of cache, that the table of known models does not hold: as far as their layers
depend on them, with vocabularies and counts of experts cut down."""
HEADS: dict[str, dict[str, Any]] = {
    "head-8x128": {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128},
    "head-2x64": {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64},
}
"""EAGLE-3 heads by their key-value heads: pages as large as the target's, and pages that are not."""
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
FULL: dict[str, dict[str, Any]] = {
    "default": {},
    "fp8": {"flags": {"kv_cache_dtype": "fp8"}},
    "no-prefix-caching": {"flags": {"enable_prefix_caching": False}},
    "tp2": {"flags": {"tensor_parallel_size": 2}},
    "tp4-ngram": {"flags": {"tensor_parallel_size": 4}, "spec": NGRAM},
    "pp2": {"flags": {"pipeline_parallel_size": 2}},
    "ngram": {"spec": NGRAM},
    "ngram-no-prefix-caching": {"flags": {"enable_prefix_caching": False}, "spec": NGRAM},
    "block64": {"flags": {"block_size": 64}},
    "odd": {"flags": {"max_model_len": 3001, "max_num_batched_tokens": 4096, "max_num_seqs": 64}},
    "float32-states": {"flags": {"mamba_ssm_cache_dtype": "float32"}},
    "mtp1": {"spec": {"method": "mtp", "num_speculative_tokens": 1}},
    "mtp3-tp2": {"flags": {"tensor_parallel_size": 2}, "spec": {"method": "mtp", "num_speculative_tokens": 3}},
    "mtp3-odd": {
        "flags": {"max_model_len": 3001, "max_num_batched_tokens": 4096, "max_num_seqs": 64, "kv_cache_dtype": "fp8"},
        "spec": {"method": "mtp", "num_speculative_tokens": 3},
    },
    "eagle3": {"spec": {"method": "eagle3", "model": "head-8x128", "num_speculative_tokens": 3}},
    "eagle3-small": {"spec": {"method": "eagle3", "model": "head-2x64", "num_speculative_tokens": 5}},
    "one-kind": {"flags": {"disable_hybrid_kv_cache_manager": True}},
}
SCALED = ("int8_per_token_head", "fp8_per_token_head", "int4_per_token_head", "nvfp4", "fp8_e5m2")
"""Further types of the KV cache, for models whose layers are all alike."""
OF_DEFAULTS = ("default", "tp2", "fp8", "ngram-no-prefix-caching", "odd")
"""Settings for models whose config.json is the default of transformers' class."""
FEW: dict[str, dict[str, Any]] = {
    "default": {},
    "all-lookup": {
        "flags": {"kv_cache_dtype": "fp8", "tensor_parallel_size": 2, "pipeline_parallel_size": 2}, "spec": NGRAM,
    },
    "tp2-eagle3": {
        "flags": {"tensor_parallel_size": 2},
        "spec": {"method": "eagle3", "model": "head-8x128", "num_speculative_tokens": 3},
    },
    "mtp3-tp2": FULL["mtp3-tp2"],
    "prefix-caching": {"flags": {"enable_prefix_caching": True}, "spec": NGRAM},
}  # fmt: skip
"""Settings for releases between the newest and the oldest one, which take fewer cases."""


def write_cases(folder: Path, defaults: Path | None) -> int:
    """Write config.json files, `cases.jsonl` and the shorter `few.jsonl`, and return the number of cases.

    Args:
        folder: that is written into.
        defaults: configs by architecture, as `transformers_defaults.py` wrote them.
    """
    models = folder / "models"
    configs = dict(_known()) | SHAPES
    further = json.loads(defaults.read_text()) if defaults else {}
    shown = {arch for config in configs.values() for arch in config["architectures"]}
    rows = []
    for name in configs:
        rows += [{"id": f"{name}:{key}", "target": name, **row} for key, row in FULL.items()]
    configs |= {arch: config for arch, config in further.items() if arch not in shown}
    unpublished = [
        {"id": f"{arch}:{key}", "target": arch, **FULL[key]}
        for arch in further if arch not in shown for key in OF_DEFAULTS
    ]  # fmt: skip
    rows += unpublished
    for name, config in {**configs, **{name: _head(head) for name, head in HEADS.items()}}.items():
        (models / name).mkdir(parents=True, exist_ok=True)
        (models / name / "config.json").write_text(json.dumps(config))
    rows += [
        {"id": f"{name}:{dtype}", "target": name, "flags": {"kv_cache_dtype": dtype}}
        for name, config in configs.items()
        if config["architectures"][0] in ("LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM")
        for dtype in SCALED
    ]
    names = {configs[name]["architectures"][0]: name for name in reversed([*dict(_known()), *SHAPES])}
    few = [
        {"id": f"{name}:{key}", "target": name, **row} for name in sorted(names.values()) for key, row in FEW.items()
    ] + unpublished
    few.sort(key=lambda row: not row["id"].endswith(":default"))
    for name, wanted in (("cases", rows), ("few", few)):
        kept = [row for row in wanted if _makes_sense(row, configs[row["target"]])]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    return len(rows)


def _known() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield one model of the table for each architecture and kind of layers, largest first."""
    seen = set()
    for row in read_rows("models"):
        config = {key: value for key, value in row["config"].items() if key not in ("quantization_config", "auto_map")}
        text = config.get("text_config") or config
        kind = (config["architectures"][0], text["model_type"], text.get("sliding_window"), text.get("head_dim"))
        if kind not in seen:
            seen.add(kind)
            yield row["id"].replace("/", "_"), config


def _head(dims: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 1,
        "intermediate_size": 1024, "vocab_size": 32768, "draft_vocab_size": 8192, "torch_dtype": "bfloat16",
        "max_position_embeddings": 1048576, "eagle_aux_hidden_state_layer_ids": [1, 2, 3], "rms_norm_eps": 1e-5, **dims,
    }  # fmt: skip


def _makes_sense(row: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    text = config.get("text_config") or config
    flags, method = row.get("flags") or {}, (row.get("spec") or {}).get("method")
    modules = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
    if method == "mtp" and not (any(text.get(key) for key in modules) or text.get("model_type") == "qwen3_next"):
        return False
    if "mamba_ssm_cache_dtype" in flags and not any(key.startswith(("mamba", "linear_", "ssm")) for key in text):
        return False
    return "disable_hybrid_kv_cache_manager" not in flags or bool(text.get("sliding_window"))
