from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tests.support.dense_heads import DenseHead, chain, drafts, first_pass, target_states
from tests.support.made_drafters import write_eagle3

from draftwise.checkpoints.config_values import MASK_KEYS
from draftwise.checkpoints.recognize import from_plain
from draftwise.core import InvalidSetup
from draftwise.engine.models import load_model
from draftwise.engine.proposers.eagle3 import load_eagle3

LAYERS = 4
AUX_LAYERS = (0, 2, 4)
SEQUENCES = [torch.randint(96, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (41, 30)]
CUTS = [18, 19, 22, 41]
VARIANTS = {
    "plain": {},
    "other layer name": {"first_layer": "layers.0."},
    "three layers": {"num_layers": 3},
    "norm before residual": {"norm_before_residual": True},
    "norm before fc": {"norm_before_fc": True},
    "norm before fc, nested": {"eagle_config": {"norm_before_fc": True}},
    "norms of each": {"fc_norm": True},
    "norm output": {"norm_output": True},
    "all norms": {"norm_before_residual": True, "norm_before_fc": True, "fc_norm": True, "norm_output": True},
    "five states": {"aux_layers": (0, 1, 2, 3, 4)},
    "states out of order": {"aux_layers": (4, 2, 0, 2)},
    "no states": {"eagle_config": {"use_aux_hidden_state": False}},
    "biased": {"attention_bias": True, "num_layers": 2},
    "qwen3": {"architectures": ["Eagle3Qwen3ForCausalLM"]},
    "own embedding and head": {"own_embedding": True, "own_head": True},
    "draft vocabulary": {"draft_vocab_size": 24},
    "narrower": {"hidden_size": 24, "target_hidden_size": 32, "own_embedding": True, "own_head": True},
    "mask not used": {"parallel": True},
}


@pytest.fixture
def target_path(save_tiny):
    return save_tiny("llama", num_hidden_layers=LAYERS)[0]


@pytest.fixture
def target(target_path):
    return load_model(target_path, dtype="float64", device="cpu")


class DenseEagle3(DenseHead):
    def __init__(self, folder, target) -> None:
        super().__init__(folder)
        self.target, self.options = target, self.config | (self.config.get("eagle_config") or {})
        self.first = "midlayer." if "midlayer.hidden_norm.weight" in self.tensors else "layers.0."
        self.embedding = self.tensors.get("embed_tokens.weight", target.weights.embedding_VH.double())

    def enter(self, states):
        if not self.options.get("use_aux_hidden_state", True):
            return states.double()
        states = states.double()
        if self.options.get("norm_before_fc"):
            states = self.norm("input_norm", states)
        if self.options.get("fc_norm"):
            parts = states.split(self.target.shape.hidden_size, -1)
            states = torch.cat([self.norm(f"fc_norm.{i}", part) for i, part in enumerate(parts)], -1)
        return self.linear("fc", states)

    def __call__(self, tokens, carry):
        embedded = self.norm(f"{self.first}input_layernorm", F.embedding(tokens, self.embedding))
        normed = self.norm(f"{self.first}hidden_norm", carry)
        x = normed if self.options.get("norm_before_residual") else carry
        x = self.layer(self.first, x, torch.cat((embedded, normed), -1))
        for i in range(1, self.config["num_hidden_layers"]):
            x = self.layer(f"layers.{i}.", x, self.norm(f"layers.{i}.input_layernorm", x))
        hidden = self.norm("norm", x)
        own_head = "lm_head.weight" in self.tensors
        logits = self.linear("lm_head", hidden) if own_head else self.target.logits(hidden.to(self.target.dtype))
        return logits.double() * self.config.get("logit_scale", 1.0), hidden if self.options.get("norm_output") else x


@pytest.mark.parametrize("variant", VARIANTS)
def test_drafts_are_those_of_the_dense_network(variant, target, tmp_path):
    folder = write_eagle3(tmp_path / "head", target.config, **{"aux_layers": AUX_LAYERS} | VARIANTS[variant])
    drafter, dense = load_eagle3(folder, target), DenseEagle3(folder, target)
    aux_layers = {"no states": (LAYERS + 1,), "five states": (0, 1, 2, 3, 4)}.get(variant, AUX_LAYERS)
    assert drafter.aux_layers == aux_layers
    ids = None
    if "d2t" in dense.tensors:
        ids = dense.tensors["d2t"] + torch.arange(len(dense.tensors["d2t"]))
        assert dense.tensors["t2d"].nonzero()[:, 0].tolist() == drafter.target_ids_U.tolist() == ids.tolist()
    states = [target_states(target, tokens, aux_layers) for tokens in SEQUENCES]
    found = drafts(drafter, states, SEQUENCES, CUTS, 4)
    for cut, rows in zip(CUTS, found, strict=True):
        known = [tokens[:cut] for tokens in SEQUENCES]
        entered = [dense.enter(s[: len(t) - 1]) for s, t in zip(states, known, strict=True)]
        assert rows == [chain(dense, e, t, 4, ids) for e, t in zip(entered, known, strict=True)]


@pytest.mark.parametrize("settings", [{"logit_scale": 0.5}, {"fc_norm": True, "norm_before_fc": True}])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-6), ("float32", 1e-4), ("bfloat16", 0.3)])
def test_logits_agree_with_the_dense_network(settings, dtype, tolerance, target_path, tmp_path):
    target = load_model(target_path, dtype=dtype, device="cpu")
    folder = write_eagle3(tmp_path / "head", target.config, aux_layers=AUX_LAYERS, num_layers=2, **settings)
    states = target_states(target, SEQUENCES[0], AUX_LAYERS)
    logits, carry = first_pass(load_eagle3(folder, target), states, SEQUENCES[0])
    dense = DenseEagle3(folder, target)
    expected, left = dense(torch.tensor(SEQUENCES[0][1:]), dense.enter(states[:-1]))
    torch.testing.assert_close(logits.double(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(carry.double(), left, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("norms", [{}, {"fc_norm": True, "norm_before_fc": True}])
def test_parallel_drafts_fill_masks_in(norms, target, tmp_path):
    """As vLLM's P-EAGLE: k - 1 rows of the mask token behind the last token, each with the fused mask_hidden."""
    folder = write_eagle3(
        tmp_path / "head", target.config, aux_layers=AUX_LAYERS, parallel=True, draft_vocab_size=40, **norms
    )
    drafter, dense = load_eagle3(folder, target), DenseEagle3(folder, target)
    states = [target_states(target, tokens, AUX_LAYERS) for tokens in SEQUENCES]
    found = drafts(drafter, states, SEQUENCES, CUTS, 4, parallel=True)
    masked = dense.enter(dense.tensors["mask_hidden"].flatten()).expand(3, -1)
    for cut, rows in zip(CUTS, found, strict=True):
        for tokens, s, row in zip(SEQUENCES, states, rows, strict=True):
            known = torch.tensor(tokens[1:cut] + [dense.config["ptd_token_id"]] * 3)
            logits, _ = dense(known, torch.cat((dense.enter(s[: len(tokens[:cut]) - 1]), masked)))
            assert row == drafter.target_ids_U[logits[-4:].argmax(-1)].tolist()


@pytest.mark.parametrize("key", MASK_KEYS)
def test_masks_need_their_token_and_their_state(key, target, tmp_path, edit_config):
    folder = write_eagle3(tmp_path / "head", target.config, parallel=True)
    edit_config(folder, **{"ptd_token_id": None, key: 0})
    drafter = load_eagle3(folder, target)
    assert drafter.mask is not None
    assert drafter.mask.token_id == 0
    edit_config(folder, **{key: 96})
    with pytest.raises(InvalidSetup, match="outside the vocabulary"):
        load_eagle3(folder, target)
    edit_config(folder, **{key: None})
    assert load_eagle3(folder, target).mask is None
    assert load_eagle3(write_eagle3(tmp_path / "plain", target.config, ptd_token_id=3), target).mask is None


def test_aux_layers_named_anywhere_or_nowhere(target, save_tiny, tmp_path):
    nested = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 1, 2]}}
    assert load_eagle3(write_eagle3(tmp_path / "a", target.config, aux_layers=(), **nested), target).aux_layers == (
        1,
        2,
        3,
    )
    with pytest.raises(InvalidSetup, match="eagle_aux_hidden_state_layer_ids"):
        load_eagle3(write_eagle3(tmp_path / "b", target.config, aux_layers=()), target)
    deep = load_model(save_tiny("qwen3", num_hidden_layers=8)[0], dtype="float64", device="cpu")
    assert load_eagle3(write_eagle3(tmp_path / "c", deep.config, aux_layers=()), deep).aux_layers == (2, 4, 5)


