"""What a speculative config becomes: tokens, lookup bounds, GPUs, lengths, sampling; and what it is refused for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.made_checkpoints import DEEPSEEK, DFLASH, DSPARK, EAGLE3, LLAMA, MEDUSA, judge, rejections, write

from draftwise.plan.check import Report

SYNTHETIC = {"method": "ngram", "num_speculative_tokens": 3, "rejection_sample_method": "synthetic"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a target and a drafter of each kind, whose names give no hint."""
    folder = tmp_path_factory.mktemp("checkpoints")
    configs = {
        "llama": LLAMA, "small": LLAMA, "other": {**LLAMA, "vocab_size": 1024}, "head": EAGLE3, "medusa": MEDUSA,
        "deepseek": DEEPSEEK, "two-steps": {**DEEPSEEK, "num_nextn_predict_layers": 2}, "blocks": DFLASH,
        "no-steps": {**DEEPSEEK, "num_nextn_predict_layers": 0},
        "semi": DSPARK, "short": {**LLAMA, "max_position_embeddings": 512}, "gpt": {**LLAMA, "model_type": "gpt2"},
        "fp8": {**LLAMA, "quantization_config": {"quant_method": "fp8"}}, "no-names": {**LLAMA, "architectures": None},
    }  # fmt: skip
    for name, config in configs.items():
        write(folder, name, config)
    return folder


def run(
    folder: Path, spec: Mapping[str, Any], version: str = "0.32.0", *, target: str = "llama", **flags: Any
) -> Report:
    model = spec.get("model")
    full = {**spec, "model": str(folder / model)} if isinstance(model, str) and (folder / model).is_dir() else spec
    return judge(str(folder / target), full, version, **flags)


def values(report: Report, *names: str) -> tuple[Any, ...]:
    assert report.resolved is not None, rejections(report)
    return tuple(asdict(report.resolved)[name] for name in names)


# ---- tokens


@pytest.mark.parametrize(
    ("spec", "version", "codes"),
    [
        ({"method": "ngram"}, "0.32.0", ["tokens-missing"]),
        ({}, "0.32.0", ["tokens-missing"]),
        ({"num_speculative_tokens": 3}, "0.32.0", ["model-missing"]),
        ({"method": "mtp"}, "0.32.0", ["tokens-missing"]),
        ({"method": "eagle3", "model": "head"}, "0.17.0", ["tokens-missing"]),
        ({"method": "eagle3", "model": "head"}, "0.16.0", ["tokens-missing-type-error"]),
        ({"method": "mtp", "model": "deepseek"}, "0.33.0", ["mtp-needs-tokens"]),
        ({"method": "dspark", "model": "semi"}, "0.30.0", ["tokens-missing"]),
        ({"method": "mtp", "model": "two-steps", "num_speculative_tokens": 3}, "0.32.0", ["tokens-not-divisible"]),
        ({"method": "mtp", "model": "two-steps", "num_speculative_tokens": 1}, "0.32.0", []),
        ({"method": "mtp", "model": "no-steps", "num_speculative_tokens": 1}, "0.32.0", ["drafter-predicts-nothing"]),
        ({"method": "mtp", "model": "two-steps", "num_speculative_tokens": 4}, "0.32.0", []),
    ],
)
def test_the_number_of_tokens(folder: Path, spec: Mapping[str, Any], version: str, codes: list[str]) -> None:
    assert rejections(run(folder, spec, version)) == codes


def test_tokens_that_are_filled_in(folder: Path) -> None:
    assert values(run(folder, {"method": "suffix"}), "num_speculative_tokens") == (24,)
    assert values(run(folder, {"method": "dspark", "model": "semi"}), "num_speculative_tokens") == (7,)


# ---- DSpark

