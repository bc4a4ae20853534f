from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from draftwise.core import InvalidSetup
from draftwise.knowledge.model_types import needs_checkpoint, reads_weights_of
from draftwise.knowledge.spans import decode, encode
from draftwise.knowledge.vllm import Release, find_remarks, get_release, history, releases, topics

VALUES = st.one_of(st.booleans(), st.integers(0, 2), st.sampled_from(["x", 1.0, None]), st.lists(st.integers(0, 1)))
TABLES = st.lists(
    st.dictionaries(st.sampled_from("abc"), st.tuples(VALUES, st.sampled_from(["here", "there"])), max_size=3),
    min_size=1,
    max_size=8,
)


def _names(tables: list[Any]) -> list[str]:
    return [f"0.{index}.0" for index in range(len(tables))]


@given(TABLES)
def test_rows_say_what_the_tables_said(tables: list[Any]) -> None:
    names = _names(tables)
    rows = encode(names, tables)
    for name, table in zip(names, tables, strict=True):
        read = {key: json.dumps(row.value) for key, row in decode(names, rows, name).items()}
        assert read == {key: json.dumps(value) for key, (value, _) in table.items()}


@given(TABLES)
def test_rows_are_as_few_as_can_be_and_never_overlap(tables: list[Any]) -> None:
    names = _names(tables)
    rows = encode(names, tables)
    for before, after in pairwise(rows):
        if before.key == after.key:
            assert before.until is not None
            gap = names.index(after.since) - names.index(before.until)
            assert gap >= 1
            assert gap > 1 or json.dumps(before.value) != json.dumps(after.value)
        else:
            assert before.key < after.key


@given(TABLES)
def test_a_source_is_that_of_the_release_that_began_the_row(tables: list[Any]) -> None:
    names = _names(tables)
    for row in encode(names, tables):
        assert row.source == tables[names.index(row.since)][row.key][1]


@given(TABLES)
def test_repeating_the_newest_release_changes_nothing(tables: list[Any]) -> None:
    names = _names(tables)
    assert encode([*names, "1.0.0"], [*tables, tables[-1]]) == encode(names, tables)


@pytest.mark.parametrize(
    ("text", "version", "asked"),
    [
        ("0.19.1", "0.19.1", ""),
        ("v0.20.2", "0.20.2", ""),
        ("0.19", "0.19.0", ""),
        ("newest", "0.33.0", ""),
        ("latest", "0.33.0", ""),
        ("0.19.1+cu128", "0.19.1", "0.19.1+cu128"),
        ("0.26.0+cpu", "0.26.0", "0.26.0+cpu"),
        ("0.26.0.post1", "0.26.0", "0.26.0.post1"),
        ("v0.20.0-cu130", "0.20.0", "0.20.0-cu130"),
        ("0.10.1.1", "0.10.1.1", ""),
    ],
)
def test_releases_are_found_by_what_users_write(text: str, version: str, asked: str) -> None:
    if text in ("newest", "latest"):
        version = str(releases()[-1])
    release = get_release(text)
    assert (str(release), release.asked, release.is_same) == (version, asked, True)
    assert [remark.code for remark in find_remarks(release)] == ["release-build"] * bool(asked)


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("0.34.0", "0.33.0"),
        ("99", "0.33.0"),
        ("0.19.2", "0.19.1"),
        ("0.20.1rc1", "0.20.1"),
        ("v0.33.1rc0", "0.33.0"),
        ("0.20.0.dev3+g1234", "0.19.1"),
        ("0.26.0.post1.dev2", "0.26.0"),
        ("0.20.0a1", "0.20.0"),
        ("0.19.1.2", "0.19.1"),
        ("v0.33.1rc0-cu130", "0.33.0"),
        ("0.5.0", "0.9.2"),
    ],
)
def test_a_release_that_is_not_known_is_never_taken_for_another_unasked(text: str, nearest: str) -> None:
    with pytest.raises(InvalidSetup) as caught:
        get_release(text)
    (finding,) = caught.value.findings
    assert finding.code == "unknown-release"
    assert str(releases()[-1]) in str(finding)
    release = get_release(text, nearest=True)
    assert (str(release), release.is_same) == (nearest, False)
    (remark,) = find_remarks(release)
    assert (remark.code, remark.severity) == ("release-nearest", "warning")
    assert release.asked in remark.message
    assert nearest in remark.message


