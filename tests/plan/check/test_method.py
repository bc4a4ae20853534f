"""Which method a config stands for, release by release."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.made_checkpoints import DEEPSEEK, DFLASH, DSPARK, EAGLE3, LLAMA, MEDUSA, judge, rejections, write


def method_of(folder: Path, name: str, config: Mapping[str, Any], version: str, method: str | None = None) -> str:
    """Return the resolved method of a drafter, or the code that refuses it."""
    spec = {"model": write(folder, name, config), "num_speculative_tokens": 3} | ({"method": method} if method else {})
    report = judge(write(folder, "llama", LLAMA), spec, version)
    return rejections(report)[0] if not report.accepted else "" if report.resolved is None else report.resolved.method


@pytest.mark.parametrize(
    ("name", "config", "method", "version", "outcome"),
    [
        # The name decides, whatever was asked for.
        ("my-eagle-head", LLAMA, None, "0.32.0", "eagle"),
        ("my-eagle-head", LLAMA, "draft_model", "0.32.0", "eagle"),
        ("my-eagle-head", LLAMA, "mtp", "0.19.1", "eagle"),
        ("EAGLE3-head", EAGLE3, None, "0.32.0", "eagle3"),
        ("eagle3-head", LLAMA, None, "0.10.1", "eagle"),
        ("eagle3-head", LLAMA, None, "0.10.2", "eagle3"),
        ("my-dflash", DFLASH, None, "0.20.0", "dflash"),
        ("my-dspark", DSPARK, None, "0.25.0", "dspark"),
        # But four methods are immune.
        ("my-eagle-head", EAGLE3, "eagle3", "0.32.0", "eagle3"),
        # config.json decides next.
        ("head", MEDUSA, None, "0.32.0", "medusa"),
        ("head", MEDUSA, "draft_model", "0.32.0", "medusa"),
        ("head", DSPARK, None, "0.25.0", "dspark"),
        ("head", DEEPSEEK, None, "0.32.0", "mtp"),
        ("head", DEEPSEEK, None, "0.10.2", "deepseek_mtp"),
        # The rest is a draft model, where there is one.
        ("small", LLAMA, None, "0.32.0", "draft_model"),
        ("small", LLAMA, None, "0.16.0", "drafter-fits-no-method"),
        ("small", LLAMA, "draft_model", "0.15.0", "draft_model"),
        ("small", LLAMA, None, "0.14.0", "draft-model-not-supported"),
        ("small", LLAMA, "draft_model", "0.14.0", "draft-model-refused"),
        ("small", LLAMA, "medusa", "0.9.2", "draft_model"),
        ("small", LLAMA, "mtp", "0.32.0", "drafter-fits-no-method"),
        ("small", LLAMA, "medusa", "0.32.0", "medusa"),
        ("small", LLAMA, "medusa", "0.24.0", "drafter-fits-no-method"),
        ("head", EAGLE3, None, "0.32.0", "draft_model"),
    ],
)
def test_methods(
    tmp_path: Path, name: str, config: Mapping[str, Any], method: str | None, version: str, outcome: str
) -> None:
    assert method_of(tmp_path, name, config, version, method) == outcome


def test_a_head_that_runs_as_a_draft_model_is_warned_of(tmp_path: Path) -> None:
    spec = {"model": write(tmp_path, "head", EAGLE3), "num_speculative_tokens": 3}
    codes = {each.code for each in judge(write(tmp_path, "llama", LLAMA), spec).findings}
    assert "head-taken-for-draft-model" in codes


@pytest.mark.parametrize(
    ("version", "method", "outcome"),
    [
        ("0.21.0", None, "draft_model"),
        ("0.22.1", None, "custom_class"),
        ("0.22.1", "draft_model", "custom_class"),
        ("0.26.0", None, "custom_class"),
        ("0.26.0", "draft_model", "draft_model"),
    ],
)
def test_a_dotted_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, method: str | None, outcome: str
) -> None:
    write(tmp_path, "llama", LLAMA)
    write(tmp_path, "small.llama", LLAMA)
    monkeypatch.chdir(tmp_path)
    spec = {"model": "small.llama", "num_speculative_tokens": 3} | ({"method": method} if method else {})
    resolved = judge("llama", spec, version).resolved
    assert resolved is not None
    assert resolved.method == outcome


@pytest.mark.parametrize(("version", "deprecated"), [("0.10.2", False), ("0.11.0", True), ("0.33.0", True)])
def test_family_names_of_mtp(tmp_path: Path, version: str, deprecated: bool) -> None:
    spec = {"method": "deepseek_mtp", "num_speculative_tokens": 1}
    report = judge(write(tmp_path, "deepseek", DEEPSEEK), spec, version)
    assert ("mtp-alias" in {each.code for each in report.findings}) is deprecated
    assert report.resolved is not None
    assert report.resolved.method == ("mtp" if deprecated else "deepseek_mtp")


def test_old_releases_draft_with_the_targets_mtp_layers_whatever_is_asked(tmp_path: Path) -> None:
    target = write(tmp_path, "deepseek", DEEPSEEK)
    report = judge(target, {"method": "ngram", "num_speculative_tokens": 1}, "0.10.2")
    assert "target-implies-mtp" in {each.code for each in report.findings}
    assert report.resolved is not None
    assert report.resolved.model == target


@pytest.mark.parametrize(
    ("drafter", "version", "method"),
    [
        ("google/gemma-4-31B-it-assistant", "0.33.0", "mtp"),
        ("google/gemma-4-31B-it-assistant", "0.20.2", "draft_model"),
        ("models/gemma-4-31B-it-assistant", "0.33.0", ""),
    ],
)
def test_the_method_of_a_drafter_without_a_config_is_no_default(drafter: str, version: str, method: str) -> None:
    report = judge("google/gemma-4-31B-it", {"model": drafter, "num_speculative_tokens": 4}, version)
    assert ("" if report.resolved is None else report.resolved.method) == method