OMNI_ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64}
OMNI = {
    "architectures": ["Qwen3OmniMoeForConditionalGeneration"], "model_type": "qwen3_omni_moe",
    "text_config": {**LLAMA, **OMNI_ATTENTION, "model_type": "qwen3_omni_moe_text"},
}  # fmt: skip
OMNI_DRAFTER = {
    **DSPARK, **OMNI_ATTENTION, "architectures": ["Qwen3OmniDSparkModel"], "target_hidden_size": 256,
    "target_layer_ids": [1, 2], "use_aux_hidden_state": True, "markov_rank": 8, "markov_head_type": "vanilla",
}  # fmt: skip


@pytest.mark.parametrize(
    ("architecture", "model_type", "version", "runs_as"),
    [
        ("DSparkDraftModel", "qwen3", "0.28.0", "DSparkDraftModel"),
        ("DSparkDraftModel", "qwen3", "0.29.0", "Qwen3DSparkModel"),
        ("DSparkDraftModel", "llama", "0.29.0", "DSparkDraftModel"),
        ("Qwen3DSparkModel", "qwen3", "0.29.0", "Qwen3DSparkModel"),
        ("DFlashDraftModel", "qwen3", "0.29.0", "DSparkDraftModel"),
    ],
)
def test_the_class_of_a_block_drafter(
    tmp_path: Path, architecture: str, model_type: str, version: str, runs_as: str
) -> None:
    target = write(tmp_path, "llama", LLAMA)
    drafter = write(tmp_path, "semi", {**DSPARK, "architectures": [architecture], "model_type": model_type})
    report = judge(target, {"method": "dspark", "model": drafter, "num_speculative_tokens": 7}, version)
    assert values(report, "draft_architectures") == ((runs_as,),)


@pytest.mark.parametrize(
    ("changed", "tokens", "fault"),
    [
        ({}, 7, None),
        ({"architectures": ["Qwen3DSparkModel"]}, 7, "is not a Qwen3OmniDSparkModel"),
        ({}, 6, "has a block size of 7"),
        ({"target_hidden_size": 128}, 7, "has target_hidden_size 128, and the target 256"),
        ({"num_attention_heads": 8}, 7, "has num_attention_heads 8"),
        ({"target_layer_ids": [2, 1]}, 7, "needs target_layer_ids"),
        ({"use_aux_hidden_state": False}, 7, "needs use_aux_hidden_state true"),
        ({"markov_rank": None}, 7, "needs a markov_rank"),
        ({"markov_head_type": "other"}, 7, "needs a markov_rank"),
        ({"sample_from_anchor": False}, 7, "needs sample_from_anchor true"),
        ({"dspark_bonus_anchor": True}, 7, "needs sample_from_anchor true"),
    ],
)
def test_the_contract_of_a_drafter_for_qwen3_omni(
    tmp_path: Path, changed: Mapping[str, Any], tokens: int, fault: str | None
) -> None:
    drafter = write(tmp_path, "semi", {**OMNI_DRAFTER, **changed})
    spec = {"method": "dspark", "model": drafter, "num_speculative_tokens": tokens}
    told = {
        version: [
            each.message
            for each in judge(write(tmp_path / version, "omni", OMNI), spec, version).findings
            if each.code == "dspark-omni-contract"
        ]
        for version in ("0.28.0", "0.29.0")
    }
    assert told["0.28.0"] == []
    assert len(told["0.29.0"]) == (fault is not None)
    assert fault is None or f"The drafter {fault}" in told["0.29.0"][0]


# ---- lookup


@given(
    low=st.none() | st.integers(1, 9),
    high=st.none() | st.integers(1, 9),
    method=st.sampled_from(["ngram", "ngram_gpu"]),
)
def test_lookup_bounds_fill_each_other(folder: Path, low: int | None, high: int | None, method: str) -> None:
    given_bounds = {"prompt_lookup_min": low, "prompt_lookup_max": high}
    spec = {"method": method, "num_speculative_tokens": 3, **{k: v for k, v in given_bounds.items() if v is not None}}
    report = run(folder, spec)
    if low is not None and high is not None and low > high:
        assert rejections(report) == ["lookup-min-above-max"]
    else:
        bounds = values(report, "prompt_lookup_min", "prompt_lookup_max")
        assert bounds == (low or high or 5, high or low or 5)


