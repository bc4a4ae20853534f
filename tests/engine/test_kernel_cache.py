"""A folder of kernels is for one kind of machine, and refuses any other."""

from __future__ import annotations

import json

import pytest

from draftwise.core import InvalidSetup
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.kernel_cache import KernelCache, describe_platform, make_environment, name_setup

HERE = {"draftwise": "1.0", "torch": "2.11.0", "triton": "3.6.0", "processor": "NVIDIA H200", "capability": "9.0"}


def refused(folder, platform=HERE):
    with pytest.raises(InvalidSetup) as caught:
        KernelCache.open(folder, platform)
    (finding,) = caught.value.findings
    return finding


def test_an_empty_folder_becomes_this_machines_and_is_taken_again(tmp_path):
    KernelCache.open(tmp_path, HERE).add("one").add("two").add("one")
    assert KernelCache.open(tmp_path, HERE).setups == ("one", "two")


def test_compilers_that_are_ahead_of_the_engine_do_not_spoil_it(tmp_path):
    (tmp_path / "triton" / "ABC").mkdir(parents=True)
    assert KernelCache.open(tmp_path, HERE).setups == ()


@pytest.mark.parametrize("name", HERE)
def test_another_gpu_or_version_is_refused_by_name(name, tmp_path):
    KernelCache.open(tmp_path, HERE)
    before = (tmp_path / "kernels.json").read_bytes()
    finding = refused(tmp_path, HERE | {name: "another"})
    assert finding.code == "kernels-of-another"
    assert f"{name} {HERE[name]} there, another here" in finding.message
    assert (tmp_path / "kernels.json").read_bytes() == before


def test_a_fact_that_the_folder_does_not_tell_is_refused(tmp_path):
    KernelCache.open(tmp_path, {name: value for name, value in HERE.items() if name != "triton"})
    assert "triton None there, 3.6.0 here" in refused(tmp_path).message


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "letter.txt").write_text("Dear")
    assert refused(tmp_path).code == "not-kernels"
    assert [each.name for each in tmp_path.iterdir()] == ["letter.txt"]


@pytest.mark.parametrize("text", ["", "[]", '{"platform": {}}', '{"platform": 3, "setups": []}'])
def test_a_manifest_that_cannot_be_read_is_refused(text, tmp_path):
    (tmp_path / "kernels.json").write_text(text)
    assert refused(tmp_path).code == "not-kernels"


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidSetup, match="cannot be created"):
        make_environment(tmp_path / "file" / "folder")


def test_setups_have_one_name_if_they_compile_the_same(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 64}))
    config = EngineConfig(model=str(tmp_path), max_num_seqs=4)
    name = name_setup(config, None)
    assert name_setup(EngineConfig(model=str(tmp_path), max_num_seqs=4, load_format="dummy", seed=3), None) == name
    assert name_setup(EngineConfig(model=str(tmp_path), max_num_seqs=8), None) != name
    assert name_setup(config, json.dumps({"method": "ngram"})) != name
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 128}))
    assert name_setup(config, None) != name


def test_a_cpu_is_described_by_what_its_code_depends_on():
    told = describe_platform("cpu")
    assert {"draftwise", "python", "torch", "numba", "processor", "features"} < set(told)
    assert all(told.values())
