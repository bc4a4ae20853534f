"""Every rule of thumb is raised by the requirements that it is about, and not by ordinary ones."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.requirements import LLAMA, QWEN, advise, findings

from draftwise.knowledge.advice import all_advice
from draftwise.knowledge.models import find_model
from draftwise.plan.pick import STRUCTURED_OUTPUT, MethodRanking, Weight

L70 = "meta-llama/Llama-3.3-70B-Instruct"
CASES: dict[str, dict[str, Any]] = {
    "no-autoregressive-decode": {"args": {"runner": "pooling"}},
    "single-token-answers": {"output_tokens": 1},
    "ttft-bound": {"slo_ttft_s": 0.2},
    "prefill-dominated": {"prompt_tokens": 32000, "output_tokens": 8},
    "small-target": {"target": "Qwen/Qwen3-0.6B"},
    "compute-bound": {"concurrency": 256},
    "verification-bound": {
        "target": "meta-llama/Llama-3.1-8B-Instruct",
        "gpu": "H100",
        "kind": "chat",
        "concurrency": 256,
    },
    "sampling-parameter-supported": {"parameters": frozenset({"seed"})},
    "nothing-pays": {"target": "google/gemma-3-1b-it", "kind": "rag", "concurrency": 128, "version": "0.26.0"},
    "no-headroom": {"gpu": "A30", "concurrency": 8, "peak_concurrency": 256},
    "plain-refused": {"target": "XiaomiMiMo/MiMo-7B-RL"},
    "temperature-high": {"temperature": 0.8},
    "sample-drafts": {"temperature": 0.8},
    "temperature-mixed": {"mixed_temperatures": True},
    "sampling-parameter-rejected": {"parameters": frozenset({"min_p"})},
    "sampling-parameter-ignored": {"parameters": frozenset({"logit_bias"}), "version": "0.12.0"},
    "sampling-parameter-not-speculated": {"parameters": frozenset({"min_p"}), "version": "0.12.0"},
    "native-modules": {"target": "zai-org/GLM-4.5-Air", "gpus": 4},
    "k-of-modules": {"target": "zai-org/GLM-4.5-Air", "gpus": 4},
    "published-head": {},
    "repetitive-traffic": {"kind": "agentic"},
    "overlap-some": {"kind": "rag"},
    "small-family-model": {},
    "no-artefact": {},
    "against-the-guide": {"target": QWEN, "kind": "code-editing"},
    "below-break-even": {"target": QWEN, "version": "0.26.0", "kind": "rag", "concurrency": 128},
    "k-by-cost": {},
    "tpot-promise": {"slo_tpot_s": 0.01},
    "k-published": {},
    "k-of-suffix": {},
    "one-gpu-measured": {"gpus": 2},
    "fewer-sequences": {"target": QWEN, "version": "0.26.0", "peak_concurrency": 64},
    "context-cut": {"target": L70, "gpu": "H100", "gpus": 2},
    "fewer-states": {"target": "Qwen/Qwen3.6-27B", "gpu": "RTX-PRO-6000"},
    "copied-modules": {"target": "nvidia/Qwen3.6-27B-NVFP4", "gpu": "H200"},
    "graph-cliff": {"args": {"max_num_seqs": 64}, "peak_concurrency": 512},
    "moe-verification": {"target": "Qwen/Qwen3-30B-A3B"},
    "lora": {"args": {"enable_lora": True}},
    "structured-output": {"parameters": frozenset({STRUCTURED_OUTPUT})},
    "air-gapped": {"air_gapped": True},
    "size-ratio": {"target": "meta-llama/Llama-3.1-405B-Instruct", "gpus": 8},
    "unequal-vocabularies": {"target": "Qwen/Qwen2.5-7B-Instruct", "version": "0.32.0"},
    "publisher-note": {"target": QWEN},
    "unmeasured": {},
    "compare-prefix-cache": {},
    "not-in-release": {"version": "0.19.1"},
    "not-acceleration": {},
    "own-code": {},
    "no-native-modules": {},
    "no-drafter-known": {},
    "no-overlap": {"kind": "chat"},
    "text-in-pictures": {"kind": "extraction", "text_in_pictures": True},
    "pair-measured": {"kind": "chat"},
    "pair-published": {"target": QWEN},
    "not-above-successor": {"gpu": "B200", "kind": "chat", "concurrency": 64},
    "not-above-the-read": {"target": "Qwen/Qwen3-32B", "kind": "chat"},
    "long-context": {"prompt_tokens": 64000},
    "two-hosts": {"target": "deepseek-ai/DeepSeek-V3", "gpu": "H100", "gpus": 16},
    "only-when-locked-in": {"target": "lmsys/vicuna-7b-v1.3", "version": "0.32.0"},
    "refused-by-check": {"target": "Qwen/Qwen2.5-7B-Instruct", "version": "0.19.1"},
    "does-not-fit": {"gpu": "A100-40GB", "args": {"max_model_len": 131072}},
}
ALWAYS_SHOWN = {"guide-order", "starting-point", "schedule", "runs-embedded"}
"""Rules that the terminal shows, or that lend their words to another."""
WITH_FILES = {
    "given-drafter",
    "head-for-another",
    "does-not-match",
    "locked-in",
    "changed-by-release",
    "quantized-target",
}
"""Rules that need a directory: below."""
LITTLE_KNOWN = {"acceptance-unknown", "method-not-described"}
"""Rules for methods that are not in the table, or not with advice: `test_makers`."""


def codes(advice: MethodRanking) -> set[str]:
    return {finding.code for finding in findings(advice)}


@pytest.mark.parametrize("code", CASES)
def test_the_rule_is_met(code: str) -> None:
    asked = dict(CASES[code])
    found = [each for each in findings(advise(asked.pop("target", LLAMA), **asked)) if each.code == code]
    assert found
    assert all(each.message and each.source for each in found)


def test_every_rule_has_a_case() -> None:
    assert set(all_advice()) == set(CASES) | ALWAYS_SHOWN | WITH_FILES | LITTLE_KNOWN


def test_ordinary_requirements_raise_no_reason_against_speculation() -> None:
    assert not advise(concurrency=8).levers


@pytest.mark.parametrize(
    ("asked", "weight"),
    [
        ({"output_tokens": 1}, Weight.ENDS),
        ({"slo_ttft_s": 0.2}, Weight.OFF),
        ({"slo_ttft_s": 0.2, "slo_tpot_s": 0.02}, None),
        ({"temperature": 1.0}, None),
        ({"mixed_temperatures": True}, Weight.DOUBT),
        ({"parameters": frozenset({"min_p"})}, Weight.OFF),
        ({"parameters": frozenset({"min_p"}), "version": "0.12.0"}, Weight.DOUBT),
        ({"parameters": frozenset({"stop"})}, None),
    ],
)
def test_reasons_weigh_as_much_as_they_should(asked: dict[str, Any], weight: Weight | None) -> None:
    levers = advise(**asked).levers
    assert (levers[0].weight if levers else None) is weight


@pytest.mark.parametrize(("target", "is_small"), [("Qwen/Qwen3.5-0.8B", True), ("zai-org/GLM-4.6", False)])
def test_the_name_tells_the_size_of_a_target_whose_shape_is_unknown(target: str, is_small: bool) -> None:
    assert ("small-target" in codes(advise(target))) == is_small


@pytest.mark.parametrize("architecture", ["BertModel", "Qwen2ForRewardModel"])
def test_models_that_answer_with_a_vector_end_the_search(architecture: str) -> None:
    known = find_model(QWEN)
    assert known is not None
    advice = advise(json.dumps({**known.config, "architectures": [architecture]}))
    assert advice.levers[0].finding.code == "no-autoregressive-decode"


def write(folder: Path, config: dict[str, Any]) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def copy_of(target: str) -> dict[str, Any]:
    known = find_model(target)
    assert known is not None
    return dict(known.config)


def medusa(folder: Path) -> MethodRanking:
    config = {"architectures": ["MedusaModel"], "model_type": "medusa", "hidden_size": 4096, "vocab_size": 128256}
    config |= {"num_heads": 3, "num_hidden_layers": 1}
    return advise(version="0.32.0", drafters=(write(folder / "medusa", config),))


def head_without_weights(folder: Path) -> MethodRanking:
    head = write(folder / "eagle3", {"architectures": ["LlamaForCausalLMEagle3"], **_SHAPE})
    return advise(write(folder / "target", copy_of(LLAMA)), drafters=(head,))


def renamed(folder: Path) -> MethodRanking:
    small = write(folder / "eagle-8b", copy_of("meta-llama/Llama-3.1-8B-Instruct"))
    return advise(version="0.33.0", drafters=(small,))


def base_of_the_target(folder: Path) -> MethodRanking:
    return advise(write(folder / "Llama-3.1-8B-Instruct", copy_of(LLAMA)))


def quantized(folder: Path) -> MethodRanking:
    settings = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
    return advise(write(folder / "Llama-3.1-8B-Instruct", copy_of(LLAMA) | {"quantization_config": settings}))


_SHAPE = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 1, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "draft_vocab_size": 32000,
    "max_position_embeddings": 131072,
}  # fmt: skip


@pytest.mark.parametrize(
    ("code", "made"),
    [
        ("quantized-target", quantized),
        ("given-drafter", medusa),
        ("locked-in", medusa),
        ("does-not-match", head_without_weights),
        ("changed-by-release", renamed),
        ("head-for-another", base_of_the_target),
    ],
)
def test_the_rule_about_directories_is_met(code: str, made: Callable[[Path], MethodRanking], tmp_path: Path) -> None:
    assert code in codes(made(tmp_path))
