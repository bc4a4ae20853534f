from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tests.support.dense_heads import DenseHead, chain, drafts, first_pass, target_states
from tests.support.made_drafters import write_eagle

from draftwise.core import InvalidSetup
from draftwise.engine.models import load_model
from draftwise.engine.proposers.eagle import load_eagle

LAYERS = 4
SEQUENCES = [torch.randint(96, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (41, 30)]
CUTS = [18, 19, 22, 41]
VARIANTS = {
    "plain": {},
    "two layers": {"num_layers": 2},
    "own embedding": {"own_embedding": True},
    "biased": {"attention_bias": True},
}


@pytest.fixture
def target_path(save_tiny):
    return save_tiny("llama", num_hidden_layers=LAYERS)[0]


@pytest.fixture
def target(target_path):
    return load_model(target_path, dtype="float64", device="cpu")


def dense_eagle(head: DenseHead, target):
    embedding = head.tensors.get("embed_tokens.weight", target.weights.embedding_VH.double())

    def forward(tokens, carry):
        x = head.linear("fc", torch.cat((F.embedding(tokens, embedding), carry.double()), -1))
        x = head.layer("layers.0.", x, x)
        for i in range(1, head.config["num_hidden_layers"]):
            x = head.layer(f"layers.{i}.", x, head.norm(f"layers.{i}.input_layernorm", x))
        return target.logits(x.to(target.dtype)).double() * head.config.get("logit_scale", 1.0), x

    return forward


@pytest.mark.parametrize("variant", VARIANTS)
def test_drafts_are_those_of_the_dense_network(variant, target, tmp_path):
    folder = write_eagle(tmp_path / "head", target.config, **VARIANTS[variant])
    drafter, dense = load_eagle(folder, target), dense_eagle(DenseHead(folder), target)
    assert drafter.aux_layers == (LAYERS + 1,)
    states = [target_states(target, tokens, (LAYERS + 1,)) for tokens in SEQUENCES]
    found = drafts(drafter, states, SEQUENCES, CUTS, 4)
    for cut, rows in zip(CUTS, found, strict=True):
        known = [tokens[:cut] for tokens in SEQUENCES]
        assert rows == [chain(dense, s[: len(t) - 1], t, 4) for s, t in zip(states, known, strict=True)]


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-6), ("float32", 1e-4), ("bfloat16", 0.2)])
def test_logits_agree_with_the_dense_network(dtype, tolerance, target_path, tmp_path):
    target = load_model(target_path, dtype=dtype, device="cpu")
    folder = write_eagle(tmp_path / "head", target.config, num_layers=2, logit_scale=0.5)
    states = target_states(target, SEQUENCES[0], (LAYERS + 1,))
    logits, carry = first_pass(load_eagle(folder, target), states, SEQUENCES[0])
    expected, left = dense_eagle(DenseHead(folder), target)(torch.tensor(SEQUENCES[0][1:]), states[:-1])
    assert logits.dtype == target.dtype
    torch.testing.assert_close(logits.double(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(carry.double(), left, rtol=tolerance, atol=tolerance)


def test_borrows_the_embedding_of_its_target(target, tmp_path):
    folder = write_eagle(tmp_path / "head", target.config)
    shared = target.weights.embedding_VH
    assert load_eagle(folder, target)._embedding_VH is shared
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"embed_tokens.weight": shared.clone()}, folder / "model.safetensors")
    assert load_eagle(folder, target)._embedding_VH is shared
    save_file(tensors | {"embed_tokens.weight": shared + 1}, folder / "model.safetensors")
    assert load_eagle(folder, target)._embedding_VH is not shared


def test_reaches_as_far_as_its_target(target, tmp_path):
    folder = write_eagle(tmp_path / "head", target.config, max_position_embeddings=16)
    assert load_eagle(folder, target).kv_shape.max_position_embeddings == 64
    window = {"sliding_window": 24, "layer_types": ["sliding_attention"]}
    folder = write_eagle(tmp_path / "windowed", target.config, **window)
    assert load_eagle(folder, target).kv_shape.max_position_embeddings == 24


@pytest.mark.parametrize("name", ["fc.weight", "layers.0.self_attn.k_proj.weight", "layers.1.input_layernorm.weight"])
def test_missing_tensors_are_named(name, target, tmp_path):
    folder = write_eagle(tmp_path / "head", target.config, num_layers=2)
    tensors = load_file(folder / "model.safetensors")
    del tensors[name]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(InvalidSetup, match=name):
        load_eagle(folder, target)


@pytest.mark.parametrize(
    "name", ["lm_head.weight", "norm.weight", "layers.0.input_layernorm.weight", "model.fc.weight"]
)
def test_unknown_tensors_are_named(name, target, tmp_path):
    folder = write_eagle(tmp_path / "head", target.config)
    tensors = load_file(folder / "model.safetensors") | {"layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}
    save_file(tensors, folder / "model.safetensors")
    load_eagle(folder, target)
    save_file(tensors | {name: torch.zeros(3)}, folder / "model.safetensors")
    with pytest.raises(InvalidSetup, match=rf"does not describe \(1\): .*{name}"):
        load_eagle(folder, target)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"hidden_size": 64}, "hidden-size-differs"),
        ({"vocab_size": 97}, "head-vocabulary-differs"),
        ({"architectures": ["EagleMiniCPMForCausalLM"]}, "unsupported-architecture"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantized"),
        ({"intermediate_size": 40}, "tensor-shapes"),
    ],
)
def test_heads_of_another_target_are_refused(changes, code, target, tmp_path, edit_config):
    folder = write_eagle(tmp_path / "head", target.config)
    edit_config(folder, **changes)
    with pytest.raises(InvalidSetup) as caught:
        load_eagle(folder, target)
    assert [finding.code for finding in caught.value.findings] == [code]


def test_config_may_leave_the_architecture_out(target, tmp_path, edit_config):
    folder = write_eagle(tmp_path / "head", target.config)
    edit_config(folder, architectures=None)
    assert "architectures" not in json.loads((folder / "config.json").read_text())
    load_eagle(folder, target)
