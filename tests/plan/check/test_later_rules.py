"""Rules whose answer depends on numbers: schedules, budgets, graphs, heads, defaults; and the rows themselves."""

import json
import re
from dataclasses import replace
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.later_case import EPYC, H200, LLAMA, Case, codes, find_engine, find_later

from draftwise.checkpoints.config_json import find_model_config
from draftwise.core import Device, Ruling
from draftwise.knowledge.rules import get_rule
from draftwise.knowledge.vllm import releases
from draftwise.plan.check.engine import choose_runner, schedules_async

KEY = "num_speculative_tokens_per_batch_size"


def find(case: Case, code: str, version: str = "0.33.0") -> Ruling | None:
    context, resolved = case.seen_in(version)
    rulings = [*find_engine(context, resolved), *find_later(context, resolved)]
    return next((each for each in rulings if each.code == code), None)


ranges = st.tuples(st.integers(-1, 12), st.integers(-1, 12), st.integers(-1, 6))


@given(st.lists(ranges, min_size=1, max_size=4))
def test_a_schedule_is_valid_if_and_only_if_it_names_each_batch_size_at_most_once_from_one_on(entries):
    sizes = [size for first, last, _ in entries for size in range(first, last + 1)]
    valid = (
        all(first <= last and k >= 0 for first, last, k in entries)
        and len(sizes) == len(set(sizes))
        and min(sizes, default=0) == 1
    )
    case = Case(spec={KEY: [list(entry) for entry in entries]})
    assert (find(case, "schedule-invalid") is None) is valid


def test_a_schedule_that_is_dropped_is_not_judged():
    case = Case(method="suffix", spec={KEY: [[2, 4, 3]]})
    assert find(case, "schedule-invalid", "0.32.0") is not None
    assert find(case, "schedule-invalid", "0.33.0") is None
    eagle = Case(spec={KEY: [[2, 4, 3]]}, args={"data_parallel_size": 2})
    assert find(eagle, "schedule-invalid") is None


@pytest.mark.parametrize(
    ("changed", "lowered"),
    [
        ({}, True),
        ({"args": {"compilation_config": {"cudagraph_mode": "FULL_AND_PIECEWISE"}}}, True),
        ({"args": {"compilation_config": {"cudagraph_mode": "PIECEWISE"}}}, False),
        ({"args": {"enforce_eager": True}}, False),
        ({"device": EPYC}, False),
        ({"resolved": {"runner": "V2"}}, False),
    ],
)
def test_a_schedule_lowers_graphs_where_there_are_full_ones_on_the_first_runner(changed, lowered):
    found = find(Case(spec={KEY: [[1, 4, 3]]}).but(**changed), "schedule-lowers-graphs")
    assert (found is not None) is lowered


@pytest.mark.parametrize(
    ("version", "seqs", "k", "covered"),
    [
        ("0.26.0", 129, 3, 128),  # 512 tokens, the step that was measured
        ("0.26.0", 128, 3, None),
        ("0.12.0", 64, 3, 32),  # 2 * 64 tokens: k does not count yet
        ("0.13.0", 64, 3, None),
        ("0.9.2", 64, 3, None),  # 512 whatever max_num_seqs is
    ],
)
def test_graphs_cover_so_many_requests(version, seqs, k, covered):
    ruling = find(Case(k=k, args={"max_num_seqs": seqs, "max_num_batched_tokens": 8192}), "cudagraph-cliff", version)
    assert (ruling is None) is (covered is None)
    if ruling is not None:
        assert f"more than {covered} requests" in ruling.message
        assert str(seqs * (k + 1)) in ruling.fix


@pytest.mark.parametrize(
    ("k", "told", "advised"),
    [
        (7, "with more than 1 request decoding", "at 1 request or fewer"),
        (8, "every step that drafts", "or lower k."),
    ],
)
def test_graphs_that_cover_one_request_or_none_are_told_so(k, told, advised):
    ruling = find(Case(k=k, args={"max_num_seqs": 3, "max_cudagraph_capture_size": 8}), "cudagraph-cliff")
    assert told in ruling.message
    assert advised in ruling.fix


