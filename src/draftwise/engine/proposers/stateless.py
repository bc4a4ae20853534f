"""Drafting from the target's last hidden state alone: the networks that keep nothing between two proposals.

Shape letters: B sequences, H hidden size, U tokens that the drafter can name.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Generic, TypeVar

import torch
from torch import Tensor

from draftwise.core import InvalidSetup
from draftwise.engine.models import CausalLM
from draftwise.engine.models.checkpoint import Checkpoint
from draftwise.engine.models.families import FAMILIES
from draftwise.engine.models.loading import WeightReader
from draftwise.engine.proposers.base import Confirmed, Proposer
from draftwise.engine.proposers.draft_builder import DraftBuilder
from draftwise.engine.sampling.draft import Draft

__all__ = ["StatelessProposer", "make_reader", "pick_count"]

Carry = TypeVar("Carry")
"""What a network hands from one guess to the next."""


class StatelessProposer(Proposer, Generic[Carry]):
    """Reads the state, after the final norm, from which the target predicted each sequence's last token.

    Args:
        target: the model that is drafted for.
        probabilistic: draw guesses at the request's temperature and return what they were drawn from (vLLM's
            draft_sample_method `probabilistic`), instead of taking the likeliest.
        target_ids_U: the target's id of each token that the network can name; None: they are the target's own.
    """

    def __init__(self, target: CausalLM, *, probabilistic: bool, target_ids_U: Tensor | None = None) -> None:
        self.taps = (target.shape.num_layers + 1,)
        self._vocab_size = target.shape.vocab_size
        self._probabilistic = probabilistic
        self._target_ids_U = target_ids_U

    @abstractmethod
    def begin(self, features_BH: Tensor, num_guesses: int) -> Carry:
        """Return what the first guess needs of the target's states; `num_guesses` will be made."""

    @abstractmethod
    def step(self, index: int, carry: Carry, tokens_B: Tensor) -> tuple[Tensor, Carry]:
        """Return logits_BU of guess number `index`, which follows `tokens_B`, and what the next guess needs."""

    @torch.inference_mode()
    def propose(self, new: Confirmed, k: int) -> Draft:
        """Draft up to k tokens each."""
        guesses = DraftBuilder(
            new,
            new.limits_B.clamp(0, k),
            k,
            probabilistic=self._probabilistic,
            target_ids_U=self._target_ids_U,
            vocab_size=self._vocab_size,
        )
        if guesses.num_steps > 0:
            assert new.features_NF is not None
            rows_B = new.spans.last_row_B
            carry, tokens_B = self.begin(new.features_NF[rows_B], guesses.num_steps), new.tokens_N[rows_B]
            for index in range(guesses.num_steps):
                logits_BU, carry = self.step(index, carry, tokens_B)
                tokens_B = guesses.add(index, logits_BU)
        return guesses.to_draft()

    def release(self, slot: int) -> None:
        """Nothing to forget."""


def make_reader(checkpoint: Checkpoint, target: CausalLM, *, hidden_key: str) -> WeightReader:
    """Return a reader of a drafter's weights, in the dtype and on the device of its target.

    Args:
        checkpoint: the drafter's.
        target: the model that it drafts for.
        hidden_key: key of its config.json for the width of the state it reads.

    Raises:
        InvalidSetup: its config.json names another width or vocabulary than the target's.
    """
    shape, config = target.shape, checkpoint.config
    wanted = {hidden_key: shape.hidden_size, "vocab_size": shape.vocab_size}
    wrong = [f"{key} {config[key]} (target: {size})" for key, size in wanted.items() if config.get(key, size) != size]
    if wrong:
        raise InvalidSetup.because(
            "drafter-does-not-fit",
            f"the drafter was made for another target: it has {', '.join(wrong)}.",
            where=str(checkpoint.path / "config.json"),
            fix="Use a drafter that was trained for this very target.",
        )
    # These networks have no decoder layers, so it does not matter of which family they would be.
    return WeightReader(checkpoint, shape, FAMILIES["llama"], target.dtype, target.device)


def pick_count(num_guesses: int, k: int | None, *, where: str) -> int:
    """Return for how many guesses to load weights, of `num_guesses` that the checkpoint can make.

    Raises:
        InvalidSetup: k is more than it can.
    """
    if k is not None and k > num_guesses:
        raise InvalidSetup.because(
            "too-many-guesses",
            f"the drafter guesses at most {num_guesses} tokens, num_speculative_tokens is {k}.",
            where=where,
            fix=f"Set num_speculative_tokens to {num_guesses} or less, or train a drafter with more heads.",
        )
    return num_guesses if k is None else k