@pytest.mark.parametrize("parallel", [False, True])
def test_speculators_format_is_the_same_head(parallel, target, tmp_path):
    settings = {"norm_before_residual": True, "attention_bias": True, "draft_vocab_size": 24}
    plain = write_eagle3(tmp_path / "a", target.config, aux_layers=AUX_LAYERS, parallel=parallel, **settings)
    other = write_eagle3(
        tmp_path / "b", target.config, aux_layers=AUX_LAYERS, parallel=parallel, first_layer="layers.0.", **settings
    )
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(from_plain(config, verifier="target", k=3)))
    states = target_states(target, SEQUENCES[0], AUX_LAYERS)
    tensors = {name.replace("midlayer.", "layers.0."): t for name, t in load_file(plain / "model.safetensors").items()}
    save_file(tensors, other / "model.safetensors")
    ours, theirs = (first_pass(load_eagle3(folder, target), states, SEQUENCES[0]) for folder in (plain, other))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize(
    "name", ["fc.weight", "d2t", "lm_head.weight", "norm.weight", "midlayer.hidden_norm.weight", "fc_norm.1.weight"]
)
def test_missing_tensors_are_named(name, target, tmp_path):
    folder = write_eagle3(tmp_path / "head", target.config, draft_vocab_size=24, fc_norm=True)
    tensors = load_file(folder / "model.safetensors")
    del tensors[name]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(InvalidSetup, match=name):
        load_eagle3(folder, target)


