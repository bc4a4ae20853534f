"""What is judged of a copy, and of a model of which the architecture alone is known."""

import json
import shlex
from pathlib import Path

import pytest

from draftwise.core import CheckOutcome, Device, Effect, Ruling, Setup, SpecConfig
from draftwise.knowledge.models import find_model, read_names
from draftwise.plan.check import Report, check
from draftwise.plan.check import judge as judge_reading
from draftwise.setups.read import read_words


def judge(target: str, spec: dict[str, object] | None = None, version: str = "0.33.0", **args: object) -> Report:
    setup = Setup(
        target=target,
        engine="vllm",
        engine_version=version,
        spec=None if spec is None else SpecConfig.keep(spec),
        args=args,
    )
    return check(setup)


def codes(report: Report, *effects: Effect) -> set[str]:
    found = (each for each in report.findings if isinstance(each, Ruling) and (not effects or each.effect in effects))
    return {each.code for each in found}


MTP = {"method": "mtp", "num_speculative_tokens": 2}


@pytest.mark.parametrize(
    "copy",
    [
        "Qwen/Qwen3-Next-80B-A3B-Instruct-FP8",
        "nvidia/Qwen3-Next-80B-A3B-Instruct-NVFP4",
        "x/Qwen3-Next-80B-A3B-Instruct-AWQ",
    ],
)
def test_a_copy_is_rejected_where_its_base_is_and_the_answer_names_the_base(copy: str) -> None:
    base = judge("Qwen/Qwen3-Next-80B-A3B-Instruct", MTP, enable_chunked_prefill=False)
    report = judge(copy, MTP, enable_chunked_prefill=False)
    assert codes(report, Effect.REJECTED) == codes(base, Effect.REJECTED) != set()
    told = next(each for each in report.findings if each.code == "judged-as-base")
    assert "Qwen/Qwen3-Next-80B-A3B-Instruct" in told.message


def test_whether_a_copy_kept_its_modules_is_said_to_be_unknown_where_they_are_to_draft() -> None:
    assert "copy-modules-unknown" in codes(judge("x/GLM-4.5-AWQ", MTP), Effect.UNKNOWN)
    assert "copy-modules-unknown" not in codes(judge("zai-org/GLM-4.5-FP8", MTP))
    assert "copy-modules-unknown" not in codes(judge("x/GLM-4.5-AWQ", {"method": "ngram", "num_speculative_tokens": 2}))
    assert "copy-modules-unknown" not in codes(judge("x/Qwen3-8B-AWQ", MTP)), "it has none, and is refused"
    apart = codes(judge("x/gemma-4-26B-A4B-it-AWQ", MTP | {"model": "google/gemma-4-26B-A4B-it-assistant"}))
    assert apart.isdisjoint({"copy-modules-unknown", "quantized-copy-without-mtp"})


@pytest.mark.parametrize(("version", "is_open"), [("0.27.1", True), ("0.28.0", False)])
def test_a_published_drafter_whose_class_the_release_lacks_is_not_accepted(version: str, is_open: bool) -> None:
    spec = {"method": "dflash", "model": "z-lab/Qwen3.8-27B-DFlash2", "num_speculative_tokens": 7}
    report = judge("Qwen/Qwen3.8-27B", spec, version=version)
    assert ("drafter-class-unknown" in codes(report, Effect.UNKNOWN)) == is_open
    assert report.accepted is None


@pytest.mark.parametrize("target", ["Qwen/Qwen3-8B", "RedHatAI/Qwen3-8B-FP8-dynamic"])
def test_a_directory_of_the_hub_s_cache_has_the_name_of_its_model(target: str) -> None:
    report = judge(f"/c/hub/models--{target.replace('/', '--')}/snapshots/0123456789", None)
    assert "target-not-here" not in codes(report)
    assert report.accepted


def test_a_gguf_copy_needs_what_a_gguf_file_needs() -> None:
    assert "gguf-needs-plugin" in codes(judge("unsloth/Qwen3-8B-GGUF"))


def test_a_name_is_judged_by_its_architecture_and_the_rest_is_said_to_be_unknown() -> None:
    report = judge("zai-org/GLM-4.6", MTP)
    assert "target-partly-known" in codes(report)
    assert not codes(report, Effect.REJECTED)
    head = {"method": "mtp", "num_speculative_tokens": 1}
    assert "drafter-fits-no-method" in codes(judge("Qwen/Qwen2.5-Math-7B-Instruct", head), Effect.REJECTED)
    assert "target-class-unknown" in codes(judge("inclusionAI/Ling-3.0-flash-VL", version="0.11.0"), Effect.REJECTED)


