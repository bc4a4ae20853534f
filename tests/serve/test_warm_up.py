"""`draftwise warm-up`, and servers that start from what it compiled; on a CPU, whose kernels take the same way."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from draftwise.cli import main
from draftwise.core import BackendError, InvalidSetup
from draftwise.engine.engine_config import EngineConfig
from draftwise.serve.engine_worker import fill_kernel_cache


@pytest.fixture(scope="module")
def filled(tiny_target, tmp_path_factory):
    """A folder of kernels, and what the command said."""
    folder = tmp_path_factory.mktemp("warm") / "kernels"
    result = CliRunner().invoke(main, ["warm-up", str(tiny_target), "--dtype", "float32", "--out", str(folder)])
    assert result.exit_code == 0, result.stderr
    return folder, result.stdout


def stamps(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*.nbc")}


def test_the_folder_holds_the_kernels_and_says_whose_they_are(filled):
    folder, said = filled
    assert len(stamps(folder)) == 4
    assert "4 kernels" in said
    manifest = json.loads((folder / "kernels.json").read_text())
    assert manifest["platform"]["device"] == "cpu"
    assert len(manifest["setups"]) == 1


def test_an_engine_that_starts_from_it_compiles_nothing(filled, tiny_target):
    folder, _ = filled
    before, phases = stamps(folder), []
    config = EngineConfig(model=str(tiny_target), dtype="float32", device="cpu")
    fill_kernel_cache(config, None, str(folder), on_phase=phases.append)
    assert stamps(folder) == before
    assert any(phase.name == "compile kernels" for phase in phases)


def test_another_machines_folder_is_refused_before_anything_is_loaded(filled, tiny_target, tmp_path):
    manifest = json.loads((filled[0] / "kernels.json").read_text())
    manifest["platform"] |= {"processor": "NVIDIA H100", "torch": "1.0"}
    (tmp_path / "kernels.json").write_text(json.dumps(manifest))
    phases = []
    with pytest.raises((InvalidSetup, BackendError), match="NVIDIA H100 there") as caught:
        fill_kernel_cache(EngineConfig(model=str(tiny_target)), None, str(tmp_path), on_phase=phases.append)
    assert isinstance(caught.value, InvalidSetup)
    assert {phase.name for phase in phases} == {"import torch"}
    result = CliRunner().invoke(main, ["serve", str(tiny_target), "--port", "0", "--kernel-cache", str(tmp_path)])
    assert result.exit_code == 2
    assert "torch 1.0 there" in result.stderr
    assert "Traceback" not in result.stderr
