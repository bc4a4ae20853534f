"""What a network must offer to draft token by token, or all draft tokens in one pass.

Shape letters: N rows of a pass, R rows that need logits, F features of a token, H hidden size, U tokens that the
drafter can name, V the target's vocabulary.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from draftwise.core import ModelShape
from draftwise.engine.attention.pass_rows import AttentionPlan
from draftwise.engine.memory.kv import PagedKV
from draftwise.engine.models.mask import Mask

__all__ = ["DraftNetwork", "Drafter"]


class DraftNetwork(Protocol):
    """What proposers must know of every network that keeps keys and values."""

    aux_layers: tuple[int, ...]
    """Hidden states of the target that it reads (see `Proposer.aux_layers`); none for a draft model."""
    kv_shape: ModelShape
    """Its own cache: layers, key-value heads, head dimension; max_position_embeddings bounds how far it drafts."""
    vocab_size: int
    """V."""
    target_ids_U: Tensor | None
    """int64, the target's id of each token it can name; None: they are the target's own."""

    @property
    def dtype(self) -> torch.dtype:
        """Type of weights, activations and cache."""

    @property
    def device(self) -> torch.device:
        """Where it runs."""

    def logits(self, hidden_RH: Tensor) -> Tensor:
        """Return logits_RU in the dtype of the network's head."""


class Drafter(DraftNetwork, Protocol):
    """A network that drafts token by token: each row says what follows, and what the next row needs of it."""

    mask: Mask | None
    """For drafting in parallel; None: it was not trained to."""

    def enter(self, features_NF: Tensor) -> Tensor:
        """Return what `forward` gets, [N, H], for the target's states."""

    def forward(
        self,
        tokens_N: Tensor,
        carry_NH: Tensor | None,
        positions_N: Tensor,
        kv: PagedKV,
        plan: AttentionPlan,
    ) -> tuple[Tensor, Tensor | None]:
        """Run rows of (token, state before it).

        Args:
            tokens_N: int64 token ids.
            carry_NH: from `enter` or from the row before; None for a network that reads no states.
            positions_N: int64 position of each row.
            kv: its pages.
            plan: for these rows.

        Returns:
            hidden_NH for `logits`, and what the row for the next draft token gets; both of the rows that `plan` wants.
        """
