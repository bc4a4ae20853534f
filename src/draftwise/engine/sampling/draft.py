"""Draft tokens, passed from a proposer to `verify`.

Shape letters: B sequences, K draft tokens (padded), V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Tokens that may follow each sequence's last confirmed token."""

    tokens_BK: Tensor
    """int64; row b holds `lengths_B[b]` draft tokens, then padding (any valid token id)."""
    lengths_B: Tensor
    """int64, 0..K."""
    probs_BKV: Tensor | None = None
    """float32 distribution that each draft token was drawn from; None if drafting is deterministic (q = 1)."""
    confidence_BK: Tensor | None = None
    """float32, the drafter's largest token probability at each position; None if not requested."""

    @classmethod
    def empty(cls, num_sequences: int, k: int = 0, *, device: torch.device | str = "cpu") -> Draft:
        """Return a draft without tokens."""
        return cls(
            tokens_BK=torch.zeros(num_sequences, k, dtype=torch.long, device=device),
            lengths_B=torch.zeros(num_sequences, dtype=torch.long, device=device),
        )

    @classmethod
    def from_lists(cls, rows: list[list[int]], k: int, *, device: torch.device | str = "cpu") -> Draft:
        """Return a deterministic draft from unpadded host rows of at most k tokens."""
        padded = [row + [0] * (k - len(row)) for row in rows]
        return cls(
            tokens_BK=torch.tensor(padded, dtype=torch.long, device=device).view(len(rows), k),
            lengths_B=torch.tensor([len(row) for row in rows], dtype=torch.long, device=device),
        )

    def cut(self, k: int) -> Draft:
        """Return the draft with width k. No sequence may have more than k tokens."""
        probs_BKV = None if self.probs_BKV is None else self.probs_BKV[:, :k]
        confidence_BK = None if self.confidence_BK is None else self.confidence_BK[:, :k]
        return Draft(
            tokens_BK=self.tokens_BK[:, :k], lengths_B=self.lengths_B, probs_BKV=probs_BKV, confidence_BK=confidence_BK
        )
