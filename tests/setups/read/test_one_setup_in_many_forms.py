"""A setup reads the same whether KServe, llm-d's chart or Slurm starts it."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
import yaml
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from draftwise.plan.check import judge
from draftwise.setups.read import read_setups

RELEASES = ("0.11.0", "0.19.1", "0.26.0", "0.33.0")
TARGETS = ("Qwen/Qwen3-8B", "meta-llama/Llama-3.1-8B-Instruct", "deepseek-ai/DeepSeek-V3")
FLAGS: dict[str, st.SearchStrategy[Any]] = {
    "max-model-len": st.integers(1, 9000), "gpu-memory-utilization": st.sampled_from([0.8, 0.95, 2]),
    "kv-cache-dtype": st.sampled_from(["auto", "fp8", "none of these"]), "enforce-eager": st.just(None),
    "max-num-seqs": st.integers(1, 512), "tensor-parallel-size": st.sampled_from([1, 2, 4, 3]),
}  # fmt: skip
SPEC = st.fixed_dictionaries(
    {"method": st.sampled_from(["ngram", "mtp", "suffix", "nothing"]), "num_speculative_tokens": st.integers(0, 9)},
    optional={"prompt_lookup_max": st.integers(1, 6), "unknown key": st.just("it's")},
)


def to_inference_service(image: str, target: str, words: list[str]) -> str:
    container = {"name": "kserve-container", "image": image, "command": ["vllm", "serve"], "args": [target, *words]}
    return yaml.safe_dump(_kind("InferenceService", {"predictor": {"containers": [container]}}))


def to_llm_service(image: str, target: str, words: list[str]) -> str:
    container = {"name": "main", "image": image, "args": [shlex.join(words)]}  # which KServe's template evaluates
    spec = {"model": {"uri": f"hf://{target}"}, "template": {"containers": [container]}}
    return yaml.safe_dump(_kind("LLMInferenceService", spec))


def to_modelservice(image: str, target: str, words: list[str]) -> str:
    container = {"name": "vllm", "image": image, "modelCommand": "custom", "command": ["vllm", "serve"]}
    container["args"] = [target, *words]
    return yaml.safe_dump(
        {"modelArtifacts": {"uri": f"hf://{target}", "name": target}, "decode": {"containers": [container]}}
    )


def to_slurm(image: str, target: str, words: list[str]) -> str:
    command = shlex.join(["vllm", "serve", target, *words])
    install = f"pip install vllm=={image.rpartition(':v')[2]}"
    return f"#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --time=04:00:00\n{install}\nsrun --ntasks=1 {command}\n"


def _kind(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "serving.kserve.io/v1beta1", "kind": kind, "metadata": {"name": "a"}, "spec": spec}


@pytest.mark.parametrize("render", [to_inference_service, to_llm_service, to_modelservice, to_slurm])
@seed(44)
@settings(max_examples=25, deadline=None, database=None)
@given(
    st.sampled_from(RELEASES), st.sampled_from(TARGETS), SPEC, st.fixed_dictionaries({}, optional=FLAGS)
)  # fmt: skip
def test_the_form_changes_neither_setup_nor_outcome(render, release, target, spec, flags):
    words = ["--speculative-config", json.dumps(spec)]
    for name, value in flags.items():
        words += [f"--{name}", *([] if value is None else [str(value)])]
    (plain,) = read_setups(shlex.join(["vllm", "serve", target, *words]), engine_version=release)
    (drawn,) = read_setups(render(f"vllm/vllm-openai:v{release}", target, words))
    for field in ("target", "engine_version", "spec", "args"):
        assert getattr(drawn.setup, field) == getattr(plain.setup, field)
    assert judge(drawn).outcome is judge(plain).outcome