def test_nothing_that_depends_on_more_than_the_architecture_is_said_of_a_name() -> None:
    """Sizes, context and quantization of a model that is only a name never decide, in whatever release."""
    told = {
        "target-too-long",
        "target-quantization-differs",
        "target-untyped",
        "target-type-unknown",
        "batch-below-context",
    }
    for model in read_names()[::40]:
        for version in ("0.11.0", "0.33.0"):
            report = judge(model.id, MTP, version, max_model_len=10**7, quantization="fp8", tensor_parallel_size=7)
            assert codes(report).isdisjoint(told), model.id
            assert report.resolved is None or report.resolved.draft_architectures is None


@pytest.mark.parametrize("version", ["0.25.0", "0.29.0", "0.33.0"])
@pytest.mark.parametrize("target", ["deepseek-ai/DeepSeek-V4-Flash", "deepseek-ai/DeepSeek-V4-Pro", "Qwen/Qwen3-8B"])
@pytest.mark.parametrize("has_stages", [True, False])
def test_modules_of_the_other_kind_fail_while_they_load(
    tmp_path: Path, target: str, version: str, has_stages: bool
) -> None:
    known = find_model(target)
    assert known is not None
    stages = {"dspark_target_layer_ids": [1, 2, 3], "dspark_block_size": 5, "dspark_noise_token_id": 7}
    (tmp_path / "config.json").write_text(json.dumps({**known.config, **(stages if has_stages else {})}))
    for method, code in (("dspark", "dspark-stages-missing"), ("mtp", "mtp-over-dspark-stages")):
        report = judge(str(tmp_path), {"method": method, "num_speculative_tokens": 5}, version)
        is_wrong = has_stages == (method == "mtp") and (method == "dspark" or "DeepSeek" in target)
        assert (code in codes(report)) == is_wrong
        assert not is_wrong or report.outcome is CheckOutcome.FAILS_LATER


@pytest.mark.parametrize("target", ["nobody/knows", "Qwen/Qwen3-4B-Thinking-2507", "Qwen/Qwen3-8B"])
@pytest.mark.parametrize(
    ("args", "code"),
    [
        ({"pipeline_parallel_size": 0}, "parallel-size-not-positive"),
        ({"max_model_len": -7}, "target-length-not-positive"),
    ],
)
def test_what_no_model_can_mend_is_rejected_of_unknown_ones_too(target: str, args: dict[str, object], code: str):
    assert code in codes(judge(target, **args), Effect.REJECTED)
    assert not codes(judge(target, pipeline_parallel_size=1, max_model_len=2048, quantization="fp8"), Effect.REJECTED)


@pytest.mark.parametrize(
    ("target", "version", "code"),
    [
        ("Qwen/Qwen3-8B", "0.32.0", "target-quantization-unknown"),
        ("Qwen/Qwen3-4B-Thinking-2507", "0.32.0", "target-quantization-unknown"),
        ("nobody/knows", "0.9.2", "target-quantization-unknown"),
        ("nobody/knows", "0.32.0", "quantization-may-be-replaced"),
        ("/models/qwen3-8b-autoround", "0.27.1", "quantization-may-be-replaced"),
    ],
)
def test_a_quantization_that_no_release_has_is_open_where_the_checkpoint_may_replace_it(
    target: str, version: str, code: str
) -> None:
    report = judge(target, version=version, quantization="auto_round")
    found = codes(report) & {"target-quantization-unknown", "quantization-may-be-replaced"}
    assert found == {code}
    assert report.accepted is (None if code == "quantization-may-be-replaced" else False)


@pytest.mark.parametrize(
    ("words", "version", "code"),
    [
        ("vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct --disable-hybrid-kv-cache-manager", "0.26.0", True),
        ("vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct --disable-hybrid-kv-cache-manager", "0.27.0", False),
        ("vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct --no-disable-hybrid-kv-cache-manager", "0.26.0", False),
        ("vllm serve google/gemma-3-27b-it --disable-hybrid-kv-cache-manager", "0.26.0", False),
    ],
)
def test_a_hybrid_needs_its_cache_manager(words: str, version: str, code: bool) -> None:
    report = judge_reading(read_words(words.split(), engine_version=version))
    assert ("hybrid-needs-its-cache-manager" in codes(report)) is code


