"""The merged attention of unrolled steps against drafts that are computed one by one."""

from __future__ import annotations

import pytest
import torch

from draftwise.training.layers import attend_chain

B, A, R, D = 2, 3, 9, 16


def draft_by_draft(q_BARD, keys, values):
    """Return the same from its definition: for each row its own list of keys."""
    rows = []
    for r in range(R):
        seen_k = torch.cat([keys[0][:, :, : r + 1], *(key[:, :, r : r + 1] for key in keys[1:])], dim=2)
        seen_v = torch.cat([values[0][:, :, : r + 1], *(value[:, :, r : r + 1] for value in values[1:])], dim=2)
        shares = (q_BARD[:, :, r : r + 1] @ seen_k.mT / D**0.5).softmax(-1)
        rows.append(shares @ seen_v)
    return torch.cat(rows, dim=2)


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_outputs_and_gradients_are_those_of_separate_drafts(steps):
    torch.manual_seed(0)
    parts = [torch.randn(B, A, R, D, requires_grad=True) for _ in range(1 + 2 * steps)]
    weights_BARD = torch.randn(B, A, R, D)
    results = []
    for attend in (attend_chain, draft_by_draft):
        out_BARD = attend(parts[0] * 2, parts[1 : 1 + steps], parts[1 + steps :])
        results.append([out_BARD, *torch.autograd.grad((out_BARD * weights_BARD).sum(), parts)])
    for here, there in zip(*results, strict=True):
        torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-5)


def test_heads_far_apart_do_not_overflow():
    q_BARD = torch.full((1, 1, 4, 16), 30.0)
    keys = [torch.full((1, 1, 4, 16), -30.0), torch.full((1, 1, 4, 16), 30.0)]
    values = [torch.zeros(1, 1, 4, 16), torch.ones(1, 1, 4, 16)]
    torch.testing.assert_close(attend_chain(q_BARD, keys, values), torch.ones(1, 1, 4, 16))
