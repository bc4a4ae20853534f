"""Drafts from the target's last hidden state alone, with networks that keep no state between proposals.

Shape letters: B sequences, H hidden size, U tokens that the drafter can name.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import Tensor

from draftwise.engine.models import CausalLM
from draftwise.engine.models.linear import Linear
from draftwise.engine.proposers.proposer import Confirmed, DraftBuilder, Proposer
from draftwise.engine.sampling.draft import Draft
from draftwise.knowledge.messages import refusal

if TYPE_CHECKING:
    from draftwise.engine.kernels.cpu_layers import QuantizedStages

Carry = TypeVar("Carry")
"""State that a network passes from one draft token to the next."""


class StatelessProposer(Proposer, Generic[Carry]):
    """Reads the state, after the final norm, from which the target predicted each sequence's last token.

    Args:
        probabilistic: draw draft tokens at the request's temperature and return their distributions (vLLM's
            draft_sample_method `probabilistic`), instead of taking the likeliest.
        target_ids_U: target id of each token in its vocabulary; None: its vocabulary is the target's.

    Attributes:
        at_once: makes the likeliest draft tokens in one call; None if weights are not quantized.
    """

    at_once: QuantizedStages | None = None

    def __init__(self, target: CausalLM, *, probabilistic: bool, target_ids_U: Tensor | None = None) -> None:
        self.aux_layers = (target.shape.num_layers + 1,)
        self._vocab_size = target.shape.vocab_size
        self._probabilistic = probabilistic
        self._target_ids_U = target_ids_U

    def enter(self, features_BH: Tensor) -> Tensor:
        """Return the input of the first products for the target's states: the states themselves."""
        return features_BH

    @abstractmethod
    def begin(self, state_BH: Tensor, num_drafted: int) -> Carry:
        """Return the first draft token's state, from the result of `enter`. `num_drafted` tokens will be made."""

    @abstractmethod
    def step(self, index: int, carry: Carry, tokens_B: Tensor) -> tuple[Tensor, Carry]:
        """Return logits_BU of draft token number `index`, which follows `tokens_B`, and the next one's state."""

    @torch.inference_mode()
    def propose(self, new: Confirmed, k: int) -> Draft:
        """Draft up to k tokens each."""
        draft = DraftBuilder(
            new,
            new.limits_B.clamp(0, k),
            k,
            probabilistic=self._probabilistic,
            target_ids_U=self._target_ids_U,
            vocab_size=self._vocab_size,
        )
        if draft.num_steps > 0:
            assert new.features_NF is not None
            rows_B = new.spans.last_row_B
            features_BH, tokens_B = new.features_NF[rows_B], new.tokens_N[rows_B]
            if self.at_once is not None and draft.is_chain:
                draft.take(self.at_once(self.enter(features_BH), tokens_B, draft.num_steps))
                return draft.to_draft()
            carry = self.begin(self.enter(features_BH), draft.num_steps)
            for index in range(draft.num_steps):
                logits_BU, carry = self.step(index, carry, tokens_B)
                tokens_B = draft.add(index, logits_BU)
        return draft.to_draft()

    def release(self, slot: int) -> None:
        """Nothing to forget."""


Parts = tuple[Sequence[Linear], Linear, Tensor | None, tuple[Tensor, Tensor] | None]
"""Products of a draft token, its head, and optionally the previous token's embedding, with a norm."""


def join_stages(stages: Sequence[Parts], **options: Any) -> QuantizedStages | None:
    """Return the stages of a network with a quantized target as one call, see `QuantizedStages`; None if a width is not
    a multiple of 32."""
    from draftwise.engine.kernels.cpu import QuantizedLinear  # numba is slow to import and useless elsewhere
    from draftwise.engine.kernels.cpu_layers import DraftStage, QuantizedStages

    joined = []
    for products, head, embedding_VI, norm in stages:
        own = tuple(each for each in products if isinstance(each, QuantizedLinear))
        if len(own) < len(products) or not own or not isinstance(head, QuantizedLinear):
            return None
        joined.append(DraftStage(products=own, head=head, embedding_VI=embedding_VI, norm=norm))
    return QuantizedStages(joined, **options)


def pick_count(num_drafted: int, k: int | None, *, where: str) -> int:
    """Return for how many draft tokens to load weights, of the checkpoint's `num_drafted`.

    Raises:
        InvalidSetup: k is larger.
    """
    if k is not None and k > num_drafted:
        raise refusal("too-many-draft-tokens", num_drafted=num_drafted, k=k, where=where)
    return num_drafted if k is None else k