@pytest.mark.parametrize(("version", "accepted"), [("0.10.2", None), ("0.11.0", False), ("0.11.1", True)])
def test_a_request_for_the_old_engine_is_not_taken_for_nothing(version: str, accepted: bool | None) -> None:
    report = judge_reading(read_words(["VLLM_USE_V1=0", "vllm", "serve", "Qwen/Qwen3-8B"], engine_version=version))
    assert report.accepted is accepted


def test_the_quantization_of_an_unknown_drafter_must_be_one() -> None:
    spec = {"method": "eagle3", "model": "nobody/head", "num_speculative_tokens": 3}
    assert "drafter-quantization-unknown" in codes(judge("Qwen/Qwen3-8B", {**spec, "quantization": "nope"}))
    assert "drafter-quantization-unknown" not in codes(judge("Qwen/Qwen3-8B", {**spec, "quantization": "fp8"}))


def test_quantized_weights_do_not_run_in_float32_and_those_of_modelopt_keep_their_method() -> None:
    assert "quantized-in-float32" in codes(judge("deepseek-ai/DeepSeek-R1", dtype="float32"), Effect.REJECTED)
    assert "quantized-in-float32" not in codes(judge("deepseek-ai/DeepSeek-R1", dtype="bfloat16"))
    assert "quantized-in-float32" not in codes(judge("Qwen/Qwen3-8B", dtype="float32"))
    own = judge("nvidia/MiniMax-M2.5-NVFP4", quantization="fbgemm_fp8", version="0.32.0")
    assert "target-quantization-differs" not in codes(own)
    assert "target-quantization-differs" in codes(judge("deepseek-ai/DeepSeek-R1", quantization="awq"))


ARCTIC = {
    "method": "arctic",
    "model": "Snowflake/Arctic-LSTM-Speculator-Llama-3.1-8B-Instruct",
    "num_speculative_tokens": 3,
}


@pytest.mark.parametrize("spec", [ARCTIC, {**ARCTIC, "enable_suffix_decoding": True}])
@pytest.mark.parametrize(
    ("version", "installed", "outcome"),
    [
        ("0.11.0", {"arctic-inference"}, CheckOutcome.NOT_JUDGED),
        ("0.18.0", {"arctic-inference"}, CheckOutcome.NOT_JUDGED),
        ("0.33.0", {"arctic-inference"}, CheckOutcome.REJECTED),
        ("0.11.0", set(), CheckOutcome.REJECTED),
    ],
)
def test_the_plugin_method_is_judged_by_nobody_where_the_plugin_is(
    spec: dict[str, object], version: str, installed: set[str], outcome: CheckOutcome
) -> None:
    target = "meta-llama/Llama-3.1-8B-Instruct"
    setup = Setup(target=target, engine="vllm", engine_version=version, spec=SpecConfig.keep(spec))
    report = check(setup, installed=frozenset(installed))
    assert report.outcome is outcome
    assert ("plugin-reads-config" in codes(report)) == (outcome is CheckOutcome.NOT_JUDGED)


@pytest.mark.parametrize(
    ("target", "outcome", "code"),
    [
        ("Qwen/Qwen3-8B", CheckOutcome.REJECTED, "config-format-without-file"),
        ("meta-llama/Llama-3.1-8B-Instruct", CheckOutcome.REJECTED, "config-format-without-file"),
        ("mistralai/Mistral-7B-Instruct-v0.3", CheckOutcome.NOT_JUDGED, "config-format-file-unknown"),
    ],
)
def test_the_format_of_mistral_needs_a_file_that_only_some_models_have(
    target: str, outcome: CheckOutcome, code: str
) -> None:
    report = judge(target, config_format="mistral")
    assert (report.outcome, code in {each.code for each in report.findings}) == (outcome, True)
    assert judge(target, config_format="auto").outcome is CheckOutcome.ACCEPTED


@pytest.mark.parametrize(("version", "is_read_so"), [("0.33.0", True), ("0.13.0", True), ("0.12.0", False)])
def test_a_drafter_is_read_in_the_format_of_the_target(version: str, is_read_so: bool) -> None:
    spec = {"method": "draft_model", "model": "meta-llama/Llama-3.2-1B-Instruct", "num_speculative_tokens": 3}
    report = judge("mistralai/Mistral-7B-Instruct-v0.3", spec, version, config_format="mistral")
    assert ("drafter-format-without-file" in {each.code for each in report.findings}) is is_read_so


