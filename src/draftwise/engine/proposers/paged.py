"""Drafting with a network that keeps keys and values in pages.

Shape letters: B sequences.
"""

from __future__ import annotations

from torch import Tensor

from draftwise.engine.attention.pass_rows import AttentionPlan, Spans, plan_attention
from draftwise.engine.memory.kv import PagedKV
from draftwise.engine.models.drafter import DraftNetwork
from draftwise.engine.proposers.base import Confirmed, Proposer
from draftwise.engine.proposers.draft_builder import DraftBuilder

__all__ = ["PagedProposer"]


class PagedProposer(Proposer):
    """The part of a proposer that does not depend on how its network drafts.

    Args:
        network: the drafter.
        probabilistic: draw draft tokens at the request's temperature and return what they were drawn from (vLLM's
            draft_sample_method `probabilistic`), instead of taking the likeliest.
        max_model_len: the target's longest context.
    """

    kv: PagedKV

    def __init__(self, network: DraftNetwork, *, probabilistic: bool, max_model_len: int) -> None:
        self.aux_layers = network.aux_layers
        self.num_layers = network.kv_shape.num_layers
        self.kv_bytes_per_token = network.kv_shape.kv_bytes_per_token(network.dtype.itemsize)
        self._network, self._probabilistic = network, probabilistic
        self._reach = min(max_model_len, network.kv_shape.max_position_embeddings)

    def allocate(self, *, num_pages: int, block_size: int) -> None:
        """Make the network's cache."""
        network = self._network
        self.kv = PagedKV(
            network.kv_shape, num_pages=num_pages, block_size=block_size, dtype=network.dtype, device=network.device
        )

    def release(self, slot: int) -> None:
        """Nothing to forget: what is kept lies in the sequence's pages."""

    def _plan(self, new: Confirmed, spans: Spans, *, causal: bool = True) -> AttentionPlan:
        """Return the plan for rows of the sequences of `new`; those out of the network's reach are computed in vain."""
        return plan_attention(spans, new.page_table_BP, block_size=self.kv.block_size, limit=self._reach, causal=causal)

    def _begin(self, new: Confirmed, counts_B: Tensor, k: int) -> DraftBuilder:
        """Return the draft to be made."""
        return DraftBuilder(
            new,
            counts_B,
            k,
            probabilistic=self._probabilistic,
            target_ids_U=self._network.target_ids_U,
            vocab_size=self._network.vocab_size,
        )
