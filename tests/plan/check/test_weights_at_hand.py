"""Checkpoints that lie here are looked into; directories with a config.json alone are not spoken of."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.made_checkpoints import DEEPSEEK, EAGLE3, LLAMA, judge, rejections, write

from draftwise.core import CheckOutcome, Severity
from draftwise.knowledge.vllm import get_release
from draftwise.plan.check import Report

BUNDLE = Path(__file__).parents[3] / "bundle"
FAMILIES = get_release("0.33.0").table("mtp_remap")
ABOUT_WEIGHTS = {"weights-not-inspected", "mtp-tensors-missing", "tensors-missing", "hidden-size-differs"}


def write_weights(directory: str, names: Mapping[str, tuple[int, ...]]) -> None:
    """Write a safetensors file of zeros."""
    header: dict[str, Any] = {}
    end = 0
    for name, shape in names.items():
        start, end = end, end + 2 * shape[0] * shape[1]
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    (Path(directory) / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))


def bundled(target: str, drafter: str, method: str = "eagle3") -> Report:
    spec = {"method": method, "model": str(BUNDLE / drafter), "num_speculative_tokens": 3}
    return judge(str(BUNDLE / target), spec)


def errors(report: Report) -> set[str]:
    return {finding.code for finding in report.findings if finding.severity is Severity.ERROR}


@pytest.mark.parametrize(
    ("drafter", "method"), [("eagle3", "eagle3"), ("eagle", "eagle"), ("draft_model", "draft_model")]
)
def test_a_drafter_of_the_bundle_fits_its_target(drafter: str, method: str) -> None:
    report = bundled("target", drafter, method)
    assert errors(report) == set()
    assert report.resolved is not None


def test_a_head_of_another_target_is_accepted_by_the_config_and_told_apart_by_its_weights() -> None:
    report = bundled("draft_model", "eagle3")
    assert rejections(report) == []
    assert errors(report) == {"tensors-missing", "hidden-size-differs", "layer-ids-out-of-range"}


def test_a_rejected_setup_is_not_looked_into() -> None:
    report = bundled("draft_model", "eagle3", "eagle")
    assert errors(report) == set(rejections(report)) == {"drafter-class-missing"}


def test_a_target_that_lost_its_mtp_modules(tmp_path: Path) -> None:
    target = write(tmp_path, "target", DEEPSEEK)
    spec = {"method": "mtp", "num_speculative_tokens": 1}
    assert not ABOUT_WEIGHTS & {finding.code for finding in judge(target, spec).findings}
    write_weights(target, {"model.embed_tokens.weight": (2000, 256)})
    report = judge(target, spec)
    assert errors(report) == {"mtp-tensors-missing"}
    assert errors(judge(target, {**spec, "model": target})) == {"mtp-tensors-missing"}


@pytest.mark.parametrize("mapped", FAMILIES)
def test_a_target_of_every_family_without_modules_is_refused_or_not_judged(tmp_path: Path, mapped: str) -> None:
    kind = "architectures" if FAMILIES[mapped]["by"] == "architecture" else "model_type"
    place = {"architectures": [mapped]} if kind == "architectures" else {"model_type": mapped}
    target = write(tmp_path, "target", {**DEEPSEEK, "num_nextn_predict_layers": None, "model_type": "x", **place})
    write_weights(target, {"model.embed_tokens.weight": (2000, 256)})
    report = judge(target, {"method": "mtp", "num_speculative_tokens": 1}, "0.33.0")
    assert report.outcome is not CheckOutcome.ACCEPTED


def test_a_target_whose_config_does_not_count_its_modules_is_seen_by_its_tensors(tmp_path: Path) -> None:
    config = {**DEEPSEEK, "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next"}
    target = write(tmp_path, "target", {key: value for key, value in config.items() if "nextn" not in key})
    spec = {"method": "mtp", "num_speculative_tokens": 1}
    write_weights(target, {"model.embed_tokens.weight": (2000, 256)})
    assert errors(judge(target, spec)) == {"mtp-tensors-missing"}
    names = ("fc", "norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "layers.0.mlp.gate")
    write_weights(target, {f"mtp.{name}.weight": (2, 2) for name in names})
    assert errors(judge(target, spec)) == set()


def test_configs_without_weights_are_a_question_about_configs(tmp_path: Path) -> None:
    target, head = write(tmp_path, "target", LLAMA), write(tmp_path, "head", EAGLE3)
    spec = {"method": "eagle3", "model": head, "num_speculative_tokens": 3}
    assert not ABOUT_WEIGHTS & {finding.code for finding in judge(target, spec).findings}
    write_weights(target, {"model.embed_tokens.weight": (2000, 256)})
    (note,) = (each for each in judge(target, spec).findings if each.code == "weights-not-inspected")
    assert (note.severity, note.where) == (Severity.INFO, head)


def test_methods_without_a_drafter_have_no_pair() -> None:
    report = judge(str(BUNDLE / "target"), {"method": "ngram", "num_speculative_tokens": 3})
    assert not ABOUT_WEIGHTS & {finding.code for finding in report.findings}
