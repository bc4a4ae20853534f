"""The chunked cross entropy against torch's own over whole logits."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from draftwise.training.draft_losses import Answers, compute_vocabulary_loss

J, M, H, U = 3, 21, 8, 30


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr("draftwise.training.draft_losses._CHUNK_VALUES", 5 * U)


@pytest.mark.parametrize("from_tokens", [False, True])
def test_losses_tokens_and_gradients_are_those_of_whole_logits(from_tokens):
    torch.manual_seed(0)
    hidden = [torch.randn(M, H, requires_grad=True) for _ in range(J)]
    head_UH, weights_JM = torch.randn(U, H, requires_grad=True), torch.rand(J, M)
    weights_JM[:, 2:9] = 0  # a prompt
    states_MH, teacher_UH, tokens_M = torch.randn(M, H), torch.randn(U, H), torch.randint(0, U, (M,))
    answers = Answers(tokens_M=tokens_M) if from_tokens else Answers(states_MH=states_MH, head_UH=teacher_UH)
    loss, picks_JM = compute_vocabulary_loss(hidden, head_UH, weights_JM, answers)
    aims = tokens_M if from_tokens else (states_MH @ teacher_UH.T).softmax(-1)
    logits = [hidden_MH @ head_UH.T for hidden_MH in hidden]
    expected = sum(
        (F.cross_entropy(logits_MU, aims, reduction="none") * weights_M).sum()
        for logits_MU, weights_M in zip(logits, weights_JM, strict=True)
    )
    torch.testing.assert_close(loss, expected)
    used_M = weights_JM.any(0)
    assert torch.equal(picks_JM[:, used_M], torch.stack(logits).argmax(-1)[:, used_M])
    ours, theirs = (torch.autograd.grad(3 * total, [head_UH, *hidden]) for total in (loss, expected))
    for here, there in zip(ours, theirs, strict=True):
        torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-5)


def test_a_frozen_head_passes_the_gradient_on():
    hidden_MH = torch.randn(M, H, requires_grad=True)
    loss, _ = compute_vocabulary_loss(
        [hidden_MH], torch.randn(U, H), torch.rand(1, M), Answers(tokens_M=torch.zeros(M).long())
    )
    loss.backward()
    assert hidden_MH.grad.abs().sum() > 0
    with torch.no_grad():
        again, _ = compute_vocabulary_loss(
            [hidden_MH], torch.randn(U, H), torch.rand(1, M), Answers(tokens_M=torch.zeros(M).long())
        )
    assert not again.requires_grad
