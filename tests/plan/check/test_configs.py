"""Engine flags as the configs of a release take them: bounds, choices, keys of JSON, and what goes together."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.made_checkpoints import LLAMA, write

from draftwise.core import Device, Effect, Ruling
from draftwise.plan.check import judge
from draftwise.setups.read import read_words

NEWEST = "0.33.0"
LENGTH = 2048
"""Tokens of context that a Llama whose config.json says nothing has."""


@pytest.fixture
def llama(tmp_path: Path) -> str:
    return write(tmp_path, "llama", LLAMA)


def refusals(model: str, line: str, version: str) -> list[Ruling]:
    reading = read_words(["vllm", "serve", model, *line.split()], engine_version=version)
    findings = judge(reading).findings
    return [each for each in findings if isinstance(each, Ruling) and each.effect is Effect.REJECTED]


@pytest.mark.parametrize("version", ["0.16.0", "0.19.1", "0.26.0", NEWEST])
@pytest.mark.parametrize(
    "line",
    [
        "-O3", "-O=2", "-O 1",
        "--attention-backend flash_attn", "--compilation-config {\"mode\":3}",
        "-cc.mode=vllm_compile", "-cc.cudagraph_mode=full_and_piecewise",
        "--compilation-config {}", "--gpu-memory-utilization 1",
        "--kv-transfer-config {\"kv_connector\":\"NixlConnector\",\"kv_role\":\"kv_both\"}",
        "--structured-outputs-config.backend guidance --structured-outputs-config.disable_any_whitespace true",
        "--lora-modules sql=/a {\"name\":\"b\",\"path\":\"/b\"}", "-O0 --max-cudagraph-capture-size 0",
        "--max-cudagraph-capture-size 0 -cc.cudagraph_mode=0", "--show-hidden-metrics-for-version 0.32",
        "--hf-overrides {\"rope_theta\":5000.0}", "--limit-mm-per-prompt {\"image\":2}", "--max-num-seqs 1",
    ],
)  # fmt: skip
def test_what_every_release_takes(llama: str, version: str, line: str) -> None:
    assert refusals(llama, line, version) == []


@pytest.mark.parametrize("version", ["0.16.0", "0.19.1", "0.26.0", NEWEST])
@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("--gpu-memory-utilization 95", "config-value", "at most 1"),
        ("--gpu-memory-utilization 0", "config-value", "greater than 0"),
        ("--max-num-seqs 0", "config-value", "at least 1"),
        ("--max-num-batched-tokens 0", "config-value", "at least 1"),
        ("--attention-backend nope", "config-value", "FLASH_ATTN"),
        ("--optimization-level 7", "config-value", "one of 0, 1, 2, 3"),
        ("--hf-overrides foo", "config-value", "an object"),
        ("--compilation-config 3", "flag-json-value", "an object"),
        ("--compilation-config {\"cudagraph_mode\":\"nope\"}", "flag-json-value", "cudagraph_mode"),
        ("-cc.use_cudagraph=false", "flag-json-value", "use_cudagraph is not a key"),
        ("-cc.custom_ops=[\"rms_norm\"]", "flag-json-refused", "Invalid syntax"),
        ("--eplb-config null", "flag-json-value", "an object"),
        ("--kv-transfer-config {\"kv_connector\":\"NixlConnector\"}", "flag-json-refused", "specify kv_role"),
        ("--pooler-config {\"pooling_type\":\"LAST\",\"seq_pooling_type\":\"CLS\"}", "flag-json-refused", "both"),
        ("--pooler-config {\"pooling_type\":\"LAST\",\"tok_pooling_type\":\"ALL\"}", "flag-json-refused", "both"),
        ("--override-generation-config null", "config-value", "an object"),
        ("--structured-outputs-config.backend foo", "flag-json-value", "xgrammar"),
        ("--structured-outputs-config.disable_any_whitespace true", "flag-json-refused", "only supported"),
        ("--limit-mm-per-prompt image=2", "flag-json-invalid", "not JSON"),
        (
            "--limit-mm-per-prompt {\"image\":null}", "config-value",
            "image of --limit-mm-per-prompt must be an integer or an object, got null",
        ),
        ("--enable-auto-tool-choice", "flags-refused", "requires --tool-call-parser"),
        ("--enable-dbo", "microbatches-need-deepep", "all-to-all"),
        ("--default-mm-loras {\"image\":\"/a\"}", "mm-loras-without-media", "LlamaForCausalLM accepts only text"),
        ("--max-cudagraph-capture-size 0", "largest-graph-below-one", "CUDA graphs are on"),
        ("--show-hidden-metrics-for-version newest", "metrics-release-unreadable", "not a version"),
        ("--config-format mistral", "config-format-without-file", "params.json"),
        ("--lora-modules sql=/a sql", "flag-value", "name=path"),
        ("--lora-modules {\"name\":\"a\"}", "flag-value", "the keys name and path"),
    ],
)  # fmt: skip
def test_what_every_release_refuses(llama: str, version: str, line: str, code: str, said: str) -> None:
    found = refusals(llama, line, version)
    assert code in [each.code for each in found]
    assert any(said in each.message for each in found)


def test_flags_that_are_refused_together_are_named(llama: str) -> None:
    found = refusals(llama, "--enable-eplb --seed 1 -tp 2 --worker-extension-cls x.Y", NEWEST)
    assert [each.message.partition(":")[0] for each in found] == ["--enable-eplb"]
    assert found[0].source.startswith("vLLM 0.10.0, vllm/config")


@pytest.mark.parametrize(
    ("version", "line", "code"),
    [
        ("0.19.0", "--distributed-executor-backend foo", "executor-unknown"),
        ("0.22.0", "--kv-transfer-config {\"kv_role\":\"kv_both\"}", "kv-connector-unset"),
        ("0.20.0", "--reasoning-parser foo", "reasoning-parser-unknown"),
        ("0.20.0", "--enable-mamba-cache-stochastic-rounding", "mamba-rounding-needs-float16"),
        ("0.21.0", "--reasoning-config {\"reasoning_parser\":\"foo\"}", "reasoning-parser-unknown"),
        ("0.28.0", "--return-sampling-mask", "sampling-mask-needs-processed"),
        ("0.24.0", "--device-ids 1,1", "flags-refused"),
        ("0.27.0", "--use-replayssm", "target-without-replay"),
        ("0.27.0", "--mamba-ssu-algorithm simple", "config-refused"),
        ("0.32.0", "--mamba-ssu-algorithm simple --mamba-backend triton", "config-refused"),
        ("0.29.0", "--enable-batch-sharded-sampling", "sharded-sampling-unfit"),
        ("0.29.0", "--enable-batch-sharded-sampling -tp 4 --max-num-seqs 2", "sharded-sampling-unfit"),
        ("0.29.0", "--enable-batch-sharded-sampling -tp 4 --max-logprobs -1", "sharded-sampling-unfit"),
        ("0.30.0", "--engram-config {}", "engram-without-layers"),
        ("0.31.0", "--enable-return-routed-experts", "routed-experts-without-experts"),
        ("0.32.0", "--profiler-config.proton_data trace", "flag-json-refused"),
        ("0.32.0", "--mm-processor-device foo", "not-a-choice"),
        ("0.33.0", "--reasoning-effort-map {\"low\":1}", "flags-refused"),
        ("0.33.0", "--reasoning-effort-map {\"lowest\":\"a\"}", "flags-refused"),
        ("0.26.0", "--reasoning-config {}", "reasoning-config-without-parser"),
        ("0.33.0", "--aux-output-config {\"enable_return_routed_experts\":1}", "routed-experts-without-experts"),
    ],
)  # fmt: skip
def test_rules_begin_with_a_release(llama: str, version: str, line: str, code: str) -> None:
    assert [each.code for each in refusals(llama, line, version)] == [code]
    assert code not in [each.code for each in refusals(llama, line, "0.18.0")]


def test_a_config_is_checked_again_only_where_its_function_is_called_again(llama: str) -> None:
    for line in ("--mamba-backend flashinfer --mamba-ssu-algorithm simple", "--mamba-backend triton"):
        assert refusals(llama, line, "0.32.0") == []


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("", "hisparse-without-indexer"),
        ("-pp 2", "hisparse-rejects-ranks"),
        ("-tp 2 -dcp 2", "hisparse-rejects-ranks"),
        ("-cc.cudagraph_mode=full", "hisparse-rejects-full-graphs"),
        ("--no-scheduler-reserve-full-isl", "hisparse-reserves-prompts"),
    ],
)
@pytest.mark.parametrize(
    "asked",
    [
        '--attention-config {"hisparse_config":{}}',
        '--kv-transfer-config {"kv_connector":"HiSparseConnector","kv_role":"kv_both"}',
    ],
)
def test_hisparse_has_its_own_needs(llama: str, asked: str, line: str, code: str) -> None:
    assert code in [each.code for each in refusals(llama, f"{asked} {line}".strip(), "0.32.0")]


def test_a_data_parallel_size_below_two_gives_way_to_the_environment(llama: str) -> None:
    assert refusals(llama, "-dp=-1 -tp 2", "0.20.2") == []
    assert [each.code for each in refusals(llama, "--prefill-context-parallel-size 0", "0.20.2")] == [
        "executor-unknown"
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--ir-op-priority.rms_norm [1]", "a string"),
        ('--kernel-config {"ir_op_priority":{"rms_norm":3}}', "a list"),
        ("--kernel-config.linear_backend_per_quant {}", "of 1 entries or more"),
    ],
)
def test_values_deep_inside_an_object_have_types_and_lengths(llama: str, line: str, said: str) -> None:
    (found,) = refusals(llama, line, "0.33.0")
    assert (found.code, said in found.message) == ("flag-json-value", True)


@pytest.mark.parametrize("line", ["--ir-op-priority.rms_norm NAMES", "--kernel-config.ir_op_priority.rms_norm NAMES"])
@pytest.mark.parametrize(("names", "is_known"), [("native, vllm_c", True), ("native,foo", False)])
def test_implementations_of_the_ir_are_looked_up_when_a_worker_starts(
    llama: str, line: str, names: str, is_known: bool
) -> None:
    words = ["vllm", "serve", llama, *(word.replace("NAMES", names) for word in line.split())]
    report = judge(read_words(words, engine_version="0.33.0"))
    found = {each.code for each in report.findings if isinstance(each, Ruling) and each.effect is Effect.FAILS_LATER}
    assert ("ir-provider-unknown" in found) is not is_known
    assert not refusals(llama, line.replace("NAMES", names.replace(" ", "")), "0.33.0")


WATERMARK = {"key": 1, "algorithm": "dual_key_gumbel"}
HEAD = {"method": "eagle3", "model": "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("spec", "watermark", "expected"),
    [
        ({"draft_sample_method": "probabilistic"}, {}, set()),
        ({}, {}, {"watermark-needs-probabilistic-drafts"}),
        ({"draft_sample_method": "probabilistic"}, {"algorithm": "gumbel"}, {"watermark-algorithm"}),
        ({"draft_sample_method": "probabilistic"},
         {"algorithm": "gumbel", "allow_target_only_watermarking": True}, set()),
        ({"draft_sample_method": "probabilistic", "rejection_sample_method": "block"}, {},
         {"watermark-needs-standard-rejection"}),
        ({"method": "ngram", "prompt_lookup_max": 4, "draft_sample_method": "probabilistic"}, {},
         {"watermark-rejects-method"}),
    ],
)  # fmt: skip
def test_watermarks_go_with_sampled_drafts_of_heads(
    spec: dict[str, object], watermark: dict[str, object], expected: set[str]
) -> None:
    keys = {**HEAD, **spec}
    keys |= {"model": None} if keys["method"] == "ngram" else {}
    line = ["--watermark-config", json.dumps({**WATERMARK, **watermark}), "-sc", json.dumps(keys)]
    report = judge(read_words(["vllm", "serve", "meta-llama/Llama-3.1-8B-Instruct", *line], engine_version="0.33.0"))
    assert {each.code for each in report.findings if each.code.startswith("watermark-")} == expected


@pytest.mark.parametrize("version", ["0.19.1", NEWEST])
@pytest.mark.parametrize(
    ("line", "fits"),
    [
        ("--offload-group-size 2 --offload-num-in-group 3", False),
        ("--offload-group-size 2 --offload-prefetch-step 0", False),
        ("--offload-backend prefetch", False),
        ("--offload-num-in-group 3", True),
        ("--offload-backend prefetch --offload-group-size 8", True),
    ],
)
def test_flags_of_a_config_inside_another_are_judged_by_both(llama: str, version: str, line: str, fits: bool) -> None:
    assert [each.code for each in refusals(llama, line, version)] == ([] if fits else ["config-refused"])


def test_what_is_not_known_refuses_nothing(llama: str) -> None:
    assert refusals(llama, "--device-ids 0,1 --scheduler-cls my.Scheduler --additional-config {}", NEWEST) == []


def test_older_releases_are_left_to_their_own_rules(llama: str) -> None:
    assert refusals(llama, "--gpu-memory-utilization 95", "0.15.1") == []


@pytest.mark.parametrize("version", ["0.9.2", "0.11.0"])
@pytest.mark.parametrize(("factor", "fits"), [(4.0, True), (2.0, False)])
def test_rope_flags_of_old_releases_replace_what_config_json_says(
    llama: str, version: str, factor: float, fits: bool
) -> None:
    scaling = json.dumps({"factor": factor, "rope_type": "linear"}, separators=(",", ":"))
    for flag in (f"--rope-scaling {scaling}", f'--hf-overrides {{"rope_scaling":{scaling}}}'):
        found = [each.code for each in refusals(llama, f"{flag} --max-model-len {4 * LENGTH}", version)]
        assert found == ([] if fits else ["target-too-long"])


@pytest.mark.parametrize(
    ("line", "codes"),
    [
        ("--enable-mamba-cache-stochastic-rounding", ["mamba-rounding-needs-float16"]),
        ("--ubatch-size 2", ["microbatches-need-deepep"]),
        ("--enable-dbo", []),  # vLLM turns it off
    ],
)
def test_what_is_refused_on_a_cpu_too(llama: str, line: str, codes: list[str]) -> None:
    reading = read_words(["vllm", "serve", llama, *line.split()], engine_version=NEWEST)
    setup = replace(reading.setup, device=Device(name="CPU", kind="cpu"))
    found = judge(replace(reading, setup=setup)).findings
    assert [each.code for each in found if isinstance(each, Ruling) and each.effect is Effect.REJECTED] == codes


@pytest.mark.parametrize(("backend", "codes"), [("humming", []), ("nosuch", ["flag-json-value"])])
def test_the_values_of_a_mapping_are_judged(llama: str, backend: str, codes: list[str]) -> None:
    line = f'--kernel-config {{"linear_backend_per_quant":{{"nvfp4_w4a16":"{backend}"}}}}'
    assert [each.code for each in refusals(llama, line, NEWEST)] == codes
