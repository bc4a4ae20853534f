"""The one signature of every drafting method.

Shape letters: B sequences, N new tokens (padded), K draft tokens (padded), V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Confirmed", "Draft", "Proposer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """What the target has just made final, for B sequences.

    A sequence's first `Confirmed` brings its prompt (perhaps in chunks) and its first sampled token;
    each later one brings the tokens emitted by one step. Nothing in it is ever taken back.
    """

    slots: tuple[int, ...]
    """[B] state row of each sequence: its own from the first `Confirmed` until `release(slot)`."""
    tokens_BN: Tensor
    """int64, on the engine's device; row b holds `lengths_B[b]` tokens, then padding."""
    lengths_B: Tensor
    """int64, on the engine's device; at least 1."""
    num_prompt: tuple[int, ...]
    """[B] how many tokens of each sequence (counted from its start) are its prompt."""
    temperature: tuple[float, ...] = ()
    """[B] sampling temperature; 0 is greedy. Only probabilistic drafting looks at it."""
    seeds: tuple[int, ...] = ()
    """[B] seed of each sequence's random stream. Only probabilistic drafting looks at it."""

    def to_lists(self) -> list[list[int]]:
        """Return the tokens on the host, unpadded (synchronises with the device)."""
        lengths = self.lengths_B.tolist()
        return [row[:length] for row, length in zip(self.tokens_BN.tolist(), lengths, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Guesses for the tokens that follow each sequence's last confirmed token."""

    tokens_BK: Tensor
    """int64; row b holds `lengths_B[b]` guesses, then padding (any valid token id)."""
    lengths_B: Tensor
    """int64, 0..K."""
    probs_BKV: Tensor | None = None
    """float32 distribution that each guess was drawn from; None when drafting is deterministic (q = 1)."""

    @classmethod
    def empty(cls, num_sequences: int, k: int = 0, *, device: torch.device | str = "cpu") -> Draft:
        """Return a draft that guesses nothing."""
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


class Proposer(ABC):
    """A state machine over confirmed tokens: told what became final, it guesses what follows.

    It never sees the runner, the scheduler or a rejected token, so there is nothing to roll back:
    whatever it computed for guesses that fell is overwritten when the next tokens are confirmed.
    """

    @abstractmethod
    def propose(self, new: Confirmed, k: int) -> Draft:
        """Take in `new` and return up to k guesses for each of its B sequences, in its order.

        With k = 0 the proposer takes the tokens in and returns an empty draft.
        """

    @abstractmethod
    def release(self, slot: int) -> None:
        """Forget the sequence in `slot`; the next `Confirmed` for it starts another one.

        Called when a sequence finishes, is aborted or is preempted (then it comes back from its start).
        """
