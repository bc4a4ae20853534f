"""Which runner takes the work, and whether it is scheduled asynchronously."""

import pytest
from tests.support.later_case import EPYC, LLAMA, Case, codes, find_engine

from draftwise.plan.check.engine import choose_runner, schedules_async

QWEN3 = {"architectures": ["Qwen3ForCausalLM"]}
QWEN3_MOE = {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 128}
GRANITE_MOE = {"architectures": ["GraniteMoeForCausalLM"], "num_local_experts": 32}
JAMBA = {"architectures": ["JambaForCausalLM"]}
GEMMA = {"architectures": ["GemmaForCausalLM"]}


def choose(version: str, case: Case) -> str | None:
    context, resolved = case.seen_in(version)
    return choose_runner(context, resolved).name


@pytest.mark.parametrize(
    ("target", "first_v2"),
    [
        (QWEN3, "0.22.0"),
        (LLAMA, "0.23.0"),
        (GRANITE_MOE, "0.24.0"),
        (GEMMA, "0.25.0"),
        (QWEN3_MOE, "0.29.0"),
        (JAMBA, "0.29.0"),
    ],
)
def test_default_runner_by_target(target, first_v2):
    versions = ("0.19.1", "0.21.0", "0.22.0", "0.23.0", "0.24.0", "0.25.0", "0.28.0", "0.29.0", "0.33.0")
    chosen = [choose(version, Case(target=target)) for version in versions]
    at = versions.index(first_v2)
    assert chosen == ["V1"] * at + ["V2"] * (len(versions) - at)


def test_quantized_targets_stay_on_v1_until_0_23():
    quantized = Case(target={**QWEN3, "quantization_config": {"quant_method": "fp8"}})
    assert [choose(version, quantized) for version in ("0.22.0", "0.23.0", "0.24.0")] == ["V1", "V1", "V2"]


@pytest.mark.parametrize("args", [{"runner": "pooling"}, {"convert": "embed"}])
def test_a_pooling_server_stays_on_v1_until_v2_is_the_default(args):
    chosen = [choose(version, Case(target=QWEN3, args=args)) for version in ("0.22.0", "0.28.0", "0.29.0")]
    assert chosen == ["V1", "V1", "V2"]


def test_quantizing_while_loading_does_not_keep_a_target_on_v1():
    assert choose("0.22.0", Case(target=QWEN3, args={"quantization": "fp8"})) == "V2"


def test_an_empty_schedule_is_a_schedule_for_the_release_whose_v2_has_none():
    empty = Case(spec={"num_speculative_tokens_per_batch_size": []})
    assert [choose(version, empty) for version in ("0.23.0", "0.24.0", "0.25.0")] == ["V2", "V1", "V2"]


def test_a_hybrid_target_is_known_by_the_class_that_builds_it():
    hybrid = Case(target={"architectures": ["Qwen3_5ForCausalLM"]})
    assert [choose(version, hybrid) for version in ("0.26.0", "0.29.0")] == ["V1", "V2"]


def test_unknown_target_leaves_the_runner_open_where_it_depends_on_the_target():
    unknown = Case(target=None)
    assert [choose(version, unknown) for version in ("0.21.0", "0.22.0", "0.28.0", "0.29.0")] == [
        "V1",
        None,
        None,
        "V2",
    ]
    assert choose("0.26.0", unknown.but(method="ngram")) == "V1"


@pytest.mark.parametrize(
    ("method", "first_v2"),
    [
        ("mtp", "0.29.0"),
        ("extract_hidden_states", "0.29.0"),
        ("draft_model", "0.31.0"),
        ("ngram", "0.32.0"),
        ("suffix", None),
    ],
)
def test_methods_reach_v2_one_by_one(method, first_v2):
    versions = ("0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")
    at = versions.index(first_v2) if first_v2 else len(versions)
    chosen = [choose(version, Case(method=method)) for version in versions]
    assert chosen == ["V1"] * at + ["V2"] * (len(versions) - at)


def test_the_environment_decides():
    for value, name in (("0", "V1"), ("1", "V2")):
        assert choose("0.33.0", Case(env={"VLLM_USE_V2_MODEL_RUNNER": value})) == name
        assert choose("0.19.1", Case(env={"VLLM_USE_V2_MODEL_RUNNER": value})) == name
    assert choose("0.11.2", Case(env={"VLLM_USE_V2_MODEL_RUNNER": "1"})) == "V1"


def test_drafters_that_need_v2_take_it_whatever_the_target():
    mixed = {"layer_types": ["sliding_attention", "full_attention"]}
    assert choose("0.25.0", Case(method="dspark", target=QWEN3_MOE)) == "V2"
    assert choose("0.26.0", Case(method="dflash", target=QWEN3_MOE, drafter=mixed)) == "V2"
    assert choose("0.25.0", Case(method="dflash", target=QWEN3_MOE, drafter=mixed)) == "V1"


def test_watermarking_overrides_the_environment():
    case = Case(args={"watermark_config": {"algorithm": "gumbel"}}, env={"VLLM_USE_V2_MODEL_RUNNER": "0"})
    assert [choose(version, case) for version in ("0.29.0", "0.30.0")] == ["V1", "V2"]


def test_a_cpu_server_has_no_v2():
    assert choose("0.33.0", Case(device=EPYC)) == "V1"


def test_the_reason_names_the_method_and_what_is_missing():
    chosen = choose_runner(*Case(method="suffix").seen_in("0.33.0"))
    assert chosen.reason == "Model Runner V2 does not draft with suffix."
    assert chosen.lacks == ("v2-lacks-method",)


@pytest.mark.parametrize(
    ("version", "method", "taken", "expected"),
    [
        ("0.13.0", "eagle", "V1", False),
        ("0.14.0", "eagle", "V1", True),
        ("0.14.0", "ngram", "V1", False),
        ("0.27.1", "draft_model", "V1", False),
        ("0.28.0", "draft_model", "V1", True),
        ("0.32.0", "ngram", "V2", False),
        ("0.33.0", "ngram", "V2", True),
        ("0.33.0", "suffix", "V1", False),
    ],
)
def test_async_scheduling_by_default(version, method, taken, expected):
    assert schedules_async(*Case(method=method, resolved={"runner": taken}).seen_in(version)) is expected


def test_async_scheduling_as_asked_for():
    for asked in (True, False):
        assert schedules_async(*Case(args={"async_scheduling": asked}).seen_in("0.19.1")) is asked


def test_async_scheduling_is_off_on_cpu_and_says_nothing_about_it():
    context, resolved = Case(method="ngram", device=EPYC).seen_in("0.32.0")
    assert schedules_async(context, resolved) is False
    assert "async-switched-off" not in codes(find_engine(context, resolved))


def test_async_scheduling_is_open_with_an_executor_that_is_not_known():
    case = Case(args={"distributed_executor_backend": "package.Executor"})
    assert schedules_async(*case.seen_in("0.33.0")) is None


def test_switching_async_off_names_cost_and_way_out():
    context, resolved = Case(method="draft_model").seen_in("0.26.0")
    ruling = next(each for each in find_engine(context, resolved) if each.code == "async-switched-off")
    assert "1.56 ms" in ruling.message
    assert "--async-scheduling" in ruling.fix
