from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tests.support.dense_heads import DenseHead, chain, drafts, first_pass, target_states
from tests.support.made_drafters import write_mtp

from draftwise.core import InvalidSetup
from draftwise.engine.models import load_model
from draftwise.engine.proposers.mtp import check_k, load_mtp

LAYERS = 3
SEQUENCES = [torch.randint(96, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (41, 30)]
CUTS = [5, 18, 19, 22, 41]
ROPE = {"rope_parameters": None, "rope_theta": 5000.0}


@pytest.fixture
def target_path(save_tiny, edit_config):
    path = save_tiny("llama", num_hidden_layers=LAYERS, rms_norm_eps=1e-5)[0]
    edit_config(path, **ROPE)
    return path


@pytest.fixture
def target(target_path):
    return load_model(target_path, dtype="float64", device="cpu")


def dense_mtp(head: DenseHead, target, *, masks_first: bool = True):
    prefix = "model.mtp_layers.0."

    def forward(tokens, carry):
        embedded = F.embedding(tokens, target.weights.embedding_VH).double()
        if masks_first:
            embedded = torch.cat((torch.zeros_like(embedded[:1]), embedded[1:]))
        state = head.norm(f"{prefix}hidden_layernorm", carry.double())
        embedded = head.norm(f"{prefix}token_layernorm", embedded)
        x = head.linear(f"{prefix}input_proj", torch.cat((state, embedded), -1))
        x = head.layer(prefix, x, head.norm(f"{prefix}input_layernorm", x))
        hidden = head.norm(f"{prefix}final_layernorm", x)
        return target.logits(hidden.to(target.dtype)).double(), hidden

    return forward


@pytest.mark.parametrize("n_predict", [1, 2])
@pytest.mark.parametrize("assembled", [False, True])
def test_drafts_are_those_of_the_dense_network(n_predict, assembled, target_path, target, tmp_path):
    beside = target_path if assembled else None
    folder = write_mtp(tmp_path / "mtp", target.config, n_predict=n_predict, target=beside)
    if assembled:
        target = load_model(folder, dtype="float64", device="cpu")
    drafter, dense = load_mtp(folder, target), dense_mtp(DenseHead(folder), target)
    assert (drafter.aux_layers, drafter.n_predict, drafter.kv_shape.num_layers) == ((LAYERS,), n_predict, 1)
    states = [target_states(target, tokens, (LAYERS,)) for tokens in SEQUENCES]
    found = drafts(drafter, states, SEQUENCES, CUTS, 4)
    for cut, rows in zip(CUTS, found, strict=True):
        known = [tokens[:cut] for tokens in SEQUENCES]
        assert rows == [chain(dense, s[: len(t) - 1], t, 4) for s, t in zip(states, known, strict=True)]


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-6), ("float32", 1e-4), ("bfloat16", 0.3)])
def test_logits_agree_with_the_dense_network(dtype, tolerance, target_path, tmp_path):
    target = load_model(target_path, dtype=dtype, device="cpu")
    folder = write_mtp(tmp_path / "mtp", target.config)
    states = target_states(target, SEQUENCES[0], (LAYERS,))
    logits, _ = first_pass(load_mtp(folder, target), states, SEQUENCES[0])
    head, rows = DenseHead(folder), (torch.tensor(SEQUENCES[0][1:]), states[:-1])
    expected, _ = dense_mtp(head, target)(*rows)
    torch.testing.assert_close(logits.double(), expected, rtol=tolerance, atol=tolerance)
    unmasked, _ = dense_mtp(head, target, masks_first=False)(*rows)
    assert (unmasked - expected).abs().max() > 2 * tolerance  # so the row at position 0 is seen to be masked


def test_an_assembled_checkpoint_is_the_same_target(target_path, target, tmp_path):
    folder = write_mtp(tmp_path / "mimo", target.config, target=target_path)
    mimo = load_model(folder, dtype="float64", device="cpu")
    ours, theirs = (target_states(model, SEQUENCES[0], (LAYERS + 1,)) for model in (target, mimo))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_borrows_embedding_and_head(target, tmp_path):
    drafter = load_mtp(write_mtp(tmp_path / "mtp", target.config), target)
    assert drafter._embedding_VH is target.weights.embedding_VH
    assert drafter._head is target.weights.head


@pytest.mark.parametrize("name", ["input_proj.weight", "self_attn.q_proj.bias", "final_layernorm.weight"])
def test_missing_tensors_are_named(name, target, tmp_path):
    folder = write_mtp(tmp_path / "mtp", target.config)
    tensors = load_file(folder / "model.safetensors")
    del tensors[f"model.mtp_layers.0.{name}"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(InvalidSetup, match=rf"model.mtp_layers.0.{name}"):
        load_mtp(folder, target)


@pytest.mark.parametrize("name", ["model.mtp_layers.0.self_attn.o_proj.bias", "model.mtp_layers.1.input_proj.weight"])
def test_unknown_tensors_are_named(name, target, tmp_path):
    folder = write_mtp(tmp_path / "mtp", target.config)
    tensors = load_file(folder / "model.safetensors") | {name: torch.zeros(3)}
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(InvalidSetup, match=rf"does not describe \(1\): .*{name}"):
        load_mtp(folder, target)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"hidden_size": 64}, "hidden-size-differs"),
        ({"vocab_size": 97}, "head-vocabulary-differs"),
        ({"num_nextn_predict_layers": None}, "no-mtp"),
        ({"architectures": ["Glm4MoeForCausalLM"]}, "unsupported-architecture"),
    ],
)
def test_modules_of_another_target_are_refused(changes, code, target, tmp_path, edit_config):
    folder = write_mtp(tmp_path / "mtp", target.config)
    edit_config(folder, **changes)
    with pytest.raises(InvalidSetup) as caught:
        load_mtp(folder, target)
    assert [finding.code for finding in caught.value.findings] == [code]


def test_targets_without_modules_are_told_so(target_path, target, edit_config):
    with pytest.raises(InvalidSetup, match="no num_nextn_predict_layers"):
        load_mtp(target_path, target)
    edit_config(target_path, num_nextn_predict_layers=1)
    with pytest.raises(InvalidSetup, match="no tensors model"):
        load_mtp(target_path, target)
    tensors = load_file(target_path / "model.safetensors")
    save_file(tensors | {"model.layers.3.eh_proj.weight": torch.zeros(32, 64)}, target_path / "model.safetensors")
    with pytest.raises(InvalidSetup, match="DeepSeek"):
        load_mtp(target_path, target)


def test_k_is_a_multiple_of_the_modules():
    for n_predict, k in [(1, 1), (1, 7), (3, 1), (3, 2), (3, 3), (3, 6)]:
        check_k(n_predict, k)
    with pytest.raises(InvalidSetup, match="Use 3 or 6"):
        check_k(3, 4)