@pytest.mark.parametrize("version", ["0.20.0", "0.26.0", "0.32.0"])
@pytest.mark.parametrize("method", ["medusa", "eagle", "eagle3"])
def test_a_language_model_is_no_head(method: str, version: str) -> None:
    name = "meta-llama/Llama-3.1-8B-Instruct"
    report = judge(name, {"method": method, "model": name, "num_speculative_tokens": 3}, version)
    assert "head-is-whole-model" in codes(report, Effect.FAILS_LATER) or report.outcome is CheckOutcome.REJECTED
    as_draft = judge(name, {"method": "draft_model", "model": name, "num_speculative_tokens": 3}, version)
    assert "head-is-whole-model" not in {each.code for each in as_draft.findings}


@pytest.mark.parametrize(("version", "is_read"), [("0.19.1", False), ("0.20.0", True), ("0.33.0", True)])
def test_a_type_of_transformers_that_the_release_cannot_read_is_refused(version: str, is_read: bool) -> None:
    refused = codes(judge("deepseek-ai/DeepSeek-V4-Pro", None, version), Effect.REJECTED)
    assert ("target-type-unknown" in refused) is not is_read


def test_a_medusa_that_states_only_its_heads_is_no_language_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_heads": 4}')
    spec = {"method": "medusa", "model": str(tmp_path), "num_speculative_tokens": 3}
    report = judge("meta-llama/Llama-3.1-8B-Instruct", spec, "0.32.0")
    assert report.outcome is CheckOutcome.ACCEPTED


def judge_line(line: str, version: str) -> Report:
    return judge_reading(read_words(shlex.split(line), engine_version=version))


@pytest.mark.parametrize(
    ("version", "k", "ranks", "more", "code"),
    [
        ("0.11.1", 2, 4, "", "graph-sizes-and-ranks"),
        ("0.11.1", 2, 8, "", "graph-sizes-and-ranks"),
        ("0.11.1", 3, 2, "", ""),
        ("0.11.1", 2, 1, "", ""),
        ("0.11.1", 2, 4, "--enforce-eager", ""),
        ("0.11.2", 2, 4, "", ""),
        (
            "0.19.1",
            2,
            4,
            '--compilation-config {"pass_config":{"enable_sp":true}}',
            "graph-sizes-and-sequence-parallel",
        ),
        ("0.19.1", 2, 4, '--compilation-config {"pass_config":{"enable_sp":false}}', ""),
        ("0.32.0", 2, 4, '--compilation-config {"pass_config":{"enable_sp":true}}', ""),
    ],
)
def test_graph_sizes_are_multiples_of_the_draft_and_of_the_ranks(
    version: str, k: int, ranks: int, more: str, code: str
) -> None:
    spec = json.dumps({"method": "ngram", "num_speculative_tokens": k, "prompt_lookup_max": 4})
    quoted = shlex.join(more.split())
    report = judge_line(f"vllm serve Qwen/Qwen3-8B -tp {ranks} {quoted} --speculative-config '{spec}'", version)
    assert {each.code for each in report.findings if each.code.startswith("graph-sizes-and")} == ({code} - {""})
    assert (report.outcome is CheckOutcome.FAILS_LATER) is bool(code)


@pytest.mark.parametrize(
    "line", ["vllm serve Qwen/Qwen3-8B --quantization ascend", "vllm serve ORG/W8A8 --quantization=ascend"]
)
def test_a_quantization_of_a_plugin_is_judged_by_nobody(line: str) -> None:
    report = judge_line(line, "0.18.0")
    assert report.outcome is CheckOutcome.NOT_JUDGED
    assert "quantization-of-plugin" in {each.code for each in report.findings}
    assert judge_line(line.replace("ascend", "ascent"), "0.18.0").outcome is CheckOutcome.REJECTED


def test_a_variable_that_turns_a_plugin_on_says_that_it_is_there() -> None:
    spec = json.dumps({"method": "arctic", "model": "ORG/LSTM", "num_speculative_tokens": 3})
    line = f"vllm serve meta-llama/Llama-3.1-8B-Instruct --speculative-config '{spec}'"
    assert judge_line(line, "0.9.2").outcome is CheckOutcome.REJECTED
    with_plugin = judge_line(f"ARCTIC_INFERENCE_ENABLED=1 {line}", "0.9.2")
    assert with_plugin.outcome is CheckOutcome.NOT_JUDGED
    assert [each.code for each in with_plugin.defects] == ["arctic-speculator-sizes"]


