"""Losses for drafts: aligns rows with labels, and computes cross entropy over a vocabulary without storing all logits.

Shape letters: B sequences, T tokens of a sequence, R = T - 1 rows, L = T - 2 labels, M labels or rows of all sequences,
C rows of a chunk, J draft positions, H hidden size, U tokens of the draft vocabulary, V vocabulary.

Row r knows the tokens 0..r + 1 and predicts token r + 2 + j at draft position j. Label l is token l + 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from draftwise.training.frozen_target import States, TokenBatch
from draftwise.training.layers import choose_compiled
from draftwise.training.method import DraftLoss

_CHUNK_VALUES = 2**25
"""Maximum number of logits in memory at a time."""


def align(x_BRH: Tensor, step: int) -> Tensor:
    """Align a step's rows with their labels, [B, L, H]. Labels too early for a draft of this length get zeros."""
    return F.pad(x_BRH[:, : x_BRH.shape[1] - 1 - step], (0, 0, step, 0))


def weigh(learned_BL: Tensor, num_positions: int, discount: float) -> Tensor:
    """Return the weight of each label at each draft position, [J, B, L]; the weights sum to 1.

    Args:
        learned_BL: bool, whether each label is learned.
        discount: weight of a draft position relative to the previous one.
    """
    rows = []
    for j in range(num_positions):
        mine_BL = F.pad(learned_BL[:, j:], (j, 0)).float()
        rows.append(mine_BL * (discount**j / mine_BL.sum().clamp(min=1)))
    return torch.stack(rows) / sum(discount**j for j in range(num_positions))


def answer_as_target(states: States, head_UH: Tensor) -> Answers:
    """Return the target's distribution at each label, over the vocabulary of the given head rows."""
    return Answers(states_MH=states.final_BTH[:, 1:-1].flatten(0, 1), head_UH=head_UH)


def answer_as_text(batch: TokenBatch) -> Answers:
    """Return each label's own token."""
    return Answers(tokens_M=batch.tokens_BT[:, 2:].flatten())


def score(batch: TokenBatch, loss: Tensor, picks_JBL: Tensor) -> DraftLoss:
    """Return loss and hits, given the most probable token at each label as target id."""
    hits_JBL = picks_JBL == batch.tokens_BT[:, 2:]
    positions = range(len(picks_JBL))
    return DraftLoss(
        loss=loss,
        hits=tuple(F.pad(hits_JBL[j, :, j:], (1, 1 + j)) for j in positions),
        counted=tuple(F.pad(batch.learned_BT[:, 2 + j :], (1, 1 + j)) for j in positions),
    )


