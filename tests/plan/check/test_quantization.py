"""Quantization methods asked for and declared, and what hybrid targets need for prefix caching."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.made_checkpoints import LLAMA, judge, rejections, write

from draftwise.core import CheckOutcome, Device, Setup, SpecConfig
from draftwise.knowledge.model_types import is_deprecated, reads_weights_of
from draftwise.knowledge.vllm import get_release, releases
from draftwise.plan.check import check

BF16 = {**LLAMA, "torch_dtype": "bfloat16"}
HYBRID = {**LLAMA, "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "num_experts": 8}


@pytest.mark.parametrize(
    ("declared", "asked", "version", "codes"),
    [
        (None, "fp8", "0.32.0", []),
        (None, "FP8", "0.32.0", []),
        (None, "awq", "0.32.0", ["target-not-quantized"]),
        (None, "zip", "0.32.0", ["target-quantization-unknown"]),
        (None, "experts_int8", "0.13.0", []),
        (None, "experts_int8", "0.14.0", ["target-quantization-deprecated"]),
        (None, "fp_quant", "0.13.0", ["gpu-too-old-for-weights"]),
        ("gptq", "gptq_marlin", "0.19.1", []),
        ("gptq", "gptq", "0.19.1", ["plain-gptq-in-float16"]),
        ("gptq", "gptq", "0.32.0", []),
        ("gptq", None, "0.19.1", []),
        ("gptq", "awq", "0.32.0", ["target-quantization-differs"]),
        ("compressed_tensors", "compressed-tensors", "0.32.0", []),
        ("auto-round", None, "0.23.0", []),
        ("auto-round", None, "0.32.0", []),
        ("auto-round", "auto_round", "0.27.1", []),
    ],
)
def test_the_targets_quantization(
    tmp_path: Path, declared: str | None, asked: str | None, version: str, codes: list[str]
) -> None:
    config: Mapping[str, Any] = {**BF16, "quantization_config": {"quant_method": declared}} if declared else BF16
    flags = {"quantization": asked} if asked else {}
    assert rejections(judge(write(tmp_path, "model", config), None, version, **flags)) == codes


def test_a_copy_by_its_name_may_be_quantized_in_any_way() -> None:
    args = {"model": "/models/MiniMax-M2.7-AWQ", "quantization": "awq_marlin"}
    report = check(Setup(target=args["model"], args=args, engine_version="0.24.0"))
    codes = {each.code for each in report.findings}
    assert "judged-as-base" in codes
    assert "target-not-quantized" not in codes


def test_a_deprecated_method_can_be_allowed(tmp_path: Path) -> None:
    flags = {"quantization": "experts_int8", "allow_deprecated_quantization": True}
    assert judge(write(tmp_path, "model", BF16), None, "0.19.1", **flags).accepted


def test_every_deprecated_method_was_one() -> None:
    for release in releases():
        known = release.table("spec_fields")["quantization"]["choices"]
        assert {method for method in known if is_deprecated(method, release.version)} <= set(known)
    assert not is_deprecated("fp_quant", get_release("0.13.0").version)


@pytest.mark.parametrize("method", ["gptq", "awq", "fp8", "compressed-tensors"])
def test_a_method_reads_its_own_weights(method: str) -> None:
    assert reads_weights_of(method, method)
    assert not reads_weights_of("bitsandbytes", method)


@pytest.mark.parametrize(
    ("version", "flags", "codes"),
    [
        ("0.16.0", {}, []),
        ("0.16.0", {"enable_prefix_caching": True}, ["hybrid-prefixes-or-drafts"]),
        ("0.17.0", {"enable_prefix_caching": True}, []),
        ("0.27.0", {"enable_chunked_prefill": False}, []),
        ("0.28.0", {"enable_chunked_prefill": False}, ["hybrid-needs-chunked-prefill"]),
        ("0.28.0", {"enable_chunked_prefill": False, "enable_prefix_caching": False}, []),
    ],
)
def test_prefix_caching_of_hybrid_targets(
    tmp_path: Path, version: str, flags: Mapping[str, Any], codes: list[str]
) -> None:
    target = write(tmp_path, "model", HYBRID)
    assert rejections(judge(target, {"method": "ngram", "num_speculative_tokens": 3}, version, **flags)) == codes


def test_classes_that_only_transformers_has(tmp_path: Path) -> None:
    helium = {**LLAMA, "architectures": ["HeliumForCausalLM"], "model_type": "helium"}
    assert judge(write(tmp_path, "helium", helium), None, "0.32.0").accepted
    codegen = {**LLAMA, "architectures": ["CodeGenForCausalLM"], "model_type": "codegen"}
    assert rejections(judge(write(tmp_path, "codegen", codegen), None, "0.32.0")) == ["target-class-unknown"]


def test_remote_code(tmp_path: Path) -> None:
    own = {**LLAMA, "model_type": "not-in-any-library", "auto_map": {"AutoConfig": "configuration.OwnConfig"}}
    target = write(tmp_path, "own", own)
    assert rejections(judge(target, None, "0.32.0")) == ["target-needs-remote-code"]
    assert judge(target, None, "0.32.0", trust_remote_code=True).accepted


def _schemed(bits: int, kind: str, *, size: int | None = 128, inputs: tuple[str, int] | None = None, form: str) -> Any:
    weights = {"num_bits": bits, "type": kind, "strategy": "group", "group_size": size, "symmetric": True}
    taken = inputs and {"type": inputs[0], "num_bits": inputs[1], "strategy": "token", "dynamic": True}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": taken}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}


W4A8 = _schemed(4, "int", inputs=("float", 8), form="pack-quantized")
W8A8 = _schemed(8, "int", size=None, inputs=("int", 8), form="int-quantized")
W4A16 = _schemed(4, "int", form="pack-quantized")
MXFP4 = _schemed(4, "float", size=32, form="mxfp4-pack-quantized")
FP8 = _schemed(8, "float", size=0, inputs=("float", 8), form="float-quantized")
NVFP4 = _schemed(4, "float", size=16, inputs=("float", 4), form="nvfp4-pack-quantized")
UNREAD = _schemed(5, "int", inputs=("int", 5), form="dense")


def test_a_cache_type_that_the_checkpoint_asks_for_is_not_judged_where_no_backend_is_certain(tmp_path: Path) -> None:
    algorithm = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    heads = {"hidden_size": 512, "num_attention_heads": 4, "num_key_value_heads": 4}
    for more, told in (({}, set()), ({"kv_lora_rank": 64}, {"old-gpu-not-judged"})):
        config = {**BF16, **heads, **more, "quantization_config": algorithm}
        target = write(tmp_path, f"{len(more)}", config)
        report = check(
            Setup(target=target, engine_version="0.33.0", device=Device(name="A100-80GB", kind="cuda", count=1))
        )
        assert {each.code for each in report.findings} & {"old-gpu-not-judged", "cache-type-without-backend"} == told


@pytest.mark.parametrize(
    ("weights", "gpu", "version", "code"),
    [
        (W4A8, "A100-80GB", "0.33.0", "gpu-only-for-scheme"),
        (W4A8, "B200", "0.33.0", "gpu-only-for-scheme"),
        (W4A8, "H100", "0.33.0", ""),
        (W4A8, "80GiB", "0.33.0", "gpu-by-memory"),
        (W8A8, "A100-80GB", "0.33.0", ""),
        (W4A16, "T4", "0.11.2", "gpu-too-old-for-weights"),
        (W4A16, "T4", "0.12.0", "old-gpu-not-judged"),
        (W4A16, "V100-32GB", "0.33.0", "gpu-too-old-for-weights"),
        (MXFP4, "T4", "0.33.0", "gpu-too-old-for-weights"),
        (FP8, "A100-80GB", "0.33.0", ""),
        (NVFP4, "T4", "0.15.1", "gpu-too-old-for-weights"),
        (NVFP4, "A100-80GB", "0.15.1", ""),
        (UNREAD, "H100", "0.33.0", "old-gpu-not-judged"),
    ],
)
@pytest.mark.parametrize("role", ["target", "drafter"])
def test_each_scheme_of_target_and_drafter_needs_its_own_capability(
    tmp_path: Path, weights: Any, gpu: str, version: str, code: str, role: str
) -> None:
    quantized = write(tmp_path, "quantized", {**BF16, "quantization_config": weights})
    spec = {"model": quantized, "method": "draft_model", "num_speculative_tokens": 2} if role == "drafter" else None
    target = write(tmp_path, "plain", BF16) if role == "drafter" else quantized
    config = None if spec is None else SpecConfig.keep(spec)
    device = Device(name=gpu, kind="cuda", count=1)
    report = check(Setup(target=target, engine_version=version, device=device, spec=config))
    told = {each.code for each in report.findings if each.code.startswith(("gpu-", "old-gpu-"))}
    assert told == ({code} if code else set())
    assert report.accepted or code


@pytest.mark.parametrize(
    ("size", "dynamic", "loads"),
    [
        (128, {}, False),
        (-1, {}, True),
        (-1, {"+:.*mlp.*": {"group_size": 128}}, False),
        (-1, {"-:.*mlp.*": {"group_size": 128}}, True),
        (-1, {"+:.*mlp.*": {"group_size": 128, "desc_act": False}}, True),
    ],
)
def test_an_activation_order_in_any_rule_of_gptq_no_longer_loads(
    tmp_path: Path, size: int, dynamic: Mapping[str, Any], loads: bool
) -> None:
    packed = {"quant_method": "gptq", "bits": 4, "group_size": size, "desc_act": True, "dynamic": dynamic}
    target = write(tmp_path, "target", {**BF16, "quantization_config": packed})
    for version, taken in (("0.30.0", loads), ("0.29.0", True)):
        assert rejections(judge(target, None, version)) == ([] if taken else ["gptq-activation-order"])


def _packed(bits: int, group: int | None, form: str = "pack-quantized", inputs: dict[str, Any] | None = None) -> Any:
    weights = {"type": "int", "num_bits": bits, "group_size": group, "strategy": "group" if group else "channel"}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}


INT8 = {"type": "int", "num_bits": 8, "strategy": "token", "dynamic": True}
AWQ = {"quant_method": "awq", "zero_point": True, "version": "gemm"}
LAYOUTS = [
    (_packed(4, 128), 1, True),
    (_packed(8, None), 1, True),
    (_packed(8, None, "int-quantized", INT8), 1, True),
    (_packed(8, 128, "int-quantized", INT8), 1, False),
    (_packed(5, 128), 1, False),
    (_packed(4, 100), 1, False),
    (_packed(4, 128, "marlin-24"), 1, False),
    ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}, 1, True),
    ({"quant_method": "gptq", "bits": 3, "group_size": 128, "desc_act": False, "sym": True}, 1, False),
    ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": False}, 1, False),
    ({**AWQ, "bits": 4, "group_size": 128}, 2, True),
    ({**AWQ, "bits": 4, "group_size": 128}, 16, False),  # 1,536 columns, 96 on each GPU
    ({**AWQ, "bits": 4, "group_size": 32}, 16, True),
    ({**AWQ, "bits": 8, "group_size": 128}, 1, False),
]


@pytest.mark.parametrize(
    ("target", "ranks", "outcome"),
    [
        ("Qwen/Qwen2.5-72B-Instruct-AWQ", 8, "accepted"),
        ("Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4", 2, "accepted"),
        ("Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4", 16, "not judged"),
        ("hugging-quants/Qwen2.5-72B-Instruct-AWQ-INT4", 2, "not judged"),
    ],
)
def test_a_publisher_pads_its_own_copies(target: str, ranks: int, outcome: str) -> None:
    args = {"tensor_parallel_size": ranks, "distributed_executor_backend": "mp"}
    assert check(Setup(target=target, engine="vllm", engine_version="0.33.0", args=args)).outcome == outcome


@pytest.mark.parametrize("gpu", [None, "H100"])
@pytest.mark.parametrize("version", ["0.19.1", "0.33.0"])
@pytest.mark.parametrize(("layout", "ranks", "is_usual"), LAYOUTS)
def test_weights_whose_kernel_nobody_has_seen_are_not_accepted(
    layout: dict[str, Any], ranks: int, is_usual: bool, version: str, gpu: str | None, tmp_path: Path
) -> None:
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 2048, "head_dim": 128}
    config |= {"intermediate_size": 1536, "num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 16}
    config |= {"vocab_size": 151936, "max_position_embeddings": 4096, "torch_dtype": "float16"}
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": layout}))
    device = None if gpu is None else Device(name=gpu, kind="cuda", count=ranks)
    args = {"tensor_parallel_size": ranks, "max_num_seqs": 8, "distributed_executor_backend": "mp"}
    setup = Setup(target=str(tmp_path), engine="vllm", engine_version=version, device=device, args=args)
    report = check(setup)
    assert ("weights-kernel-open" in {each.code for each in report.findings}) is not is_usual
    assert report.outcome is (CheckOutcome.ACCEPTED if is_usual else CheckOutcome.NOT_JUDGED), report.findings
