"""Checkpoints in the speculators format, as drafter and as the model to serve."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.made_checkpoints import EAGLE3, LLAMA, judge, rejections, speculators, write

from draftwise.plan import check
from draftwise.plan.check.check_report import Resolved
from draftwise.setups.read import read_setups


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the working directory, so that the verifier's name finds it."""
    write(tmp_path, "llama", LLAMA)
    write(tmp_path, "head", speculators())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def resolved(version: str, spec: dict[str, object] | None = None, target: str = "head") -> Resolved:
    report = judge(target, spec, version)
    assert report.resolved is not None, rejections(report)
    return report.resolved


@pytest.mark.parametrize("version", ["0.10.1", "0.11.0", "0.19.1", "0.32.0"])
def test_a_served_checkpoint_names_its_own_speculation(folder: Path, version: str) -> None:
    found = resolved(version)
    assert (found.method, found.num_speculative_tokens, found.model) == ("eagle3", 3, "head")
    assert found.draft_architectures == ("Eagle3LlamaForCausalLM",)
    assert found.target_architectures == ("LlamaForCausalLM",)


def test_one_release_serves_it_without_speculation(folder: Path) -> None:
    report = judge("head", None, "0.10.2")
    assert report.accepted
    assert report.resolved is None
    assert "speculators-settings-lost" in {each.code for each in report.findings}


@pytest.mark.parametrize(
    ("version", "tokens", "code"), [("0.28.0", 3, "speculators-json-replaced"), ("0.29.0", 5, None)]
)
def test_the_operators_json(folder: Path, version: str, tokens: int, code: str | None) -> None:
    spec = {"num_speculative_tokens": 5}
    assert resolved(version, spec).num_speculative_tokens == tokens
    assert (code in {each.code for each in judge("head", spec, version).findings}) is (code is not None)


@pytest.mark.parametrize("version", ["0.22.0", "0.26.0", "0.32.0"])
@pytest.mark.parametrize("flag", ["--spec-method eagle3", "--spec-model llama", "--spec-tokens 3"])
def test_a_checkpoint_has_the_keys_that_flags_would_add(folder: Path, version: str, flag: str) -> None:
    for rest, code in (("", None), (flag, "spec-flag-repeats-key")):
        (reading,) = read_setups(f"vllm serve head {rest}", engine_version=version)
        report = check.judge(reading)
        assert rejections(report) == ([code] if code else [])
        assert reading.setup == report.setup
    (reading,) = read_setups("vllm serve llama --spec-method ngram --spec-tokens 3", engine_version=version)
    assert rejections(check.judge(reading)) == []


def test_method_and_model_stay_locked(folder: Path) -> None:
    report = judge("head", {"method": "ngram", "model": "llama"}, "0.32.0")
    assert report.resolved is not None
    assert (report.resolved.method, report.resolved.model) == ("eagle3", "head")
    assert "speculators-json-merged" in {each.code for each in report.findings}


def test_a_local_verifier_is_refused_at_last(folder: Path) -> None:
    assert rejections(judge("head", None, "0.33.0")) == ["speculators-local-verifier"]


@pytest.mark.parametrize(
    ("kind", "since", "method", "parallel"),
    [("dflash", "0.20.0", "dflash", True), ("peagle", "0.22.0", "eagle3", True), ("dflash2", "0.29.0", "dflash", True)],
)
def test_types_arrive_with_releases(folder: Path, kind: str, since: str, method: str, parallel: bool) -> None:
    write(folder, kind, speculators(kind, mask_token_id=7, aux_hidden_state_layer_ids=[1, 2]))
    found = resolved(since, target=kind)
    assert (found.method, found.parallel_drafting) == (method, parallel)
    assert not judge(kind, None, "0.19.1").accepted


def test_as_a_drafter_the_number_of_tokens_is_still_needed(folder: Path) -> None:
    assert rejections(judge("llama", {"method": "eagle3", "model": "head"}, "0.32.0")) == ["tokens-missing"]


@pytest.mark.parametrize(
    ("change", "version", "code"),
    [
        ({"speculators_model_type": "hydra"}, "0.32.0", "unknown-speculators-type"),
        ({"transformer_layer_config": {**EAGLE3, "model_type": "mistral"}}, "0.32.0", "speculators-layer-types"),
        ({"speculators_config": {"proposal_methods": []}}, "0.15.1", "speculators-incomplete"),
    ],
)
def test_checkpoints_that_cannot_be_read(folder: Path, change: dict[str, object], version: str, code: str) -> None:
    write(folder, "broken", {**speculators(), **change})
    spec = {"method": "eagle3", "model": "broken", "num_speculative_tokens": 3}
    assert rejections(judge("llama", spec, version)) == [code]


def test_a_block_drafter_without_its_mask(folder: Path) -> None:
    write(folder, "blocks", speculators("dflash"))
    spec = {"method": "dflash", "model": "blocks", "num_speculative_tokens": 3}
    assert rejections(judge("llama", spec, "0.32.0")) == ["speculators-key-missing"]


@pytest.mark.parametrize("spec", [{"draft_tensor_parallel_size": 1}, {"num_speculative_tokens": 3}])
def test_a_target_that_nobody_has_seen_may_bring_method_model_and_tokens(spec: dict[str, object]) -> None:
    report = judge("org/unseen", spec, "0.33.0")
    assert not rejections(report)
    assert (report.resolved, report.accepted) == (None, None)


def test_an_unseen_target_does_not_excuse_a_drafter_without_tokens() -> None:
    assert rejections(judge("org/unseen", {"model": "org/head"}, "0.33.0")) == ["tokens-missing"]