@pytest.mark.parametrize(
    ("given", "version", "outcome"),
    [
        ("--enable-shift-parallel --ulysses-sequence-parallel-size 2", "0.9.2", CheckOutcome.NOT_JUDGED),
        ("--enable-shift-paralel", "0.9.2", CheckOutcome.REJECTED),
        ('--speculative-config \'{"method": "suffix"}\'', "0.9.2", CheckOutcome.NOT_JUDGED),
        ('--speculative-config \'{"method": "sufix"}\'', "0.9.2", CheckOutcome.REJECTED),
    ],
)
def test_flags_and_methods_of_a_plugin_are_not_vllms(given: str, version: str, outcome: CheckOutcome) -> None:
    line = f"ARCTIC_INFERENCE_ENABLED=1 vllm serve meta-llama/Llama-3.1-8B-Instruct {given}"
    assert judge_line(line, version).outcome is outcome


def test_a_drafter_served_as_the_model_fails_later(tmp_path: Path) -> None:
    head = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 64}
    (tmp_path / "head").mkdir()
    (tmp_path / "head" / "config.json").write_text(json.dumps(head))
    report = check(Setup(target=str(tmp_path / "head"), engine_version="0.33.0"))
    assert (report.outcome, "target-is-drafter" in codes(report)) == (CheckOutcome.FAILS_LATER, True)
    (tmp_path / "head" / "config.json").write_text(json.dumps({**head, "architectures": ["LlamaForCausalLM"]}))
    assert "target-is-drafter" not in codes(check(Setup(target=str(tmp_path / "head"), engine_version="0.33.0")))


@pytest.mark.parametrize(("version", "is_known"), [("0.32.0", True), ("0.33.0", False)])
def test_a_type_of_vllm_s_own_is_known_while_a_release_has_it(tmp_path: Path, version: str, is_known: bool) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "medusa"}))
    spec = {"method": "step3p5_mtp", "model": str(tmp_path), "num_speculative_tokens": 4}
    assert ("drafter-type-unknown" not in codes(judge("Qwen/Qwen3-8B", spec, version))) is is_known


@pytest.mark.parametrize(
    ("given", "gpu", "code"),
    [
        ({"dtype": "bfloat16"}, "T4", "gpu-without-bfloat16"),
        ({"dtype": "bfloat16"}, "A10", ""),
        ({"dtype": "half"}, "V100-32GB", ""),
        ({"quantization": "fp8"}, "V100-32GB", "gpu-too-old-for-weights"),
        ({"quantization": "fp8"}, "T4", ""),
        ({"kv_cache_dtype": "fp8"}, "T4", "cache-type-without-backend"),
        ({"kv_cache_dtype": "fp8_e4m3"}, "A100-80GB", ""),
        ({"kv_cache_dtype": "fp8_e4m3", "attention_backend": "TRITON_ATTN"}, "A100-80GB", "cache-type-without-backend"),
        ({"kv_cache_dtype": "fp8"}, "H100", ""),
        ({"kv_cache_dtype": "fp8"}, "80GiB", "gpu-by-memory"),
        ({"kv_cache_dtype": "nvfp4"}, "H100", ""),
        ({"kv_cache_dtype": "nvfp4_4over6"}, "H100", "cache-type-without-backend"),
        ({"kv_cache_dtype": "int8_per_token_head"}, "A100-80GB", ""),
        ({"quantization": "fp8"}, "24GiB", "gpu-by-memory"),
        ({}, "24GiB", ""),
        ({"quantization": "fp8_per_tensor"}, "V100-32GB", "gpu-too-old-for-weights"),
    ],
)
def test_what_old_gpus_cannot_compute(given: dict[str, object], gpu: str, code: str) -> None:
    assert _about_gpu("Qwen/Qwen3-8B", "0.33.0", gpu, given) == ({code} if code else set())


def _about_gpu(target: str, version: str, gpu: str, given: dict[str, object]) -> set[str]:
    device = Device(name=gpu, kind="cuda", count=1)
    found = codes(check(Setup(target=target, engine_version=version, device=device, args=given)))
    return {code for code in found if code.startswith(("gpu-", "old-gpu-", "cache-type-without"))}


