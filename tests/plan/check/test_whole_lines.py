"""Whole command lines of the kinds that `check` once took otherwise, with what vLLM 0.19.1, 0.26.0 and 0.33.0 did."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from catalogue.oracle.compare import predict, read_lines
from catalogue.oracle.models import MODELS as SHAPES
from catalogue.oracle.models import write_models

LINES = list(read_lines(Path(__file__).with_name("oracle_outcomes") / "whole_lines.jsonl"))
MODELS: Mapping[str, dict[str, Any]] = {
    "q8": {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
        "intermediate_size": 12288, "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
    },
    "gptq-ordered": {
        **(SHAPES["llama"] or {}),
        "quantization_config": {"quant_method": "gptq", "bits": 8, "group_size": 128, "desc_act": True, "sym": True},
    },
    "llama3-rope": {
        **(SHAPES["llama"] or {}),
        "rope_theta": 500000.0,
        "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    },
    "gptoss": {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 24,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088,
        "intermediate_size": 2880, "max_position_embeddings": 131072, "num_local_experts": 32, "num_experts_per_tok": 4,
        "sliding_window": 128, "torch_dtype": "bfloat16", "quantization_config": {"quant_method": "mxfp4"},
        "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    for name, config in MODELS.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.mark.parametrize("version", ["0.33.0", "0.26.0", "0.19.1"])
def test_a_line_ends_as_vllm_ended_it(version: str, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(models)
    wrong = []
    for row in LINES:
        if version in row["accepted"]:
            case = {"id": "", "target": row["line"][0], "spec": None, "env": {}, "line": row["line"]}
            found = predict(case, version, "cuda")
            if found.crash or found.accepted is not row["accepted"][version]:
                wrong.append((row["line"], found.codes or found.crash))
    assert wrong == []
    verdicts = [row["accepted"][version] for row in LINES if version in row["accepted"]]
    assert min(verdicts.count(True), verdicts.count(False)) > 50