@pytest.mark.parametrize("text", ["", "abc", "nightly", "0.8.5", "0.9.1", "-1"])
def test_what_is_no_release_is_refused_with_a_way_out(text: str) -> None:
    with pytest.raises(InvalidSetup) as caught:
        get_release(text)
    assert caught.value.findings[0].code == "unknown-release"
    assert str(releases()[-1]) in caught.value.findings[0].fix


def test_releases_are_ordered_and_dated() -> None:
    assert list(releases()) == sorted(releases(), key=lambda release: release.version)
    assert str(releases()[0]) == "0.9.2"
    assert all(len(release.built) == len("2026-01-01") for release in releases())
    assert isinstance(hash(releases()[0]), int)


def test_unknown_topics_and_keys_are_key_errors() -> None:
    with pytest.raises(KeyError):
        releases()[0].table("nothing")
    with pytest.raises(KeyError):
        history("../releases", "x")
    with pytest.raises(KeyError):
        releases()[-1].source("methods", "medusa")
    assert history("methods", "nothing") == ()


@pytest.mark.parametrize("topic", topics())
def test_history_and_tables_agree(topic: str) -> None:
    for release in (releases()[0], releases()[len(releases()) // 2], releases()[-1]):
        table = release.table(topic)
        for key in list(table)[:20]:
            (span,) = [span for span in history(topic, key) if _holds(span.since, span.until, release)]
            assert span.value == table[key]
            assert span.source == release.source(topic, key)
            assert span.source.startswith(f"vLLM {span.since}, vllm/")


def _holds(since: Version, until: Version | None, release: Release) -> bool:
    return since <= release.version and (until is None or release.version <= until)


def _lifetime(topic: str, key: str) -> tuple[str, str | None]:
    """First and last release that has a key; it must have it in all between."""
    spans = history(topic, key)
    known = [str(release) for release in releases()]
    for before, after in pairwise(spans):
        assert known.index(str(after.since)) == known.index(str(before.until)) + 1
    last = spans[-1].until
    return str(spans[0].since), None if last is None else str(last)


@pytest.mark.parametrize(
    ("topic", "key", "first", "last"),
    [
        ("methods", "dflash", "0.20.0", None),
        ("methods", "suffix", "0.11.1", None),
        ("methods", "mtp", "0.11.0", None),
        ("methods", "ngram_gpu", "0.18.0", None),
        ("methods", "dspark", "0.25.0", None),
        ("methods", "medusa", "0.9.2", "0.32.0"),
        ("methods", "mlp_speculator", "0.9.2", "0.32.0"),
        ("spec_fields", "disable_by_batch_size", "0.9.2", "0.16.0"),
        ("spec_fields", "parallel_drafting", "0.16.0", None),
        ("spec_fields", "speculative_token_tree", "0.9.2", "0.20.2"),
        ("spec_fields", "synthetic_acceptance_rate", "0.19.0", "0.19.1"),
        ("spec_fields", "num_speculative_tokens_per_batch_size", "0.24.0", None),
        ("spec_fields", "tensor_parallel_size", "0.15.0", None),
        ("flags", "--speculative-config", "0.9.2", None),
        ("flags", "--spec-method", "0.22.0", None),
        ("flags", "--per-request-spec-decode-metrics", "0.29.0", None),
        ("speculators_types", "eagle3", "0.10.1", None),
        ("speculators_types", "dflash2", "0.29.0", None),
        ("noncausal_backends", "FLASHINFER", "0.24.0", None),
        ("cache_backends", "TRITON_ATTN", "0.11.1", None),
        ("weight_schemes", "W4A8Fp8", "0.10.2", None),
        ("env", "VLLM_SNAPSHOT_TIMEOUT_S", "0.31.0", None),  # read outside of envs.py
        ("metrics", "vllm:spec_decode_num_accepted_tokens_per_pos", "0.9.2", None),
    ],
)
def test_when_things_came_and_went(topic: str, key: str, first: str, last: str | None) -> None:
    assert _lifetime(topic, key) == (first, last)


@pytest.mark.parametrize(
    "key", ["--speculative-model", "--num-speculative-tokens", "--speculative-disable-by-batch-size"]
)
def test_flags_of_old_guides_are_in_no_release(key: str) -> None:
    assert history("flags", key) == ()


@pytest.mark.parametrize(
    ("topic", "key", "version", "value"),
    [
        ("spec_rules", "unknown_keys", "0.15.1", "ignored"),
        ("spec_rules", "unknown_keys", "0.16.0", "rejected"),
        ("spec_rules", "dashes_in_keys", "0.25.1", "rejected"),
        ("spec_rules", "dashes_in_keys", "0.26.0", "accepted"),
        ("engine_defaults", "gpu_memory_utilization", "0.19.1", 0.9),
        ("engine_defaults", "gpu_memory_utilization", "0.20.0", 0.92),
        ("sampling_params", "min_p", "0.13.0", "not_speculated"),
        ("sampling_params", "min_p", "0.14.0", "rejected"),
        ("sampling_params", "min_tokens", "0.16.0", "rejected"),
        ("sampling_params", "min_tokens", "0.17.0", "supported"),
        ("runner_v2", "default", "0.28.0", "by architecture"),
        ("runner_v2", "default", "0.29.0", "always"),
        ("runner_v2", "default_architectures", "0.22.0", ["Qwen3ForCausalLM"]),
        ("async_scheduling", "default", "0.13.0", []),
        ("async_scheduling", "default", "0.14.0", ["eagle", "eagle3", "mtp"]),
        ("async_scheduling", "runner", "0.33.0", "V1"),
    ],
)
def test_values_at_their_turning_points(topic: str, key: str, version: str, value: Any) -> None:
    assert get_release(version).table(topic)[key] == value


@pytest.mark.parametrize(
    ("version", "choices"),
    [
        ("0.18.1", ["strict", "probabilistic"]),
        ("0.20.2", ["strict", "probabilistic", "synthetic"]),
        ("0.21.0", ["standard", "synthetic"]),
        ("0.25.0", ["standard", "synthetic", "block"]),
        ("0.33.0", ["standard", "synthetic", "block", "fly"]),
    ],
)
def test_ways_of_rejection_by_version(version: str, choices: list[str]) -> None:
    assert get_release(version).table("spec_fields")["rejection_sample_method"]["choices"] == choices


@pytest.mark.parametrize(
    ("version", "count", "newest"),
    [
        ("0.9.2", 1, "llama"),
        ("0.10.2", 2, "qwen"),
        ("0.15.1", 4, "gpt_oss"),
        ("0.16.0", 7, "afmoe"),
        ("0.17.0", 8, "nemotron_h"),
        ("0.19.0", 12, "kimi_k25"),
        ("0.20.2", 14, "gemma4"),
        ("0.21.0", 15, "laguna"),
    ],
)
def test_the_list_of_eagle3_targets_grew(version: str, count: int, newest: str) -> None:
    table = get_release(version).table("aux_targets")
    assert len(table) == count
    assert newest in table


def test_the_list_of_eagle3_targets_is_gone_since_0_22() -> None:
    assert all(not release.table("aux_targets") for release in releases() if release.version >= Version("0.22"))


@pytest.mark.parametrize(("version", "classes"), [("0.22.0", 65), ("0.26.0", 73), ("0.33.0", 103)])
def test_classes_that_eagle3_can_tap_are_counted_through_inheritance(version: str, classes: int) -> None:
    """Only 27, 37 and 61 name the interface as a base of their own; the rest inherit it."""
    table = get_release(version).table("architectures")
    targets = [row for row in table.values() if row["group"] != "speculative_decoding"]
    assert len({(row["module"], row["class"]) for row in targets if "SupportsEagle3" in row["interfaces"]}) == classes
    assert "SupportsEagle3" not in table["GPT2LMHeadModel"]["interfaces"]
    assert "SupportsEagle3" in table["LlamaForCausalLM"]["interfaces"]


def test_the_short_alias_of_the_speculative_config_is_newer_than_the_flag() -> None:
    assert get_release("0.18.1").table("flags")["--speculative-config"]["aliases"] == []
    assert get_release("0.19.0").table("flags")["--speculative-config"]["aliases"] == ["-sc"]


def test_the_remap_names_where_the_count_of_mtp_layers_stands() -> None:
    row = get_release("0.19.1").table("mtp_remap")["deepseek_v3"]
    assert (row["model_type"], row["architectures"]) == ("deepseek_mtp", ["DeepSeekMTPModel"])
    assert row["n_predict"] == "num_nextn_predict_layers"
    assert get_release("0.33.0").table("mtp_remap")["qwen3_5_moe"]["n_predict"] == "mtp_num_hidden_layers"


def test_every_method_that_a_name_leads_to_is_a_method() -> None:
    for release in releases():
        table = release.table("method_inference")
        assert set(table["order"]) == set(table) - {"order"} <= set(release.table("methods"))


def test_every_remapped_architecture_is_registered() -> None:
    for release in releases():
        known = release.table("architectures")
        for name, row in release.table("mtp_remap").items():
            assert set(row.get("architectures", ())) <= set(known), (str(release), name)


def test_methods_in_lists_of_the_engine_are_methods() -> None:
    for release in releases():
        known = set(release.table("methods"))
        listed = release.table("async_scheduling")
        assert set(listed["default"]) <= set(listed["explicit"]) <= known
        assert set(release.table("runner_v2").get("methods", ())) <= known


def test_switches_have_no_choices_and_every_flag_a_field() -> None:
    for release in releases():
        for name, row in release.table("flags").items():
            assert row["field"].isidentifier(), name
            assert row["kind"] in ("switch", "value", "list", "json"), name
            assert not (row["kind"] == "switch" and row.get("choices")), name
            assert all(alias.startswith("-") for alias in row["aliases"]), name


BY_DEVICE_OR_FORMAT = frozenset({
    "bitblas", "cpu_awq", "cpu_gptq", "gguf", "gptq_bitblas", "gptq_marlin_24", "ipex", "marlin", "mxfp8",
    "petit_nvfp4",
})  # fmt: skip
"""Quantization methods that take another's weights on one device only, or by a format that the checkpoint names."""


def test_every_method_that_takes_weights_of_another_has_been_judged() -> None:
    judged = {
        method
        for release in releases()
        for method in release.table("quantization_methods")
        for checkpoint in ("auto-round", "awq", "fp8", "gptq", "modelopt", "mxfp4")
        if reads_weights_of(method, checkpoint)
    }
    for release in releases():
        overriding = {name for name, row in release.table("quantization_methods").items() if row["overrides"]}
        assert overriding <= judged | BY_DEVICE_OR_FORMAT, str(release)


@pytest.mark.parametrize(
    ("method", "needs"), [("awq", True), ("compressed-tensors", True), ("fp8", False), ("mxfp8", False), ("x", False)]
)
def test_methods_that_need_a_quantized_checkpoint(method: str, needs: bool) -> None:
    assert needs_checkpoint(method) is needs
