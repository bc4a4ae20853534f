"""What a drafter is trained on, token sequences and the target's states for them, and the loss that results.

Shape letters: B sequences, T tokens of a sequence (padded on the right), H hidden size of the target.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Batch", "DraftLoss", "States"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Token sequences, each a prompt and an answer."""

    tokens_BT: Tensor
    """int64, padded on the right."""
    valid_BT: Tensor
    """bool: not padding."""
    learnt_BT: Tensor
    """bool: tokens of answers; only predictions of these are learnt and counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """What the frozen target computed for a batch; no gradient flows into it.

    Padding follows a sequence's tokens, and the target looks back only: states of tokens do not depend on it.
    """

    aux_BTH: tuple[Tensor, ...]
    """Hidden states in the order of the method's `aux_layers` (numbered as `Proposer.aux_layers` of the engine)."""
    final_BTH: Tensor
    """After the final norm: the target's logits for the token after t are its head applied to `final_BTH[:, t]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftLoss:
    """Loss and correct predictions of one batch."""

    loss: Tensor
    """Scalar with gradient, a mean over the learnt tokens (accumulated batches are weighted by their number)."""
    hits: tuple[Tensor, ...]
    """For each draft position j: bool [B, T], whether the drafter, given the tokens up to t, predicts token t + 1 + j
    correctly, whether or not the earlier draft positions are correct. Teacher forcing along the batch's own text, which
    is the target's own answer when the data is on-policy; so the share of t whose hits 0..j are all true is the
    acceptance rate of draft position j at temperature 0.

    Only read without gradient: a method may leave hits and counted empty while `torch.is_grad_enabled()`."""
    counted: tuple[Tensor, ...]
    """For each draft position j: bool [B, T], whether token t + 1 + j exists and is learnt."""
