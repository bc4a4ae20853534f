"""Lessons of drafts that begin behind every token, their rows moved to the tokens that they should name.

Shape letters: B sequences, T tokens of a sequence, R = T - 1 rows, L = T - 2 labels, M labels of all sequences, J draft
positions, H hidden size, U tokens that the drafter can name, V vocabulary.

Row r knows the tokens 0..r + 1 and names token r + 2 + j at draft position j. Label l is token l + 2.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from draftwise.train.lesson import Batch, Lesson, States
from draftwise.train.vocabulary_loss import Answers, vocabulary_loss

__all__ = ["align", "answer_as_target", "answer_as_text", "learn_labels", "score", "weigh"]


def align(x_BRH: Tensor, step: int) -> Tensor:
    """Move a step's rows to their labels, [B, L, H]; labels too early for a draft of this length get zeros."""
    return F.pad(x_BRH[:, : x_BRH.shape[1] - 1 - step], (0, 0, step, 0))


def weigh(learnt_BL: Tensor, num_positions: int, discount: float) -> Tensor:
    """Return the weight of each label at each draft position, [J, B, L]; together they are 1.

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
    """Return the distribution of the target, whose head's rows these are, at each label."""
    return Answers(states_MH=states.final_BTH[:, 1:-1].flatten(0, 1), head_UH=head_UH)


def answer_as_text(batch: Batch) -> Answers:
    """Return each label's own token."""
    return Answers(tokens_M=batch.tokens_BT[:, 2:].flatten())


def score(batch: Batch, loss: Tensor, picks_JBL: Tensor) -> Lesson:
    """Return the lesson, given the likeliest token at each label, in the target's ids."""
    hits_JBL = picks_JBL == batch.tokens_BT[:, 2:]
    positions = range(len(picks_JBL))
    return Lesson(
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
) -> Lesson:
    """Return the lesson of a drafter that names the target's own tokens.

    Args:
        batch: the text.
        states: the target's.
        hidden_JBRH: what the heads read.
        heads: [V, H'] each; one for all draft positions or one for each.
        target_head_VH: the target's head, to learn its distribution; None: the text's tokens are learnt.
        discount: weight of a draft position's mean cross entropy, relative to the position before.
        fuse: see `vocabulary_loss`.
    """
    rows = [align(hidden_BRH, j).flatten(0, 1) for j, hidden_BRH in enumerate(hidden_JBRH)]
    weights_JBL = weigh(batch.learnt_BT[:, 2:], len(rows), discount)
    weights_JM = weights_JBL.flatten(1)
    answers = answer_as_text(batch) if target_head_VH is None else answer_as_target(states, target_head_VH)
    if len(heads) == 1:
        loss, picks_JM = vocabulary_loss(rows, heads[0], weights_JM, answers, fuse=fuse)
    else:
        parts = [
            vocabulary_loss([row], head, weights_JM[j : j + 1], answers, fuse=fuse)
            for j, (row, head) in enumerate(zip(rows, heads, strict=True))
        ]
        loss, picks_JM = torch.stack([part[0] for part in parts]).sum(), torch.cat([part[1] for part in parts])
    return score(batch, loss, picks_JM.view(weights_JBL.shape))
