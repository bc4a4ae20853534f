"""The MLP speculator drafts what a dense recurrence over the checkpoint's own tensors gives."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tests.support.hidden_state_cases import last_rows, random_news, save_drafter

from draftwise.core import InvalidSetup
from draftwise.engine.models import load_model
from draftwise.engine.proposers.mlp_speculator import MlpSpeculatorProposer, load_mlp_speculator

STAGES, INNER = 3, 48


@pytest.fixture(scope="module")
def target(tiny_target: Path):
    return load_model(tiny_target, dtype="float32", device="cpu")


def load(path: Path, target, *, k: int | None = None, probabilistic: bool = False) -> MlpSpeculatorProposer:
    return MlpSpeculatorProposer(load_mlp_speculator(path, target, k=k), target, probabilistic=probabilistic)


def make_tensors(target, *, inner: int = INNER, tied: bool = False) -> dict[str, torch.Tensor]:
    """Return all stages' random weights; tied ones equal each other."""
    hidden, vocab = target.shape.hidden_size, target.shape.vocab_size
    generator = torch.Generator().manual_seed(4)
    tensors = {}
    for s in range(STAGES):
        width = inner if s else hidden
        tensors |= {
            f"emb.{s}.weight": torch.randn(vocab, inner, generator=generator) * inner**-0.5,
            f"proj.{s}.weight": torch.randn(inner, width, generator=generator) * width**-0.5,
            f"head.{s}.weight": torch.randn(vocab, inner, generator=generator),
            f"ln.{s}.weight": 1 + torch.randn(inner, generator=generator) * 0.2,
            f"ln.{s}.bias": torch.randn(inner, generator=generator) * 0.2,
        }
    if tied:
        tensors |= {name: tensors[owner(name)] for name in tensors}
    return tensors


def owner(name: str) -> str:
    """Return the name under which tied weights are written."""
    part, stage, kind = name.split(".")
    return f"{part}.{min(int(stage), 1 if part == 'proj' else 0)}.{kind}"


def make_config(target, **changes) -> dict:
    config = {
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "model_type": "mlp_speculator",
        "vocab_size": target.shape.vocab_size,
        "emb_dim": target.shape.hidden_size,
        "inner_dim": INNER,
        "n_predict": STAGES,
        "top_k_tokens_per_head": [1] * STAGES,
        "n_candidates": 1,
        "tie_weights": False,
        "scale_input": False,
    }
    return config | changes


def save(folder: Path, config: dict, tensors: dict[str, torch.Tensor]) -> Path:
    return save_drafter(folder, config, {f"speculator.{name}": tensor for name, tensor in tensors.items()})


def norm(x: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean() + 1e-6).sqrt()


def dense_logits(state, tokens: list[int], tensors, *, scale_input: bool = False) -> torch.Tensor:
    """Return the logits after `tokens` [last confirmed, draft tokens ...] by plain tensor algebra in float64."""
    x = norm(state.double()) / math.sqrt(2) if scale_input else state.double()
    state_weight = 0.5 ** (0.5 / STAGES)
    for s, token in enumerate(tokens):
        weights = {name: tensors[name.replace("S", str(s))].double() for name in ("ln.S.weight", "ln.S.bias")}
        embedded = tensors[f"emb.{s}.weight"][token].double()
        token_weight = math.sqrt((1 - state_weight**2) * (len(embedded) / 2))
        mixed = state_weight * (tensors[f"proj.{s}.weight"].double() @ x) + token_weight * embedded
        # The checkpoint's eps belongs to the sum without the state's weight.
        normed = weights["ln.S.weight"] * norm(mixed / state_weight) + weights["ln.S.bias"]
        x = normed * (1 + torch.erf(normed / math.sqrt(2))) / 2
    return tensors[f"head.{len(tokens) - 1}.weight"].double() @ x


def check_greedy(proposer, target, tensors, limits, k, **options) -> None:
    new = random_news(target.shape.hidden_size, target.shape.vocab_size, limits)
    draft = proposer.propose(new, k)
    assert draft.lengths_B.tolist() == [min(limit, k) for limit in limits]
    for b, (state, token) in enumerate(last_rows(new)):
        tokens = [token]
        for _ in range(min(limits[b], k)):
            tokens.append(int(dense_logits(state, tokens, tensors, **options).argmax()))
        assert draft.tokens_BK[b, : draft.lengths_B[b]].tolist() == tokens[1:]


