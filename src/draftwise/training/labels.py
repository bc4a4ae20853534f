"""Losses of drafts that begin after every token, their rows aligned with the tokens that they should predict.

Shape letters: B sequences, T tokens of a sequence, R = T - 1 rows, L = T - 2 labels, M labels of all sequences, J draft
positions, H hidden size, U tokens of the draft vocabulary, V vocabulary.

Row r knows the tokens 0..r + 1 and predicts token r + 2 + j at draft position j. Label l is token l + 2.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from draftwise.training.batch import Batch, DraftLoss, States
from draftwise.training.vocabulary_loss import Answers, compute_vocabulary_loss

__all__ = ["align", "answer_as_target", "answer_as_text", "learn_labels", "score", "weigh"]


def align(x_BRH: Tensor, step: int) -> Tensor:
    """Move a step's rows to their labels, [B, L, H]; labels too early for a draft of this length get zeros."""
    return F.pad(x_BRH[:, : x_BRH.shape[1] - 1 - step], (0, 0, step, 0))


def weigh(learnt_BL: Tensor, num_positions: int, discount: float) -> Tensor:
    """Return the weight of each label at each draft position, [J, B, L]; the weights sum to 1.

    Args:
        learnt_BL: bool, which labels are learnt.
        num_positions: J.
        discount: weight of a draft position, relative to the position before.
    """
    rows = []
    for j in range(num_positions):
        mine_BL = F.pad(learnt_BL[:, j:], (j, 0)).float()
        rows.append(mine_BL * (discount**j / mine_BL.sum().clamp(min=1)))
    return torch.stack(rows) / sum(discount**j for j in range(num_positions))


def answer_as_target(states: States, head_UH: Tensor) -> Answers:
    """Return the target's distribution at each label, over the vocabulary of these rows of its head."""
    return Answers(states_MH=states.final_BTH[:, 1:-1].flatten(0, 1), head_UH=head_UH)


def answer_as_text(batch: Batch) -> Answers:
    """Return each label's own token."""
    return Answers(tokens_M=batch.tokens_BT[:, 2:].flatten())


def score(batch: Batch, loss: Tensor, picks_JBL: Tensor) -> DraftLoss:
    """Return loss and hits, given the most probable token at each label, in the target's ids."""
    hits_JBL = picks_JBL == batch.tokens_BT[:, 2:]
    positions = range(len(picks_JBL))
    return DraftLoss(
        loss=loss,
        hits=tuple(F.pad(hits_JBL[j, :, j:], (1, 1 + j)) for j in positions),
        counted=tuple(F.pad(batch.learnt_BT[:, 2 + j :], (1, 1 + j)) for j in positions),
    )


def learn_labels(
    batch: Batch,
    states: States,
    hidden_JBRH: Sequence[Tensor],
    heads: Sequence[Tensor],
    target_head_VH: Tensor | None,
    *,
    discount: float,
    fuse: bool,
) -> DraftLoss:
    """Return the loss of a drafter that drafts over the target's own vocabulary.

    Args:
        batch: the text.
        states: the target's.
        hidden_JBRH: inputs of the heads.
        heads: [V, H'] each; one for all draft positions or one for each.
        target_head_VH: the target's head, to learn its distribution; None to learn the text's tokens.
        discount: weight of a draft position's mean cross entropy, relative to the position before.
        fuse: see `compute_vocabulary_loss`.
    """
    rows = [align(hidden_BRH, j).flatten(0, 1) for j, hidden_BRH in enumerate(hidden_JBRH)]
    weights_JBL = weigh(batch.learnt_BT[:, 2:], len(rows), discount)
    weights_JM = weights_JBL.flatten(1)
    answers = answer_as_text(batch) if target_head_VH is None else answer_as_target(states, target_head_VH)
    if len(heads) == 1:
        loss, picks_JM = compute_vocabulary_loss(rows, heads[0], weights_JM, answers, fuse=fuse)
    else:
        parts = [
            compute_vocabulary_loss([row], head, weights_JM[j : j + 1], answers, fuse=fuse)
            for j, (row, head) in enumerate(zip(rows, heads, strict=True))
        ]
        loss, picks_JM = torch.stack([part[0] for part in parts]).sum(), torch.cat([part[1] for part in parts])
    return score(batch, loss, picks_JM.view(weights_JBL.shape))
