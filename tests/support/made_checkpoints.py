"""Checkpoints that are a config.json and nothing else, and the shortest way to judge a setup with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftwise.core import Device, Effect, Ruling, Setup, SpecConfig
from draftwise.plan.check import Report, check

H200 = Device(name="NVIDIA H200", kind="cuda", count=8, memory_bytes=150_754_820_096)

LLAMA: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 2000, "max_position_embeddings": 2048,
}  # fmt: skip
DEEPSEEK: Mapping[str, Any] = {
    **LLAMA, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "n_routed_experts": 8,
    "num_nextn_predict_layers": 1,
}  # fmt: skip
EAGLE3: Mapping[str, Any] = {**LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1}
MEDUSA: Mapping[str, Any] = {"architectures": ["MedusaModel"], "model_type": "medusa", "vocab_size": 2000}
DFLASH: Mapping[str, Any] = {**LLAMA, "architectures": ["DFlashDraftModel"], "model_type": "qwen3"}
DSPARK: Mapping[str, Any] = {**DFLASH, "architectures": ["Qwen3DSparkModel"], "block_size": 7}


def speculators(kind: str = "eagle3", verifier: str = "llama", tokens: int = 3, **more: Any) -> Mapping[str, Any]:
    """Return a checkpoint as the speculators library writes it."""
    return {
        "architectures": [f"{kind}Speculator"],
        "speculators_model_type": kind,
        "transformer_layer_config": dict(EAGLE3),
        "speculators_config": {
            "proposal_methods": [{"speculative_tokens": tokens}],
            "verifier": {"name_or_path": verifier},
        },
        **more,
    }


def write(folder: Path, name: str, config: Mapping[str, Any]) -> str:
    """Write a checkpoint and return the name to give it by."""
    (folder / name).mkdir(parents=True)
    (folder / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder / name)


def judge(target: str, spec: Mapping[str, Any] | None, version: str = "0.32.0", **args: Any) -> Report:
    """Return the report on a target with a speculative JSON and engine flags, on an H200."""
    config = None if spec is None else SpecConfig.keep(spec)
    return check(Setup(target=target, engine="vllm", engine_version=version, device=H200, spec=config, args=args))


def rejections(report: Report) -> list[str]:
    """Return the codes of everything that stops the server, in order."""
    return [each.code for each in report.findings if isinstance(each, Ruling) and each.effect is Effect.REJECTED]