def test_narrower_heads_cannot_borrow(target, tmp_path):
    folder = write_eagle3(tmp_path / "head", target.config, hidden_size=24, target_hidden_size=32)
    with pytest.raises(InvalidSetup, match=r"tensors \(2\): embed_tokens.weight, lm_head.weight"):
        load_eagle3(folder, target)


def test_unknown_tensors_are_named(target, tmp_path):
    folder = write_eagle3(tmp_path / "head", target.config, num_layers=2)
    unused = ("t2d", "mask_hidden", "input_norm.weight", "layers.1.hidden_norm.weight")
    tensors = load_file(folder / "model.safetensors") | {name: torch.zeros(3) for name in unused}
    save_file(tensors, folder / "model.safetensors")
    load_eagle3(folder, target)
    # d2t has no place where the draft vocabulary is the target's; vLLM refuses all of these as well.
    unknown = ("d2t", "fc_norm.0.weight", "fc.bias", "model.norm.weight")
    save_file(tensors | {name: torch.zeros(3) for name in unknown}, folder / "model.safetensors")
    with pytest.raises(InvalidSetup, match=rf"does not describe \(4\): .*{', '.join(sorted(unknown))}"):
        load_eagle3(folder, target)


@pytest.mark.parametrize("offsets", [[-1, 0, 0], [0, -1, 0], [0, 0, 94]])
def test_wrong_d2t_is_refused(offsets, target, tmp_path):
    folder = write_eagle3(tmp_path / "head", target.config, draft_vocab_size=3)
    tensors = load_file(folder / "model.safetensors") | {"d2t": torch.tensor(offsets)}
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(InvalidSetup, match="d2t"):
        load_eagle3(folder, target)
    save_file(tensors | {"d2t": torch.tensor([0, 0, 93])}, folder / "model.safetensors")
    assert load_eagle3(folder, target).target_ids_U.tolist() == [0, 1, 95]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"hidden_size": 64}, "hidden-size-differs"),
        ({"target_hidden_size": 64}, "hidden-size-differs"),
        ({"vocab_size": 97}, "head-vocabulary-differs"),
        ({"eagle_aux_hidden_state_layer_ids": [0, 2, 5]}, "layer-ids-out-of-range"),
        ({"eagle_aux_hidden_state_layer_ids": [-1, 2, 3]}, "layer-ids-out-of-range"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 3]}, "tensor-shapes"),
        ({"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, "unsupported-architecture"),
    ],
)
def test_heads_of_another_target_are_refused(changes, code, target, tmp_path, edit_config):
    folder = write_eagle3(tmp_path / "head", target.config)
    edit_config(folder, **changes)
    with pytest.raises(InvalidSetup) as caught:
        load_eagle3(folder, target)
    assert [finding.code for finding in caught.value.findings] == [code]
