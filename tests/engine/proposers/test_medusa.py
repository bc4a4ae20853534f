"""Medusa heads draft what a dense computation from the checkpoint's own tensors gives, in both layouts."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from tests.support.hidden_state_cases import last_rows, random_news, save_drafter

from draftwise.core import InvalidSetup
from draftwise.engine.models import load_model
from draftwise.engine.proposers.medusa import MedusaProposer, load_medusa

HEADS = 4


@pytest.fixture(scope="module")
def target(tiny_target: Path):
    return load_model(tiny_target, dtype="float32", device="cpu")


def load(path: Path, target, *, k: int | None = None, probabilistic: bool = False) -> MedusaProposer:
    return MedusaProposer(load_medusa(path, target, k=k), target, probabilistic=probabilistic)


def make_tensors(target, *, num_layers: int = 1, bias: bool = False, prefix: str = "") -> dict[str, torch.Tensor]:
    """Return random heads in vLLM's layout."""
    hidden, vocab = target.shape.hidden_size, target.shape.vocab_size
    generator = torch.Generator().manual_seed(3)
    tensors = {}
    for i in range(HEADS):
        for j in range(num_layers):
            name = f"{prefix}blocks.{i}.layers.{j}"
            tensors[f"{name}.weight"] = torch.randn(hidden, hidden, generator=generator) * hidden**-0.5
            if bias:
                tensors[f"{name}.bias"] = torch.randn(hidden, generator=generator)
        tensors[f"{prefix}lm_heads.{i}.weight"] = torch.randn(vocab, hidden, generator=generator) * hidden**-0.5
    return tensors


def make_config(target, **changes) -> dict:
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": target.shape.hidden_size,
        "vocab_size": target.shape.vocab_size,
        "num_heads": HEADS,
        "num_hidden_layers": 1,
    }
    return config | changes


def to_old(tensors: dict[str, torch.Tensor], num_layers: int) -> dict[str, torch.Tensor]:
    """Rename to FasterDecoding's layout."""
    renamed = {}
    for name, tensor in tensors.items():
        parts = name.split(".")
        old = f"{parts[1]}.{parts[3]}.linear.{parts[4]}" if parts[0] == "blocks" else f"{parts[1]}.{num_layers}.weight"
        renamed[old] = tensor
    return renamed


def dense_logits(state, tensors, i: int, *, num_layers: int = 1, head: str | None = None):
    """Return the logits of head i by plain tensor algebra in float64."""
    x = state.double()
    for j in range(num_layers):
        y = tensors[f"blocks.{i}.layers.{j}.weight"].double() @ x
        y = y + tensors.get(f"blocks.{i}.layers.{j}.bias", torch.zeros(())).double()
        x = x + y * torch.sigmoid(y)
    return tensors[head or f"lm_heads.{i}.weight"].double() @ x


def check_greedy(proposer, target, tensors, limits, k, *, translate=None, **options) -> None:
    new = random_news(target.shape.hidden_size, target.shape.vocab_size, limits)
    draft = proposer.propose(new, k)
    assert draft.lengths_B.tolist() == [min(limit, k) for limit in limits]
    assert draft.probs_BKV is None
    for b, (state, _) in enumerate(last_rows(new)):
        drafted = [int(dense_logits(state, tensors, i, **options).argmax()) for i in range(min(limits[b], k))]
        expected = drafted if translate is None else [translate[drafted_one] for drafted_one in drafted]
        assert draft.tokens_BK[b, : draft.lengths_B[b]].tolist() == expected


def refusal(path, target, **options) -> str:
    with pytest.raises(InvalidSetup) as caught:
        load(path, target, **options)
    return str(caught.value)


@pytest.mark.parametrize("prefix", ["", "medusa_heads."])
@pytest.mark.parametrize(("num_layers", "bias"), [(1, False), (2, True), (0, False)])
def test_vllms_layout(tmp_path, target, num_layers, bias, prefix):
    tensors = make_tensors(target, num_layers=num_layers, bias=bias)
    config = make_config(target, num_hidden_layers=num_layers, medusa_fc_bias=bias)
    path = save_drafter(tmp_path / "d", config, {prefix + name: tensor for name, tensor in tensors.items()})
    proposer = load(path, target)
    check_greedy(proposer, target, tensors, [4, 4, 4, 4], 4, num_layers=num_layers)


