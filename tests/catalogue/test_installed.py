"""The catalogue against a vLLM that is installed: set DRAFTWISE_VLLM_PYTHON to an interpreter that can import it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from draftwise.extract.model_registry import _ASIDE
from draftwise.knowledge.vllm import Release, get_release

PYTHON = os.environ.get("DRAFTWISE_VLLM_PYTHON")
CLASSES = ("LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen2MoeForCausalLM", "GPT2LMHeadModel", "DeepseekV3ForCausalLM",
           "MambaForCausalLM", "NemotronHForCausalLM", "GptOssForCausalLM", "Eagle3LlamaForCausalLM",
           "EagleLlamaForCausalLM", "DeepSeekMTPModel", "TransformersForCausalLM",
           "TransformersEmbeddingModel")  # fmt: skip
COMPUTED = {"expression"}

pytestmark = pytest.mark.skipif(PYTHON is None, reason="DRAFTWISE_VLLM_PYTHON names no interpreter with vLLM")


@pytest.fixture(scope="module")
def installed() -> dict[str, Any]:
    """What the installed vLLM says about itself."""
    assert PYTHON is not None
    script = Path(__file__).parents[1] / "support" / "read_installed.py"
    done = subprocess.run(
        [PYTHON, str(script), *CLASSES], capture_output=True, text=True, timeout=300, cwd=script.parent,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    read: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return read


@pytest.fixture(scope="module")
def release(installed: dict[str, Any]) -> Release:
    return get_release(installed["version"])


@pytest.mark.parametrize("topic", ["methods", "spec_fields", "attention_backends", "env", "architectures"])
def test_the_names_are_the_same(topic: str, installed: dict[str, Any], release: Release) -> None:
    assert set(release.table(topic)) == set(installed[topic])


def test_sampling_parameters_are_the_same(installed: dict[str, Any], release: Release) -> None:
    public = {name for name in installed["sampling_params"] if not name.startswith("_")}
    assert set(release.table("sampling_params")) == public


def test_spec_fields_have_the_same_defaults_and_bounds(installed: dict[str, Any], release: Release) -> None:
    table = release.table("spec_fields")
    read = {name: {key: table[name].get(key) for key in row} for name, row in installed["spec_fields"].items()}
    assert read == installed["spec_fields"]


def test_architectures_load_the_same_classes(installed: dict[str, Any], release: Release) -> None:
    for name, (module, cls) in installed["architectures"].items():
        row = release.table("architectures")[name]
        assert (module.removeprefix("vllm.model_executor.models."), cls) == (row["module"], row["class"])


@pytest.mark.parametrize("name", CLASSES)
def test_interfaces_are_those_of_the_class(name: str, installed: dict[str, Any], release: Release) -> None:
    real = {base for base in installed["interfaces"][name] if base.startswith(("Supports", "Is", "Has", "MixtureOf"))}
    assert set(release.table("architectures")[name]["interfaces"]) == real - _ASIDE


def test_engine_defaults_are_the_same(installed: dict[str, Any], release: Release) -> None:
    table = release.table("engine_defaults")
    for name, real in installed["engine_defaults"].items():
        if not name.startswith("_") and _comparable(table[name], real):
            assert table[name] == real, name


def test_every_flag_is_known_with_its_spellings(installed: dict[str, Any], release: Release) -> None:
    table = release.table("flags")
    assert set(table) == set(installed["flags"]) - {"--help"}
    for name, row in table.items():
        real = installed["flags"][name]
        assert sorted([name, *row["aliases"], *filter(None, [row.get("negation")])]) == sorted(real["options"])
        assert row["field"] == real["dest"]
        assert (row["kind"] == "switch") == (not real["takes_value"]), name
        assert (row["kind"] == "list") == (real["nargs"] in ("+", "*")), name
        assert row.get("optional_value", False) == (real["nargs"] == "?"), name


def test_every_flag_has_the_same_choices_and_default(installed: dict[str, Any], release: Release) -> None:
    for name, row in release.table("flags").items():
        real = installed["flags"][name]
        if real["choices"] is not None and "choices" in row:
            assert set(row["choices"]) == set(real["choices"]) - {None}, name
        if real["choices"] is None and "choices" in row:
            assert "Enum" in row["type"] or "Level" in row["type"], name
        if _comparable(row["default"], real["default"]):
            assert row["default"] == real["default"], name


def _comparable(read: Any, real: Any) -> bool:
    """Say whether both are plain values: not computed at run time, an object, or an enumeration's member."""
    if isinstance(read, dict) and set(read) == COMPUTED:
        return False
    return not (isinstance(real, str) and real.startswith(("<", "=="))) and not (isinstance(read, str) and read == "O2")