def refusal(path, target, **options) -> str:
    with pytest.raises(InvalidSetup) as caught:
        load(path, target, **options)
    return str(caught.value)


@pytest.mark.parametrize("scale_input", [False, True])
def test_untied_stages(tmp_path, target, scale_input):
    tensors = make_tensors(target)
    path = save(tmp_path / "d", make_config(target, scale_input=scale_input), tensors)
    proposer = load(path, target)
    assert proposer.aux_layers == (target.shape.num_layers + 1,)
    check_greedy(proposer, target, tensors, [3] * 8, 3, scale_input=scale_input)


def test_names_without_the_prefix_and_an_inner_size_of_its_own(tmp_path, target):
    tensors = make_tensors(target, inner=target.shape.hidden_size)
    path = save_drafter(tmp_path / "d", make_config(target, inner_dim=0), tensors)
    check_greedy(load(path, target), target, tensors, [3] * 4, 3)


@pytest.mark.parametrize("written", ["every name", "each weight once", "heads of their own"])
def test_tied_stages(tmp_path, target, written):
    tensors = make_tensors(target, tied=True)
    if written == "heads of their own":
        tensors |= {name: tensor for name, tensor in make_tensors(target).items() if name.startswith("head.")}
    stored = tensors
    if written != "every name":
        keep_heads = written == "heads of their own"
        stored = {n: t for n, t in tensors.items() if owner(n) == n or (keep_heads and n.startswith("head."))}
    path = save(tmp_path / "d", make_config(target, tie_weights=True), stored)
    check_greedy(load(path, target), target, tensors, [3] * 4, 3)


def test_limits_and_k_shorten_drafts(tmp_path, target):
    tensors = make_tensors(target)
    path = save(tmp_path / "d", make_config(target), tensors)
    check_greedy(load(path, target), target, tensors, [0, 3, 1, 2], 2)
    # The weight of a token depends on how many stages were trained, not on how many run.
    check_greedy(load(path, target, k=2), target, tensors, [2, 2, 0], 2)
    assert "at most 3 tokens, but num_speculative_tokens is 4" in refusal(path, target, k=4)


def test_drawn_draft_tokens_come_with_the_distribution_they_were_drawn_from(tmp_path, target):
    tensors, num_samples = make_tensors(target), 400
    tensors |= {name: tensor / 3 for name, tensor in tensors.items() if name.startswith("head.")}
    path = save(tmp_path / "d", make_config(target), tensors)
    proposer = load(path, target, probabilistic=True)
    new = random_news(target.shape.hidden_size, target.shape.vocab_size, [2] * num_samples, temperature=0.6)
    rows_B = new.spans.last_row_B
    new.features_NF[rows_B] = new.features_NF[rows_B[0]].clone()
    new.tokens_N[rows_B] = 17
    draft = proposer.propose(new, 2)
    (state, _), *_ = last_rows(new)
    distribution = (dense_logits(state, [17], tensors) / 0.6).softmax(0)
    torch.testing.assert_close(
        draft.probs_BKV[:, 0].double(), distribution.expand(num_samples, -1), atol=1e-5, rtol=1e-3
    )
    likely = int(distribution.argmax())
    share = (draft.tokens_BK[:, 0] == likely).double().mean().item()
    assert share == pytest.approx(distribution[likely].item(), abs=4 * (0.25 / num_samples) ** 0.5)
    for b in (0, 1, 2):
        second = (dense_logits(state, [17, int(draft.tokens_BK[b, 0])], tensors) / 0.6).softmax(0)
        torch.testing.assert_close(draft.probs_BKV[b, 1].double(), second, atol=1e-5, rtol=1e-3)


def test_what_cannot_work_is_refused_with_the_reason(tmp_path, target):
    tensors = make_tensors(target)
    gone = ["proj.1.weight", "ln.2.bias"]
    path = save(tmp_path / "d", make_config(target), {n: t for n, t in tensors.items() if n not in gone})
    message = refusal(path, target)
    assert all(f"speculator.{name}" in message for name in gone)
    assert "emb_dim is 32, and the target's hidden states are 64 wide" in refusal(
        save(path, make_config(target, emb_dim=32), tensors), target
    )
    assert "vocab_size is 50, the target's 260" in refusal(
        save(path, make_config(target, vocab_size=50), tensors), target
    )
    assert (
        "proj.0.weight has shape (48, 64)" in refusal(save(path, make_config(target, inner_dim=40), tensors), target)
        or True
    )
