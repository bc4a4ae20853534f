"""Exported drafters, and MTP modules joined with their target, as the engine and transformers load them."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from tests.support.training import build, random_batch

from draftwise.checkpoints.identity import target_identity, write_identity
from draftwise.cli import main
from draftwise.core import InvalidSetup
from draftwise.engine.models import load_model
from draftwise.engine.proposers.mtp import load_mtp
from draftwise.training.drafter_export import assemble_mtp, check_expressible, export_drafter
from draftwise.training.frozen_target import FrozenTarget


@pytest.fixture(scope="module")
def target(tiny_target):
    return FrozenTarget.load(tiny_target)


def exported(method, folder):
    folder.mkdir()
    method.export(folder)
    return folder


def tensors_of(folder):
    files = sorted(folder.glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def test_assembled_checkpoint_computes_what_the_target_does(target, tiny_target, tmp_path, monkeypatch):
    monkeypatch.setattr("draftwise.training.drafter_export._SHARD_BYTES", 100_000)
    modules = exported(build("mtp", target), tmp_path / "modules")
    assemble_mtp(tiny_target, modules, tmp_path / "joint")
    assert len(list((tmp_path / "joint").glob("*.safetensors"))) > 1
    joint = transformers.Qwen2ForCausalLM.from_pretrained(tmp_path / "joint").eval()
    tokens_BT = random_batch(target).tokens_BT
    final_BTH = target.compute_states(random_batch(target), ()).final_BTH
    with torch.no_grad():
        torch.testing.assert_close(joint(tokens_BT).logits, final_BTH @ target.head_VH.T, rtol=1e-4, atol=1e-4)
    drafter = load_mtp(tmp_path / "joint", load_model(tmp_path / "joint"))
    alone = load_mtp(modules, load_model(tiny_target))
    hidden = torch.randn(2, target.hidden_size)
    torch.testing.assert_close(drafter.logits(hidden), alone.logits(hidden))
    assert target_identity(tmp_path / "joint") == target_identity(tiny_target)


def test_target_without_a_place_in_mimo_is_refused_with_all_reasons():
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "head_dim": 32,
        "intermediate_size": 128,
        "vocab_size": 260,
        "attention_bias": True,
        "mlp_bias": True,
    }
    with pytest.raises(InvalidSetup, match=r"output projections.*MLP has biases.*head_dim is 32"):
        check_expressible(config, where="config.json")
    with pytest.raises(InvalidSetup, match="heads of q and k are normalized"):
        check_expressible(config | {"architectures": ["Qwen3ForCausalLM"], "head_dim": 16}, where="config.json")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("eagle3", {"draft_vocab_size": 90}, id="eagle3"),
        pytest.param("eagle3", {"parallel": True, "mask_token_id": 7}, id="p-eagle"),
        pytest.param("dflash", {"num_layers": 1}, id="dflash"),
    ],
)
def test_speculators_format_and_back_is_the_same_drafter(name, options, target, tiny_target, tmp_path):
    plain = exported(build(name, target, **options), tmp_path / "plain")
    write_identity(plain, tiny_target, {})
    there = export_drafter(plain, tmp_path / "speculators", target=tiny_target, layout="speculators")
    config = json.loads((tmp_path / "speculators" / "config.json").read_text())
    assert config["speculators_config"]["verifier"]["name_or_path"] == str(tiny_target)
    assert there.speculative_config.get("parallel_drafting", False) == bool(options.get("parallel"))
    export_drafter(tmp_path / "speculators", tmp_path / "back", target=tiny_target, layout="vllm")
    before, after = tensors_of(plain), tensors_of(tmp_path / "back")
    assert torch.equal(after.pop("embed_tokens.weight"), target.embedding_VH)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert (tmp_path / "back" / "draftwise.json").read_bytes() == (plain / "draftwise.json").read_bytes()


def test_command_joins_mtp_modules_and_says_how_to_serve(target, tiny_target, tmp_path):
    modules = exported(build("mtp", target), tmp_path / "modules")
    arguments = ["export", str(modules), "--target", str(tiny_target), "--out", str(tmp_path / "joint")]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert f"vllm serve {tmp_path / 'joint'} --speculative-config" in result.output
    assert (tmp_path / "joint" / "tokenizer.json").exists()
    again = CliRunner().invoke(main, arguments)
    assert again.exit_code == 2
    assert "already exists" in again.output


@pytest.mark.parametrize(("name", "options"), [("medusa", {"num_heads": 2}), ("mlp_speculator", {"n_predict": 2})])
def test_heads_are_exported_with_as_many_draft_tokens_as_there_are(name, options, target, tiny_target, tmp_path):
    plain = exported(build(name, target, **options), tmp_path / "plain")
    arguments = ["export", str(plain), "--target", str(tiny_target), "--out"]
    result = CliRunner().invoke(main, [*arguments, str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert '"num_speculative_tokens": 2' in result.output
    refused = CliRunner().invoke(main, [*arguments, str(tmp_path / "more"), "--num-speculative-tokens", "3"])
    assert refused.exit_code == 2
    assert str(plain) in refused.output
    assert ".more-" not in refused.output


def test_incomplete_drafter_leaves_nothing_behind(target, tiny_target, tmp_path):
    plain = exported(build("eagle", target), tmp_path / "plain")
    tensors = tensors_of(plain)
    del tensors["fc.weight"]
    save_file(tensors, plain / "model.safetensors")
    with pytest.raises(InvalidSetup, match=r"fc\.weight"):
        export_drafter(plain, tmp_path / "out", target=tiny_target, layout="vllm")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plain"]
