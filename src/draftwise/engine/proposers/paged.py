"""Drafting with a network that keeps keys and values: its cache, and the draft in the making.

Shape letters: B sequences, A of them still drafting, R guesses of all sequences, K draft tokens (padded), U tokens that
the drafter can name, V the target's vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftwise.engine.attention import PagedKV
from draftwise.engine.models.drafter import DraftNetwork
from draftwise.engine.proposers.base import Confirmed, Draft, Proposer
from draftwise.engine.proposers.choice import choose

__all__ = ["Guesses", "PagedProposer", "to_device"]


class PagedProposer(Proposer):
    """The part of a proposer that does not depend on how its network drafts.

    Args:
        network: the drafter.
    """

    def __init__(self, network: DraftNetwork) -> None:
        self.taps = network.taps
        self.kv_bytes_per_token = network.kv_shape.kv_bytes_per_token(network.dtype.itemsize)
        self._shape, self._dtype, self._device = network.kv_shape, network.dtype, network.device

    def allocate(self, *, num_pages: int, block_size: int) -> None:
        """Make the network's cache."""
        self._kv = PagedKV(
            self._shape, num_pages=num_pages, block_size=block_size, dtype=self._dtype, device=self._device
        )

    def release(self, slot: int) -> None:
        """Nothing to forget: what is kept lies in the sequence's pages."""


class Guesses:
    """The draft in the making.

    Args:
        new: what it continues.
        counts: [B] guesses wanted of each sequence.
        k: K.
        network: the drafter.
        probabilistic: see `choose`.

    Attributes:
        num_steps: the most guesses that a sequence wants.
    """

    def __init__(
        self, new: Confirmed, counts: Sequence[int], k: int, network: DraftNetwork, *, probabilistic: bool
    ) -> None:
        self._new, self._counts, self._network, self._probabilistic = new, counts, network, probabilistic
        self._num_output = new.count_output() if probabilistic else []
        self._tokens_BK = torch.zeros(len(counts), k, dtype=torch.long, device=network.device)
        self._probs_BKV = None
        if probabilistic:
            self._probs_BKV = torch.zeros(len(counts), k, network.vocab_size, device=network.device)
        self.num_steps = max(counts, default=0)

    def active(self, step: int) -> list[int]:
        """Return the sequences that want a guess number `step`."""
        return [b for b, count in enumerate(self._counts) if count > step]

    def add(self, step: int, logits_AU: Tensor) -> Tensor:
        """Choose guess number `step` of the active sequences; return the tokens [A]."""
        active = self.active(step)
        rows = slice(None) if len(active) == len(self._counts) else to_device(active, logits_AU.device)
        return self._choose(active, [step] * len(active), logits_AU, (rows, step))

    def add_all(self, logits_RU: Tensor) -> None:
        """Choose all guesses at once, independently of each other; rows go sequence after sequence."""
        owners = [b for b, count in enumerate(self._counts) for _ in range(count)]
        steps = [step for count in self._counts for step in range(count)]
        self._choose(
            owners, steps, logits_RU, (to_device(owners, logits_RU.device), to_device(steps, logits_RU.device))
        )

    def to_draft(self) -> Draft:
        """Return what was guessed."""
        lengths_B = to_device(self._counts, self._tokens_BK.device)
        return Draft(tokens_BK=self._tokens_BK, lengths_B=lengths_B, probs_BKV=self._probs_BKV)

    def _choose(
        self, owners: list[int], steps: list[int], logits_RU: Tensor, places: tuple[Tensor | slice, Tensor | int]
    ) -> Tensor:
        """Choose a guess for each row and put it in its place: of which sequence, and which of its guesses."""
        new, draws = self._new, self._probabilistic
        tokens_R, probs_RV = choose(
            logits_RU,
            temperature=[new.temperature[b] for b in owners] if draws else (),
            seeds=[new.seeds[b] for b in owners] if draws else (),
            positions=[self._num_output[b] + step for b, step in zip(owners, steps, strict=True)] if draws else (),
            probabilistic=draws,
            target_ids_U=self._network.target_ids_U,
            vocab_size=self._network.vocab_size,
        )
        self._tokens_BK[places] = tokens_R
        if self._probs_BKV is not None and probs_RV is not None:
            self._probs_BKV[places] = probs_RV
        return tokens_R


def to_device(values: Sequence[int], device: torch.device) -> Tensor:
    """Return integers as an int64 tensor."""
    return torch.tensor(values, dtype=torch.long, device=device)
