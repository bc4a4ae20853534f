"""What a network must offer to draft token by token, or all guesses in one pass.

Shape letters: N rows of a pass, R rows that need logits, F features of a token, H hidden size, U tokens that the
drafter can name, V the target's vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from draftwise.core import ModelShape
from draftwise.engine.attention import AttentionPlan, PagedKV

__all__ = ["Drafter", "Mask"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mask:
    """What stands in for a token that is not known yet when all guesses are made in one pass."""

    token_id: int
    features_F: Tensor | None = None
    """In place of the target's states; None for a network that reads none."""


class Drafter(Protocol):
    """A network that drafts: for each row it says what follows, and what the next row needs of it."""

    taps: tuple[int, ...]
    """Hidden states of the target that it reads (see `Proposer.taps`); none for a draft model."""
    kv_shape: ModelShape
    """Its own cache: layers, key-value heads, head dimension; max_position_embeddings bounds how far it drafts."""
    vocab_size: int
    """V."""
    target_ids_U: Tensor | None
    """int64, the target's id of each token it can name; None: they are the target's own."""
    mask: Mask | None
    """For guessing in parallel; None: it was not trained to."""

    @property
    def dtype(self) -> torch.dtype:
        """Type of weights, activations and cache."""

    @property
    def device(self) -> torch.device:
        """Where it runs."""

    def enter(self, features_NF: Tensor) -> Tensor:
        """Return what `forward` is told, [N, H], for the target's states."""

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
            hidden_NH for `logits`, and what the row for the next guess is told.
        """

    def logits(self, hidden_RH: Tensor) -> Tensor:
        """Return logits_RU in float32 (float64 for a float64 network)."""