def test_other_methods_have_no_lookup_bounds(folder: Path) -> None:
    spec = {"method": "eagle3", "model": "head", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
    assert values(run(folder, spec), "prompt_lookup_min", "prompt_lookup_max") == (0, 0)


# ---- drafter


@pytest.mark.parametrize(
    ("spec", "version", "codes"),
    [
        ({"method": "draft_model", "model": "other"}, "0.32.0", ["vocabulary-sizes-differ"]),
        ({"method": "draft_model", "model": "other"}, "0.14.1", ["draft-model-refused"]),
        ({"method": "draft_model", "model": "other", "use_heterogeneous_vocab": True}, "0.32.0", []),
        ({"method": "eagle", "model": "head"}, "0.32.0", ["drafter-class-missing"]),
        ({"method": "eagle", "model": "head"}, "0.14.1", []),
        ({"method": "dflash", "model": "small"}, "0.32.0", ["drafter-class-missing"]),
        ({"method": "dflash", "model": "blocks"}, "0.20.0", []),
        ({"method": "eagle3", "model": "head", "max_model_len": 4096}, "0.32.0", ["drafter-too-long"]),
        ({"method": "eagle3", "model": "head", "max_model_len": 4096}, "0.20.0", ["draft-longer-than-model"]),
        ({"method": "draft_model", "model": "fp8", "quantization": "awq"}, "0.32.0", ["drafter-quantization-differs"]),
        (
            {"method": "draft_model", "model": "small", "quantization": "zip"},
            "0.32.0",
            ["drafter-quantization-unknown"],
        ),
        (
            {"method": "draft_model", "model": "no-names"},
            "0.11.0",
            ["draft-model-refused", "drafter-without-architectures"],
        ),
    ],
)
def test_drafters_that_do_not_fit(folder: Path, spec: Mapping[str, Any], version: str, codes: list[str]) -> None:
    assert rejections(run(folder, {**spec, "num_speculative_tokens": 3}, version)) == codes


def test_architectures_are_renamed_for_heads(folder: Path) -> None:
    def architecture(method: str, model: str) -> tuple[str, ...]:
        spec = {"method": method, "model": model, "num_speculative_tokens": 3}
        (names,) = values(run(folder, spec), "draft_architectures")
        return tuple(names)

    assert architecture("eagle", "small") == ("EagleLlamaForCausalLM",)
    assert architecture("eagle3", "small") == ("Eagle3LlamaForCausalLM",)
    assert architecture("eagle3", "head") == ("LlamaForCausalLMEagle3",)
    assert architecture("mtp", "deepseek") == ("DeepSeekMTPModel",)


def test_mtp_drafts_with_the_target_and_its_quantization(folder: Path) -> None:
    spec = {"method": "mtp", "num_speculative_tokens": 1}
    report = run(folder, spec, target="deepseek", quantization="fp8")
    assert values(report, "model", "quantization") == (str(folder / "deepseek"), "fp8")


@pytest.mark.parametrize(
    ("given_length", "target_length", "resolved"), [(None, None, 512), (256, None, 256), (None, 128, 128)]
)
def test_the_drafters_context(folder: Path, given_length: int | None, target_length: int | None, resolved: int) -> None:
    spec = {"method": "draft_model", "model": "short", "num_speculative_tokens": 3}
    asked = {"max_model_len": given_length} if given_length else {}
    flags = {"max_model_len": target_length} if target_length else {}
    assert values(run(folder, {**spec, **asked}, **flags), "draft_max_model_len") == (resolved,)


# ---- GPUs


@given(tensor=st.sampled_from([1, 2, 4]), draft=st.none() | st.integers(1, 4))
def test_the_drafter_runs_on_one_gpu_or_on_all(folder: Path, tensor: int, draft: int | None) -> None:
    spec = {"method": "medusa", "model": "medusa", "num_speculative_tokens": 3}
    asked = {} if draft is None else {"draft_tensor_parallel_size": draft}
    report = run(folder, {**spec, **asked}, tensor_parallel_size=tensor)
    if draft in (None, 1, tensor):
        assert values(report, "draft_tensor_parallel_size") == (draft or tensor,)
    else:
        assert rejections(report) == ["draft-tensor-parallel"]


@pytest.mark.parametrize(("version", "codes"), [("0.29.0", ["drafter-without-pipeline"]), ("0.30.0", [])])
def test_heads_on_pipeline_stages(folder: Path, version: str, codes: list[str]) -> None:
    spec = {"method": "eagle3", "model": "head", "num_speculative_tokens": 3}
    assert rejections(run(folder, spec, version, pipeline_parallel_size=2)) == codes


def test_heads_that_cannot_be_divided(folder: Path) -> None:
    spec = {"method": "ngram", "num_speculative_tokens": 3}
    assert rejections(run(folder, spec, tensor_parallel_size=3)) == ["target-heads-not-divisible"]
    assert rejections(run(folder, spec, enable_expert_parallel=True)) == ["target-has-no-experts"]


# ---- sampling


@pytest.mark.parametrize(
    ("keys", "rates"),
    [
        ({"synthetic_acceptance_length": 2.5}, (1.0, 0.5, 0.0)),
        ({"synthetic_acceptance_length": 1}, (0.0, 0.0, 0.0)),
        ({"synthetic_acceptance_length": 4}, (1.0, 1.0, 1.0)),
        ({"synthetic_acceptance_rates": [0.9, 0.5, 0.5]}, (0.9, 0.5, 0.5)),
    ],
)
def test_synthetic_rates(folder: Path, keys: Mapping[str, Any], rates: tuple[float, ...]) -> None:
    assert values(run(folder, {**SYNTHETIC, **keys}), "synthetic_acceptance_rates") == (rates,)


@given(length=st.floats(1, 4))
def test_synthetic_rates_add_up_to_the_length(folder: Path, length: float) -> None:
    (rates,) = values(run(folder, {**SYNTHETIC, "synthetic_acceptance_length": length}), "synthetic_acceptance_rates")
    assert sum(rates) + 1 == pytest.approx(length)
    assert sorted(rates, reverse=True) == list(rates)


NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
FLY = {**NGRAM, "rejection_sample_method": "fly"}


@pytest.mark.parametrize(
    ("spec", "version", "code"),
    [
        (SYNTHETIC, "0.32.0", "synthetic-needs-one"),
        ({**SYNTHETIC, "synthetic_acceptance_length": 9}, "0.32.0", "synthetic-length"),
        ({**SYNTHETIC, "synthetic_acceptance_rates": [0.1, 0.5, 0.1]}, "0.32.0", "synthetic-rates"),
        ({**NGRAM, "synthetic_acceptance_length": 2}, "0.32.0", "synthetic-needs-method"),
        ({**FLY, "num_speculative_tokens": 1}, "0.33.0", "fly-needs-two-tokens"),
        ({**FLY, "fly_window_size": 3}, "0.33.0", "fly-window-too-long"),
        ({**NGRAM, "use_heterogeneous_vocab": True}, "0.32.0", "hetero-needs-draft-model"),
        ({**NGRAM, "tensor_parallel_size": 1}, "0.32.0", "tensor-parallel-size-key"),
        ({**NGRAM, "enable_adaptive_verification": True}, "0.29.0", "adaptive-needs-dspark"),
        ({**NGRAM, "index_share_for_mtp_iteration": True}, "0.32.0", "mtp-only-key"),
        ({"method": "suffix", "suffix_decoding_min_token_prob": 1.5}, "0.32.0", "suffix-out-of-range"),
    ],
)
def test_keys_that_do_not_go_together(folder: Path, spec: Mapping[str, Any], version: str, code: str) -> None:
    assert code in rejections(run(folder, spec, version))


@pytest.mark.parametrize(("tokens", "window"), [(2, 1), (3, 2), (7, 6)])
def test_fly_takes_two_tokens_or_more(folder: Path, tokens: int, window: int) -> None:
    """It looks at the tokens after the one in question, so that two tokens leave a window of one."""
    report = run(folder, {**FLY, "num_speculative_tokens": tokens}, "0.33.0")
    assert report.resolved is not None
    assert report.resolved.fields["fly_window_size"] == window
    widest = {**FLY, "num_speculative_tokens": tokens, "fly_window_size": window}
    assert rejections(run(folder, widest, "0.33.0")) == []
    assert rejections(run(folder, {**widest, "fly_window_size": tokens}, "0.33.0")) == ["fly-window-too-long"]


@pytest.mark.parametrize(("version", "refused"), [("0.10.2", True), ("0.21.0", True), ("0.22.0", False)])
def test_targets_for_hidden_states(folder: Path, version: str, refused: bool) -> None:
    spec = {"method": "eagle3", "model": "head", "num_speculative_tokens": 3}
    assert ("target-not-for-hidden-states" in rejections(run(folder, spec, version, target="gpt"))) is refused


@pytest.mark.parametrize(("version", "refused"), [("0.17.0", True), ("0.19.1", True), ("0.20.0", False)])
def test_hidden_states_of_configs_with_parts(version: str, refused: bool) -> None:
    spec = {"method": "extract_hidden_states", "num_speculative_tokens": 1}
    report = judge("Qwen/Qwen2.5-VL-7B-Instruct", spec, version)
    assert ("hidden-states-nested-target" in rejections(report)) is refused


@pytest.mark.parametrize("version", ["0.17.0", "0.26.0", "0.33.0"])
@pytest.mark.parametrize(("impl", "refused"), [("transformers", True), ("auto", False), ("vllm", False)])
def test_hidden_states_have_no_class_in_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, impl: str, refused: bool
) -> None:
    spec = {"method": "extract_hidden_states", "num_speculative_tokens": 1}
    report = judge("meta-llama/Llama-3.1-8B-Instruct", spec, version, model_impl=impl)
    assert ("hidden-states-of-transformers" in rejections(report)) is refused
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "own", {**LLAMA, "auto_map": {"AutoModelForCausalLM": "modeling.Own"}})
    assert "hidden-states-of-transformers" not in rejections(judge("own", spec, version, model_impl=impl))


def test_a_drafter_that_is_not_here_is_judged_by_its_name(folder: Path) -> None:
    report = run(folder, {"model": "org/EAGLE3-head", "num_speculative_tokens": 3})
    assert "drafter-not-here" in {each.code for each in report.findings}
    assert values(report, "method") == ("eagle3",)


@pytest.mark.parametrize("stages", [1, 2])
def test_pipeline_stages_of_a_drafter_that_is_not_here_are_unknown(folder: Path, stages: int) -> None:
    spec = {"model": "org/EAGLE3-head", "num_speculative_tokens": 3}
    report = run(folder, spec, pipeline_parallel_size=stages)
    assert ("drafter-stages-unknown" in {each.code for each in report.findings}) is (stages > 1)


def test_no_speculation_is_judged_too(folder: Path) -> None:
    assert judge(str(folder / "llama"), None).accepted
    assert rejections(judge(str(folder / "llama"), None, tensor_parallel_size=3)) == ["target-heads-not-divisible"]


def test_nothing_is_resolved_for_what_is_rejected(folder: Path) -> None:
    assert run(folder, {"method": "ngram", "num_speculative_tokens": 0}).resolved is None
