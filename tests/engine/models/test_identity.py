"""A drafter knows its target again however that is stored, and no other one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwise.checkpoints.identity import check_identity, target_identity, write_identity
from draftwise.core import InvalidSetup

BUNDLE = Path(__file__).parents[3] / "bundle"


def change(path, edit) -> None:
    """Rewrite a checkpoint's tensors."""
    tensors = load_file(path / "model.safetensors")
    edit(tensors)
    save_file(tensors, path / "model.safetensors")


@pytest.fixture
def target(save_tiny, tiny_target):
    path, _ = save_tiny("qwen3")
    shutil.copy(tiny_target / "tokenizer.json", path)
    return path


@pytest.fixture
def other(target):
    """A copy of the target to change."""
    return shutil.copytree(target, target.with_name("other"))


@pytest.fixture
def drafter(target, tmp_path):
    folder = tmp_path / "drafter"
    folder.mkdir()
    write_identity(folder, target, {"method": "eagle3", "steps": 10})
    return folder


def test_a_checkpoint_of_a_gguf_file_goes_by_the_files_name(target, tmp_path):
    unpacked = shutil.copytree(target, tmp_path / ("0123456789ab" * 2))
    config = json.loads((unpacked / "config.json").read_text())
    (unpacked / "config.json").write_text(json.dumps({"_name_or_path": "Tiny.Q4_1.gguf"} | config))
    write_identity(tmp_path, unpacked, {})
    assert json.loads((tmp_path / "draftwise.json").read_text())["target"]["name"] == "Tiny.Q4_1.gguf"


def test_sharding_does_not_matter(save_tiny):
    single = target_identity(save_tiny("llama")[0])
    path, _ = save_tiny("llama", shard_size="20KB")
    (path / "model.safetensors").unlink()
    assert len(list(path.glob("*.safetensors"))) > 2
    assert target_identity(path) == single
    assert single.keys() == {"weights"}


def test_what_multi_token_prediction_adds_does_not_matter(target, other, drafter, edit_config):
    def add(tensors):
        tensors["model.mtp_layers.0.input_proj.weight"] = torch.randn(32, 64)
        for i in range(3):
            tensors[f"model.layers.{i}.self_attn.q_proj.bias"] = torch.zeros(64)
        tensors["model.layers.3.self_attn.q_proj.weight"] = torch.randn(64, 32)

    change(other, add)
    edit_config(other, architectures=["MiMoForCausalLM"], num_nextn_predict_layers=1)
    assert target_identity(other) == target_identity(target)
    check_identity(drafter, other)


@pytest.mark.parametrize("name", ["model.layers.2.mlp.down_proj.weight", "model.norm.weight", "lm_head.weight"])
@pytest.mark.parametrize("place", [0, -1])
def test_a_changed_weight_is_another_target(target, other, drafter, name, place):
    def nudge(tensors):
        tensors[name].view(-1)[place] += 0.5

    change(other, nudge)
    with pytest.raises(InvalidSetup, match="weights differ") as caught:
        check_identity(drafter, other)
    assert "trained for qwen3" in str(caught.value)
    assert "tokenizer" not in str(caught.value)


def test_another_dtype_or_shape_is_another_target(target, other):
    change(other, lambda tensors: tensors.update({n: t.bfloat16() for n, t in tensors.items()}))
    assert target_identity(other)["weights"] != target_identity(target)["weights"]
    shutil.copy(target / "model.safetensors", other)
    change(other, lambda tensors: tensors.update({"model.norm.weight": tensors["model.norm.weight"].view(8, 4)}))
    assert target_identity(other)["weights"] != target_identity(target)["weights"]


def test_a_tied_head_does_not_count(save_tiny):
    path, _ = save_tiny("llama", tie_word_embeddings=True)
    before = target_identity(path)
    change(path, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}))
    assert target_identity(path) == before


def test_another_vocabulary_is_another_target(other, drafter):
    file = other / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    file.write_text(json.dumps(tokenizer))
    with pytest.raises(InvalidSetup, match="whose tokenizer differs") as caught:
        check_identity(drafter, other)
    assert [finding.code for finding in caught.value.findings] == ["recorded-tokenizer-differs"]
    change(other, lambda tensors: tensors["model.norm.weight"].add_(1))
    with pytest.raises(InvalidSetup, match="whose weights differ") as caught:
        check_identity(drafter, other)
    codes = [finding.code for finding in caught.value.findings]
    assert codes == ["trained-for-another-target", "recorded-tokenizer-differs"]


def test_what_is_written(target, drafter):
    check_identity(drafter, target)
    written = json.loads((drafter / "draftwise.json").read_text())
    assert written["training"] == {"method": "eagle3", "steps": 10}
    assert written["target"] == {"name": "qwen3"} | target_identity(target)
    assert [file.name for file in drafter.iterdir()] == ["draftwise.json"]


def test_a_drafter_that_says_nothing_is_left_alone(target, tmp_path):
    check_identity(tmp_path, target)


@pytest.mark.parametrize(
    ("text", "code"),
    [("{", "not-json"), ("[]", "not-an-object"), ("{}", "bad-identity"), ('{"target": 1}', "bad-identity")],
)
def test_a_damaged_file_is_refused(target, drafter, text, code):
    (drafter / "draftwise.json").write_text(text)
    with pytest.raises(InvalidSetup, match=r"draftwise\.json") as caught:
        check_identity(drafter, target)
    assert [finding.code for finding in caught.value.findings] == [code]


@pytest.mark.parametrize("drafter", sorted(BUNDLE.glob("*/draftwise.json")), ids=lambda file: file.parent.name)
def test_committed_drafters_carry_the_identity_of_the_bundled_target(drafter):
    recorded = json.loads(drafter.read_text())["target"]
    assert target_identity(BUNDLE / "target") == {key: recorded[key] for key in ("weights", "tokenizer")}