@pytest.mark.parametrize("bias", [False, True])
def test_fasterdecodings_layout(tmp_path, target, bias):
    tensors = make_tensors(target, num_layers=2, bias=bias)
    config = {"medusa_num_heads": HEADS, "medusa_num_layers": 2, "hidden_size": target.shape.hidden_size}
    path = save_drafter(tmp_path / "d", config, to_old(tensors, 2))
    check_greedy(load(path, target), target, tensors, [4, 4], 4, num_layers=2)


def test_limits_and_k_shorten_drafts(tmp_path, target):
    tensors = make_tensors(target)
    path = save_drafter(tmp_path / "d", make_config(target), tensors)
    check_greedy(load(path, target), target, tensors, [0, 4, 2, 1], 3)
    fewer = load(path, target, k=2)
    check_greedy(fewer, target, tensors, [2, 1, 2], 2)
    nothing = fewer.propose(random_news(target.shape.hidden_size, 9, [0, 0]), 2)
    assert nothing.lengths_B.tolist() == [0, 0]
    assert "at most 4 tokens, but num_speculative_tokens is 5" in refusal(path, target, k=5)


def test_heads_read_the_state_after_the_final_norm(tmp_path, target):
    proposer = load(save_drafter(tmp_path / "d", make_config(target), make_tensors(target)), target)
    assert proposer.aux_layers == (target.shape.num_layers + 1,)
    assert proposer.kv_bytes_per_token == 0


@pytest.mark.parametrize("stored", ["lm_heads.0.weight", "lm_head.weight"])
def test_one_head_for_all_draft_tokens(tmp_path, target, stored):
    tensors = make_tensors(target)
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("lm_heads.")}
    tensors[stored] = kept[stored] = tensors["lm_heads.0.weight"]
    path = save_drafter(tmp_path / "d", make_config(target, original_lm_head=True), kept)
    check_greedy(load(path, target), target, tensors, [4, 3, 4], 4, head=stored)


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_a_truncated_vocabulary(tmp_path, target, shared, cut):
    ids = torch.randperm(target.shape.vocab_size, generator=torch.Generator().manual_seed(5))[:40]
    tensors = make_tensors(target)
    whole = {name: tensor for name, tensor in tensors.items() if not shared or name != "lm_heads.1.weight"}
    for name in tensors:
        if name.startswith("lm_heads."):
            tensors[name] = tensors[name][ids]
    stored = tensors if cut else whole
    config = make_config(target, truncated_vocab_size=40, original_lm_head=shared)
    path = save_drafter(tmp_path / "d", config, stored | {"token_map": ids})
    proposer = load(path, target)
    head = "lm_heads.0.weight" if shared else None
    check_greedy(proposer, target, tensors, [4, 4, 2], 4, translate=ids.tolist(), head=head)


def test_drawn_draft_tokens_come_with_the_distribution_of_their_head(tmp_path, target):
    tensors, ids = make_tensors(target), torch.arange(10, 50)
    config = make_config(target, truncated_vocab_size=40, logit_scale=3.0)
    path = save_drafter(tmp_path / "d", config, tensors | {"token_map": ids})
    proposer = load(path, target, probabilistic=True)
    num_samples = 600
    state, vocab = torch.randn(1, target.shape.hidden_size), target.shape.vocab_size
    new = random_news(target.shape.hidden_size, vocab, [3] * num_samples, temperature=0.8)
    new.features_NF[new.spans.last_row_B] = state
    draft = proposer.propose(new, 3)
    for i in range(3):
        distribution = torch.zeros(vocab).double()
        distribution[ids] = (3.0 * dense_logits(state[0], tensors, i)[ids] / 0.8).softmax(0)
        torch.testing.assert_close(
            draft.probs_BKV[:, i].double(), distribution.expand(num_samples, -1), atol=1e-5, rtol=1e-4
        )
        likely = int(distribution.argmax())
        share = (draft.tokens_BK[:, i] == likely).double().mean().item()
        assert share == pytest.approx(distribution[likely].item(), abs=4 * (0.25 / num_samples) ** 0.5)