@pytest.mark.parametrize(
    ("target", "version", "gpu", "code"),
    [
        ("Qwen/Qwen3-8B-FP8", "0.13.0", "T4", "gpu-too-old-for-weights"),
        ("Qwen/Qwen3-8B-FP8", "0.14.0", "T4", ""),
        ("Qwen/Qwen3-8B-FP8", "0.14.0", "V100-32GB", "gpu-too-old-for-weights"),
        ("Qwen/Qwen3-8B-AWQ", "0.19.1", "V100-32GB", "gpu-too-old-for-weights"),
        ("Qwen/Qwen3-8B-AWQ", "0.33.0", "T4", ""),
        ("nvidia/Qwen3-8B-FP8", "0.26.0", "A100-80GB", "gpu-too-old-for-weights"),
        ("nvidia/Qwen3-8B-FP8", "0.27.0", "A100-80GB", ""),
        ("nvidia/Qwen3-8B-FP4", "0.26.0", "A100-80GB", ""),
        ("nvidia/Qwen3-8B-FP4", "0.13.0", "T4", "gpu-too-old-for-weights"),
        ("openai/gpt-oss-20b", "0.33.0", "T4", "gpu-too-old-for-weights"),
        ("openai/gpt-oss-20b", "0.33.0", "A100-80GB", ""),
        ("RedHatAI/Qwen3-8B-FP8-dynamic", "0.33.0", "T4", "old-gpu-not-judged"),
        ("RedHatAI/Qwen3-8B-FP8-dynamic", "0.33.0", "L4", ""),
        ("someone/Qwen3-8B-FP8", "0.33.0", "T4", "old-gpu-not-judged"),
        ("someone/Qwen3-8B-FP8", "0.33.0", "H100", ""),
        ("someone/Qwen3-8B-FP8", "0.33.0", "48GiB", "gpu-by-memory"),
    ],
)
def test_a_quantization_needs_the_capability_of_its_release(target: str, version: str, gpu: str, code: str) -> None:
    assert _about_gpu(target, version, gpu, {}) == ({code} if code else set())


@pytest.mark.parametrize(
    ("kind", "backend", "gpu", "version", "code"),
    [
        ("fp8", None, "T4", "0.20.0", "old-gpu-not-judged"),
        ("fp8", None, "V100-32GB", "0.24.0", "cache-type-without-backend"),
        ("fp8", None, "A100-80GB", "0.11.0", "old-gpu-not-judged"),
        ("fp8", None, "L40S", "0.11.0", "old-gpu-not-judged"),
        ("fp8", None, "H100", "0.11.0", ""),
        ("fp8_e5m2", None, "H100", "0.10.2", "old-gpu-not-judged"),
        ("nvfp4", None, "H100", "0.28.0", "cache-type-without-backend"),
        ("nvfp4", None, "B200", "0.28.0", ""),
        ("fp8", "FLEX_ATTENTION", "H100", "0.33.0", "cache-type-without-backend"),
    ],
)
def test_a_kv_cache_needs_a_backend_that_its_release_has_for_the_gpu(
    kind: str, backend: str | None, gpu: str, version: str, code: str
) -> None:
    given: dict[str, object] = {"kv_cache_dtype": kind, **({"attention_backend": backend} if backend else {})}
    assert _about_gpu("Qwen/Qwen3-8B", version, gpu, given) == ({code} if code else set())


@pytest.mark.parametrize("target", ["openai/gpt-oss-20b", "google/gemma-3-27b-it", "google/gemma-4-31B-it"])
def test_targets_with_fewer_backends_are_not_judged_where_only_flashinfer_is_left(target: str) -> None:
    given: dict[str, object] = {"kv_cache_dtype": "fp8"}
    assert _about_gpu(target, "0.33.0", "A100-80GB", given) == {"old-gpu-not-judged"}
    assert _about_gpu(target, "0.33.0", "H100", given) == set()


def test_multi_head_latent_attention_has_backends_of_its_own() -> None:
    for gpu, code in (("A100-80GB", "cache-type-without-backend"), ("H100", ""), ("B200", "")):
        assert _about_gpu("deepseek-ai/DeepSeek-R1", "0.33.0", gpu, {"kv_cache_dtype": "fp8"}) == ({code} - {""})
    assert _about_gpu("deepseek-ai/DeepSeek-V3.2", "0.33.0", "A100-80GB", {"kv_cache_dtype": "fp8"}) == {
        "old-gpu-not-judged"
    }