def test_graphs_of_blackwell_reach_further_from_0_28():
    case = Case(args={"max_num_seqs": 256}, device=Device(name="B200", kind="cuda"))
    assert find(case, "cudagraph-cliff", "0.27.1") is not None
    assert find(case, "cudagraph-cliff", "0.28.0") is None


def test_a_raised_capture_size_ends_the_cliff():
    args = {"max_num_seqs": 256, "max_cudagraph_capture_size": 1024}
    assert find(Case(args=args), "cudagraph-cliff") is None
    assert find(Case(args={"max_num_seqs": 256, "enforce_eager": True}), "cudagraph-cliff") is None


def test_a_gpu_gives_the_limits_that_no_flag_gives():
    draft = Case(method="draft_model", drafter=LLAMA)
    ruling = find(draft.but(device=H200), "draft-slots-shrink-tokens", "0.26.0")
    assert ruling is not None
    assert ruling.becomes == "max_num_scheduled_tokens 7168"
    assert find(draft.but(device=Device(name="?", kind="cuda")), "draft-slots-shrink-tokens", "0.26.0") is None


@pytest.mark.parametrize(
    ("method", "parallel", "slots"),
    [("draft_model", False, 1), ("draft_model", True, 3), ("dflash", True, 2), ("mtp", False, 0)],
)
def test_slots_of_one_request(method, parallel, slots):
    args = {"max_num_seqs": 10, "max_num_batched_tokens": 8192}
    ruling = find(
        Case(method=method, args=args, resolved={"parallel_drafting": parallel}), "draft-slots-shrink-tokens", "0.26.0"
    )
    left = None if ruling is None else int(ruling.becomes.split()[-1])
    assert left == (8192 - 10 * slots if slots else None)


def test_dflash_needs_a_token_more_than_its_guesses_per_request():
    args = {"max_num_seqs": 256, "max_num_batched_tokens": 1024}
    assert find(Case(method="dflash", args=args), "draft-pass-limits-requests") is None
    assert find(Case(method="dspark", args=args), "draft-pass-limits-requests") is None
    less = {**args, "max_num_batched_tokens": 1023}
    assert find(Case(method="dflash", args=less), "draft-pass-limits-requests") is not None
    assert find(Case(method="dspark", args=less), "draft-pass-limits-requests") is None


def test_default_sampling_parameters_of_the_model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "generation_config.json").write_text(json.dumps({"repetition_penalty": 1.05, "min_p": 0.1}))
    model = find_model_config(str(tmp_path))
    for version, code in (("0.13.0", "default-penalty-stops-drafting"), ("0.14.0", "default-min-p-refused")):
        for given_args, met in (({}, True), ({"generation_config": "vllm"}, False)):
            context, resolved = Case(args=given_args).seen_in(version)
            context = replace(context, target=model)
            assert (code in codes(find_later(context, resolved))) is met


def test_an_unreadable_generation_config_says_nothing(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "generation_config.json").write_text("[")
    context, resolved = Case().seen_in("0.33.0")
    model = find_model_config(str(tmp_path))
    context = replace(context, target=model)
    assert "default-min-p-refused" not in codes(find_later(context, resolved))


@pytest.mark.parametrize(
    ("config", "heads"), [({}, 5), ({"num_heads": 3}, 3), ({"medusa_num_heads": 4, "medusa_num_layers": 1}, 4)]
)
def test_medusa_heads_as_vllm_counts_them(config, heads):
    assert find(Case(method="medusa", k=heads, drafter=config), "medusa-too-few-heads", "0.32.0") is None
    assert find(Case(method="medusa", k=heads + 1, drafter=config), "medusa-too-few-heads", "0.32.0") is not None


def test_a_head_may_decline_the_middle_layers():
    gemma = {"architectures": ["GemmaForCausalLM"]}
    declines = {"eagle_config": {"use_aux_hidden_state": False}}
    assert find(Case(target=gemma, drafter=declines), "target-without-aux-states", "0.11.2") is not None
    assert find(Case(target=gemma, drafter=declines), "target-without-aux-states", "0.12.0") is None
    assert find(Case(target={"architectures": ["NobodyKnows"]}), "target-without-aux-states") is None