def test_the_noise_of_a_draft_token_belongs_to_its_step(tmp_path, target):
    tensors = {name: torch.zeros_like(tensor) for name, tensor in make_tensors(target).items()}
    path = save_drafter(tmp_path / "d", make_config(target), tensors)  # all heads draw uniformly
    proposer = load(path, target, probabilistic=True)
    new = random_news(target.shape.hidden_size, target.shape.vocab_size, [4] * 9, temperature=1.0)
    drafts = proposer.propose(new, 4).tokens_BK
    later = dataclasses.replace(new, spans=new.spans.shift(1))
    # Block verification has looked at the noise of the tokens behind the one that it rejects.
    assert (proposer.propose(later, 4).tokens_BK[:, :3] != drafts[:, 1:]).float().mean() > 0.8
    longer_prompt = dataclasses.replace(later, num_prompt_B=new.num_prompt_B + 1)
    assert torch.equal(proposer.propose(longer_prompt, 4).tokens_BK, drafts)
    assert len(drafts.unique()) > 20


def test_greedy_requests_get_certain_drafts_when_drafting_by_chance(tmp_path, target):
    tensors = make_tensors(target)
    path = save_drafter(tmp_path / "d", make_config(target), tensors)
    new = random_news(target.shape.hidden_size, target.shape.vocab_size, [3, 3])
    plain = load(path, target).propose(new, 3)
    drawn = load(path, target, probabilistic=True).propose(new, 3)
    assert torch.equal(drawn.tokens_BK, plain.tokens_BK)
    assert torch.equal(drawn.probs_BKV, torch.nn.functional.one_hot(plain.tokens_BK, target.shape.vocab_size).float())


def test_missing_tensors_are_named(tmp_path, target):
    tensors = make_tensors(target)
    gone = ["blocks.2.layers.0.weight", "lm_heads.3.weight"]
    kept = {name: tensor for name, tensor in tensors.items() if name not in gone}
    path = save_drafter(tmp_path / "d", make_config(target), kept)
    message = refusal(path, target)
    assert all(name in message for name in gone)
    load(path, target, k=2)  # the heads that are left serve two draft tokens
    assert "token_map" in refusal(save_drafter(path, make_config(target, truncated_vocab_size=9), tensors), target)


def test_layers_and_biases_that_the_config_hides_are_refused(tmp_path, target):
    path = save_drafter(tmp_path / "a", make_config(target), make_tensors(target, bias=True))
    assert "blocks.0.layers.0.bias" in refusal(path, target)
    path = save_drafter(tmp_path / "b", make_config(target), make_tensors(target, num_layers=2))
    assert "blocks.0.layers.1.weight" in refusal(path, target)


def test_a_drafter_of_another_target_is_refused(tmp_path, target):
    tensors = make_tensors(target)
    path = save_drafter(tmp_path / "d", make_config(target, hidden_size=80), tensors)
    assert "hidden_size is 80, and the target's hidden states are 64 wide" in refusal(path, target)
    path = save_drafter(path, make_config(target, vocab_size=999), tensors)
    assert "vocab_size is 999, the target's 260" in refusal(path, target)
    ids = torch.tensor([1, 2, 300])
    path = save_drafter(path, make_config(target, truncated_vocab_size=3), tensors | {"token_map": ids})
    assert "token 300" in refusal(path, target)


def test_half_precision_heads_run(tmp_path, tiny_target):
    target = load_model(tiny_target, dtype="bfloat16", device="cpu")
    path = save_drafter(tmp_path / "d", make_config(target), make_tensors(target))
    new = random_news(target.shape.hidden_size, target.shape.vocab_size, [4, 4])
    halved = dataclasses.replace(new, features_NF=new.features_NF.bfloat16())
    assert load(path, target).propose(halved, 4).tokens_BK.shape == (2, 4)