def learn_labels(
    batch: TokenBatch,
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
        heads: [V, H'] each; one for all draft positions, or one per position.
        target_head_VH: the target's head, to learn its distribution; None to learn the text's tokens.
        discount: weight of a draft position's mean cross entropy relative to the previous one.
        fuse: see `compute_vocabulary_loss`.
    """
    rows = [align(hidden_BRH, j).flatten(0, 1) for j, hidden_BRH in enumerate(hidden_JBRH)]
    weights_JBL = weigh(batch.learned_BT[:, 2:], len(rows), discount)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The label of a row: the target's distribution, or one token."""

    states_MH: Tensor | None = None
    """The target's states after its final norm; their logits give the distribution to learn."""
    head_UH: Tensor | None = None
    """The rows of the target's head for the draft vocabulary."""
    tokens_M: Tensor | None = None
    """int64 in the draft vocabulary; used without states."""


def compute_vocabulary_loss(
    hidden_JMH: Sequence[Tensor], head_UH: Tensor, weights_JM: Tensor, answers: Answers, *, fuse: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the weighted sum of cross entropies, and the most probable tokens [J, M] in the draft vocabulary.

    All draft positions of a row share its answer, which is computed once. Gradients reach `hidden_JMH` and `head_UH`.
    They are computed with the losses, chunk by chunk, so no logits are kept for the backward pass. Rows without weight
    (prompts, padding) are left out; their tokens are meaningless.

    Args:
        hidden_JMH: for each draft position, the head's input.
        weights_JM: float32 weight of each row's loss.
        fuse: whether to compile the operations between the matrix products.
    """
    device = head_UH.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_JMH[0].dtype
    cast = [hidden_MH.to(dtype) for hidden_MH in hidden_JMH]
    loss, picks_JM = _VocabularyLoss.apply(head_UH, weights_JM, answers, fuse, *cast)
    return loss, picks_JM


class _VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, head_UH: Tensor, weights_JM: Tensor, answers: Answers, fuse: bool, *hidden: Tensor
    ) -> tuple[Tensor, Tensor]:
        wants_head, wants_hidden = ctx.needs_input_grad[0], any(ctx.needs_input_grad[4:])
        head, terms, probabilities = (
            head_UH.to(hidden[0].dtype),
            choose_compiled(_terms, fuse=fuse),
            choose_compiled(_softmax, fuse=fuse),
        )
        total = torch.zeros((), device=head.device)
        picks_JM = torch.zeros(weights_JM.shape, dtype=torch.long, device=head.device)
        grad_hidden = [torch.zeros_like(hidden_MH) if wants_hidden else None for hidden_MH in hidden]
        grad_head = torch.zeros(head.shape, device=head.device) if wants_head else None
        for rows_C in _chunks((weights_JM != 0).any(0), len(head)):
            answer_CU = _answer(answers, rows_C, head, probabilities)
            for j, hidden_MH in enumerate(hidden):
                hidden_CH = hidden_MH[rows_C]
                losses_C, picks_JM[j, rows_C], slope_CU = terms(hidden_CH @ head.T, answer_CU, weights_JM[j, rows_C])
                total += losses_C.sum()
                if (gradient := grad_hidden[j]) is not None:
                    gradient[rows_C] = slope_CU @ head
                if grad_head is not None:
                    grad_head += slope_CU.T @ hidden_CH
        ctx.mark_non_differentiable(picks_JM)
        ctx.gradients = (grad_head, grad_hidden)
        return total, picks_JM

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _picks: Tensor) -> tuple[Tensor | None, ...]:
        grad_head, grad_hidden = ctx.gradients
        scaled = [None if gradient is None else gradient * grad for gradient in (grad_head, *grad_hidden)]
        return (scaled[0], None, None, None, *scaled[1:])


def _chunks(used_M: Tensor, vocabulary: int) -> list[Tensor]:
    """Return the rows that are used, in chunks of a few fixed sizes (each is compiled), filled up with unused ones."""
    size = max(_CHUNK_VALUES // vocabulary, 1)
    rows_M = used_M.byte().argsort(descending=True, stable=True)
    return list(rows_M.split(size)[: -(-int(used_M.sum()) // size)])


def _answer(answers: Answers, rows_C: Tensor, head_UH: Tensor, softmax: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the probabilities that these rows should predict, [C, U]."""
    if answers.states_MH is not None and answers.head_UH is not None:
        logits_CU = answers.states_MH[rows_C].to(answers.head_UH.dtype) @ answers.head_UH.T
        return softmax(logits_CU).to(head_UH.dtype)
    assert answers.tokens_M is not None
    tokens_C = answers.tokens_M[rows_C]
    answer_CU = torch.zeros(len(tokens_C), len(head_UH), dtype=head_UH.dtype, device=head_UH.device)
    return answer_CU.scatter_(1, tokens_C.unsqueeze(1), 1.0)


def _softmax(logits_CU: Tensor) -> Tensor:
    return logits_CU.float().softmax(-1).to(logits_CU.dtype)


def _terms(logits_CU: Tensor, answer_CU: Tensor, weights_C: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return weighted cross entropies, most probable tokens, and the gradient of the logits."""
    values_CU = logits_CU.float()
    sums_C = values_CU.logsumexp(-1)
    losses_C = (sums_C - (answer_CU * values_CU).sum(-1)) * weights_C
    share_CU = (values_CU - sums_C.unsqueeze(1)).exp()
    slope_CU = ((share_CU - answer_CU) * weights_C.unsqueeze(1)).to(logits_CU.dtype)
    return losses_C, values_CU.argmax(-1), slope_CU