@pytest.mark.parametrize(
    ("target", "args", "is_text_only"),
    [
        ("PixtralForConditionalGeneration", {"limit_mm_per_prompt": {"image": 0}}, True),
        ("PixtralForConditionalGeneration", {"limit_mm_per_prompt": {"image": {"count": 0}}}, True),
        ("PixtralForConditionalGeneration", {"limit_mm_per_prompt": {"image": 4}}, False),
        ("PixtralForConditionalGeneration", {"limit_mm_per_prompt": {}}, False),
        ("PixtralForConditionalGeneration", {"limit_mm_per_prompt": {"image": 0}, "enable_mm_embeds": True}, False),
        ("Qwen3VLForConditionalGeneration", {"limit_mm_per_prompt": {"image": 0}}, False),
        ("Qwen3VLForConditionalGeneration", {"limit_mm_per_prompt": {"image": 0, "video": 0}}, True),
        ("Qwen3VLForConditionalGeneration", {"language_model_only": True}, True),
    ],
)
def test_a_draft_model_needs_a_target_served_without_each_kind_of_its_media(target, args, is_text_only):
    case = Case(method="draft_model", target={"architectures": [target]}, args=args)
    assert (find(case, "draft-model-with-multimodal-target", "0.19.1") is None) is is_text_only


def test_a_causal_dflash_takes_any_backend():
    spec = {"attention_backend": "flashmla"}
    causal = Case(method="dflash", spec=spec, drafter={"dflash_config": {"causal": True}})
    assert find(causal, "dflash-draft-backend") is None
    assert find(causal.but(drafter={"dflash_config": {"causal": False}}), "dflash-draft-backend") is not None


def test_the_v0_engine_keeps_its_own_promises():
    case = Case(method="draft_model", spec={"disable_by_batch_size": 4})
    context, resolved = case.seen_in("0.9.2")
    assert codes(find_engine(context, resolved)) == ["v0-engine-taken"]
    assert codes(find_later(context, resolved)) == []


ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2000) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
SPEC_KEYS = (
    KEY, "draft_model_config", "attention_backend", "moe_backend", "enable_adaptive_verification", "prompt_lookup_min",
    "rejection_sample_method", "draft_sample_method", "disable_by_batch_size", "suffix_decoding_max_tree_depth",
)  # fmt: skip
FLAGS = (
    "compilation_config", "max_num_seqs", "max_num_batched_tokens", "pipeline_parallel_size",
    "structured_outputs_config", "override_generation_config", "block_size", "data_parallel_size",
    "kv_transfer_config", "async_scheduling", "cudagraph_capture_sizes", "attention_backend", "logprobs_mode",
    "tensor_parallel_size", "max_model_len",
)  # fmt: skip
CONFIG_KEYS = (
    "architectures",
    "eagle_config",
    "dflash_config",
    "layer_types",
    "num_heads",
    "num_experts",
    "rope_scaling",
)


@given(
    method=st.sampled_from(["ngram", "eagle3", "medusa", "dflash", "suffix", "draft_model", "extract_hidden_states"]),
    version=st.sampled_from([str(release) for release in releases()]),
    spec=st.dictionaries(st.sampled_from(SPEC_KEYS), ANY, max_size=4),
    args=st.dictionaries(st.sampled_from(FLAGS), ANY, max_size=4),
    config=st.dictionaries(st.sampled_from(CONFIG_KEYS), ANY, max_size=4),
)
def test_no_value_of_any_kind_ends_in_a_traceback(method, version, spec, args, config):
    case = Case(
        method=method, spec=spec, args=args, target=config, drafter=config, resolved={"parallel_drafting": True}
    )
    context, resolved = case.seen_in(version)
    chosen = choose_runner(context, resolved).name
    assert chosen in ("V1", "V2", None)
    assert schedules_async(context, resolved) in (True, False, None)
    assert all(isinstance(each, Ruling) for each in (*find_engine(context, resolved), *find_later(context, resolved)))


def test_rows_span_known_releases_and_their_probes_compile():
    known = {str(release) for release in releases()}
    rows = json.loads(files("draftwise.knowledge").joinpath("data/rules/later.json").read_text(encoding="utf-8"))
    for rule in (get_rule(row["code"]) for row in rows):
        assert all(first in known and (last is None or last in known) for first, last in rule.spans)
        assert rule.probe is None or re.compile(rule.probe.pattern)
