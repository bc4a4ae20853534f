"""What operators ask, and the order and reasons that they should get."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.combinations import covering
from tests.support.requirements import LLAMA, QWEN, advise, candidate, methods, refusal

from draftwise.core import InvalidSetup
from draftwise.knowledge.advice import read_seen_speedups
from draftwise.knowledge.gpus import get_gpu
from draftwise.knowledge.models import find_model
from draftwise.plan.pick import STRUCTURED_OUTPUT, Weight


def test_code_on_a_supported_family_starts_with_a_head_trained_for_it() -> None:
    advice = advise(QWEN, concurrency=8)
    assert methods(advice)[:3] == ["dflash", "dspark", "eagle3"]
    assert not advice.levers
    head = candidate(advice, "eagle3")
    assert head.setup.spec is not None
    assert head.setup.spec.to_dict() == {
        "method": "eagle3",
        "model": "RedHatAI/Qwen3-8B-speculator.eagle3",
        "num_speculative_tokens": 3,
    }
    assert {"AngelSlim/Qwen3-8B_eagle3"} <= {each.model for each in head.alternatives}
    assert "Start with dflash (z-lab/Qwen3-8B-DFlash-b16, k=13)" in advice.sentence


def test_native_modules_come_first() -> None:
    advice = advise("zai-org/GLM-4.5-Air", gpus=4, concurrency=8)
    assert methods(advice)[0] == "mtp"
    assert candidate(advice, "mtp").setup.spec.to_dict() == {"method": "mtp", "num_speculative_tokens": 1}  # type: ignore[union-attr]


def test_modules_that_a_config_denies_are_not_used() -> None:
    assert refusal(advise("moonshotai/Kimi-K2-Instruct", gpus=16), "mtp").reasons[0].code == "no-native-modules"


def test_releases_before_the_common_name_take_their_own_name_for_mtp() -> None:
    advice = advise("deepseek-ai/DeepSeek-R1", version="0.10.2", gpus=8, kind="chat")
    assert candidate(advice, "mtp").setup.spec.method == "deepseek_mtp"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("target", "kind", "traffic"),
    covering(
        [LLAMA, QWEN, "openai/gpt-oss-120b", "deepseek-ai/DeepSeek-V3"],
        ["chat", "code", "code-editing", "rag"],
        [(1, 0.0), (64, 0.0), (8, 1.0)],
    ),
)
def test_the_order_is_that_of_the_speedups_shown(target: str, kind: str, traffic: tuple[int, float]) -> None:
    load, temperature = traffic
    advice = advise(target, gpus=8, kind=kind, concurrency=load, temperature=temperature)
    shown = [each.estimate.gain for each in advice.ranked if each.estimate is not None and each.estimate.gain]
    assert len(shown) == len(advice.ranked)
    assert [round(gain, 2) for gain in shown] == sorted((round(gain, 2) for gain in shown), reverse=True)
    assert [each.pays for each in advice.ranked] == [gain >= 1 for gain in shown]


def test_temperature_is_judged_by_its_own_numbers() -> None:
    cold, hot = (advise(QWEN, gpu="H200", kind="chat", temperature=each) for each in (0.0, 1.0))
    assert not hot.levers
    assert hot.sentence.startswith("Start with")
    for method in methods(hot):
        before, after = candidate(cold, method).estimate, candidate(hot, method).estimate
        assert before is not None
        assert after is not None
        assert after.expected_length < before.expected_length
    lever = next(each for each in candidate(hot, "eagle3").caveats if each.code == "sample-drafts")
    assert "probabilistic" in lever.fix


def test_sampled_drafts_are_named_where_the_release_and_the_method_have_them() -> None:
    def names_them(method: str, version: str) -> bool:
        found = candidate(advise(kind="code", temperature=1.0, version=version), method)
        return any(each.code == "sample-drafts" for each in found.caveats)

    assert names_them("eagle3", "0.22.0")
    assert not names_them("eagle3", "0.20.2")
    assert not names_them("ngram", "0.33.0")


def test_chat_has_nothing_to_look_up() -> None:
    advice = advise(kind="chat")
    for method in ("ngram", "ngram_gpu", "suffix"):
        assert refusal(advice, method).reasons[0].code == "no-overlap"


def test_traffic_of_which_nothing_is_known_keeps_lookup_at_the_end() -> None:
    order = methods(advise("meta-llama/Llama-3.2-3B-Instruct", kind=None))
    assert set(order) == {"ngram", "ngram_gpu", "suffix"}


def test_where_measurement_contradicts_the_guides_the_answer_says_so() -> None:
    advice = advise(QWEN, kind="code-editing", concurrency=4)
    order = methods(advice)
    assert order.index("ngram") < order.index("eagle3") < order.index("draft_model")
    assert any(reason.code == "against-the-guide" for reason in candidate(advice, "ngram").reasons)
    assert not any(reason.code == "against-the-guide" for reason in candidate(advice, "draft_model").reasons)


def test_what_does_not_pay_goes_last() -> None:
    advice = advise(QWEN, version="0.26.0", kind="rag", concurrency=128)
    pays = [each.pays for each in advice.ranked]
    assert pays == sorted(pays, reverse=True)
    assert not all(pays)
    assert any(caveat.code == "below-break-even" for caveat in advice.ranked[-1].caveats)


def test_k_falls_with_load() -> None:
    by_load = [candidate(advise(concurrency=load), "eagle3").estimate for load in (1, 64, 256)]
    drafted = [each.k for each in by_load if each is not None]
    assert drafted == sorted(drafted, reverse=True)
    assert drafted[0] == 3
    assert drafted[-1] == 1


@pytest.mark.parametrize("target", [LLAMA, "openai/gpt-oss-120b", "Qwen/Qwen3-30B-A3B"])
@pytest.mark.parametrize("method", ["eagle3", "dflash"])
def test_a_drafter_has_no_larger_k_at_a_higher_load_or_temperature(target: str, method: str) -> None:
    def chosen(load: int, temperature: float) -> int:
        found = candidate(advise(target, kind="code", concurrency=load, temperature=temperature), method).estimate
        assert found is not None
        return found.k

    loads = [chosen(load, 0.0) for load in (1, 8, 32, 128)]
    assert loads == sorted(loads, reverse=True)
    heats = [chosen(8, temperature) for temperature in (0.0, 0.5, 1.0)]
    assert heats == sorted(heats, reverse=True)


@pytest.mark.parametrize("target", [LLAMA, QWEN, "openai/gpt-oss-120b", "Qwen/Qwen3-30B-A3B"])
def test_a_schedule_never_drafts_more_for_a_larger_batch(target: str) -> None:
    for each in advise(target, concurrency=8, peak_concurrency=256).ranked:
        rows = (each.scheduled or {}).get("num_speculative_tokens_per_batch_size", [])
        assert [k for *_, k in rows] == sorted((k for *_, k in rows), reverse=True)


def test_no_schedule_is_proposed_that_the_release_does_not_follow() -> None:
    head = candidate(advise(concurrency=8, peak_concurrency=256, version="0.28.0"), "eagle3")
    assert head.report.resolved is not None
    assert head.report.resolved.runner == "V2"
    assert head.scheduled is None


def test_load_that_changes_gets_a_schedule_where_the_release_has_one() -> None:
    new, old = (
        candidate(advise(kind="chat", temperature=0.7, concurrency=8, peak_concurrency=256, version=version), "eagle3")
        for version in ("0.33.0", "0.19.1")
    )
    assert old.scheduled is None
    assert new.scheduled is not None
    rows = new.scheduled["num_speculative_tokens_per_batch_size"]
    assert rows[0][0] == 1
    assert rows[-1][1] == 256
    assert all(after[0] == before[1] + 1 for before, after in pairwise(rows))
    assert [k for *_, k in rows] == sorted((k for *_, k in rows), reverse=True)
    assert new.scheduled["num_speculative_tokens"] == rows[0][2]


def test_a_method_that_went_is_refused_and_still_runs_embedded() -> None:
    refused = refusal(advise("lmsys/vicuna-7b-v1.3"), "medusa").reasons[0]
    assert refused.code == "not-in-release"
    assert "draftwise serve" in refused.fix


def test_old_heads_are_for_those_who_have_them() -> None:
    refused = refusal(advise("lmsys/vicuna-7b-v1.3", version="0.32.0"), "medusa").reasons[0]
    assert refused.code == "only-when-locked-in"
    assert "abhigoyal/vllm-medusa-vicuna-7b-v1.3" in refused.fix


def test_a_method_newer_than_the_release_is_refused() -> None:
    assert refusal(advise(QWEN, version="0.19.1"), "dflash").reasons[0].code == "not-in-release"


def test_what_check_rejects_is_refused_with_its_ruling() -> None:
    refused = refusal(advise("Qwen/Qwen2.5-7B-Instruct", version="0.19.1"), "draft_model")
    assert [reason.code for reason in refused.reasons[:2]] == ["refused-by-check", "vocabulary-sizes-differ"]


def test_padded_vocabularies_are_matched_where_the_release_can() -> None:
    spec = candidate(advise("Qwen/Qwen2.5-7B-Instruct", version="0.32.0"), "draft_model").setup.spec
    assert spec is not None
    assert spec.options["use_heterogeneous_vocab"] is True


def test_what_does_not_fit_is_refused() -> None:
    advice = advise(kind="chat", gpu="A30", args={"max_model_len": 16384})
    assert refusal(advice, "draft_model").reasons[0].code == "does-not-fit"
    assert "eagle3" in methods(advice)


def test_a_context_that_does_not_fit_is_cut_and_said() -> None:
    head = candidate(advise("meta-llama/Llama-3.3-70B-Instruct", gpu="H100", gpus=2, kind="chat"), "eagle3")
    assert head.setup.args["max_model_len"] % 1024 == 0
    assert any(caveat.code == "context-cut" for caveat in head.caveats)


def test_dflash_is_given_a_backend_on_releases_with_few() -> None:
    early, late = (candidate(advise(QWEN, version=version), "dflash") for version in ("0.20.2", "0.33.0"))
    assert early.setup.args["attention_backend"] == "FLASH_ATTN"
    assert "attention_backend" not in late.setup.args


def test_tool_calls_make_lookup_strict() -> None:
    loose, strict = (
        candidate(advise(kind="agentic", parameters=frozenset(uses)), "ngram") for uses in ((), (STRUCTURED_OUTPUT,))
    )
    assert loose.setup.spec is not None
    assert strict.setup.spec is not None
    assert strict.setup.spec.options["prompt_lookup_min"] > loose.setup.spec.options["prompt_lookup_min"]


def test_a_fine_tuned_copy_is_offered_the_heads_of_its_base(tmp_path: Path) -> None:
    base = find_model(LLAMA)
    assert base is not None
    copy = tmp_path / "Llama-3.1-8B-Instruct"
    copy.mkdir()
    (copy / "config.json").write_text(json.dumps(dict(base.config)))
    advice = advise(str(copy))
    caveats = {caveat.code for caveat in candidate(advice, "eagle3").caveats}
    assert "head-for-another" in caveats
    quantized = candidate(advise("x/gemma-4-26B-A4B-it-AWQ"), "mtp")
    assert quantized.setup.spec is not None
    assert quantized.setup.spec.model == "google/gemma-4-26B-A4B-it-assistant"


def test_a_method_that_lost_on_these_very_gpus_does_not_pay_without_an_estimate() -> None:
    one, two = (advise("x/Qwen3.6-35B-A3B-AWQ", gpu="RTX-3090", gpus=gpus, version="0.19.1") for gpus in (1, 2))
    assert [candidate(each, "mtp").pays for each in (one, two)] == [True, False]
    assert methods(two)[-1] == "mtp"


def test_readings_name_gpus_as_the_table_does() -> None:
    assert all(row.gpu is None or get_gpu(row.gpu).name == row.gpu for row in read_seen_speedups())


def test_a_drafter_at_hand_comes_before_a_published_one(tmp_path: Path) -> None:
    head = tmp_path / "eagle3-of-ours"
    head.mkdir()
    shape = {"hidden_size": 4096, "num_hidden_layers": 1, "num_attention_heads": 32, "num_key_value_heads": 8}
    config = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", **shape, "intermediate_size": 12288}
    config |= {"vocab_size": 151936, "draft_vocab_size": 32000, "max_position_embeddings": 40960}
    (head / "config.json").write_text(json.dumps(config))
    first = advise(QWEN, drafters=(str(head),)).ranked[0]
    assert first.setup.spec is not None
    assert (first.method, first.setup.spec.model) == ("eagle3", str(head))
    assert first.reasons[0].code == "given-drafter"


def test_a_target_alone_is_enough(tmp_path: Path) -> None:
    base = find_model(QWEN)
    assert base is not None
    advice = advise(json.dumps(dict(base.config)))
    assert "ngram" in methods(advice)
    assert refusal(advice, "eagle3").reasons[0].code == "no-drafter-known"


def test_a_gpu_given_by_its_memory_is_sized_and_not_estimated() -> None:
    first = advise(QWEN, gpu="48GiB").ranked[0]
    assert first.sizing is not None
    assert first.estimate is not None
    assert first.estimate.break_even is None
    assert first.pays


def test_an_unknown_target_is_told_its_neighbours() -> None:
    advice = advise("Qwen/Qwen3-8X")
    assert set(methods(advice)) == {"ngram", "ngram_gpu", "suffix"}
    assert all(each.estimate is None or each.estimate.gain is None for each in advice.ranked)
    told = [each for each in advice.ranked[0].caveats if each.code == "target-not-here"]
    assert "Qwen/Qwen3-8B" in told[0].fix
    with pytest.raises(InvalidSetup, match="Qwen/Qwen3-8B"):
        advise("Qwen3-8X")


def test_an_unknown_drafter_is_named() -> None:
    with pytest.raises(InvalidSetup, match="nowhere"):
        advise(QWEN, drafters=("nowhere",))


def test_an_unknown_kind_of_traffic_is_told_the_kinds() -> None:
    with pytest.raises(InvalidSetup, match="code-editing"):
        advise(kind="poems")


def test_nothing_is_proposed_where_nothing_is_decoded() -> None:
    advice = advise(args={"runner": "pooling"})
    assert advice.levers[0].weight is Weight.ENDS
    assert not advice.ranked
    assert {each.reasons[0].code for each in advice.refused} == {"no-autoregressive-decode"}
    assert advice.sentence.startswith("Leave speculation off.")
