"""SuffixDecoding on the host."""

from __future__ import annotations

import numpy as np
import torch

from draftwise.engine.proposers.base import Confirmed, Proposer
from draftwise.engine.sampling.draft import Draft
from draftwise.lookup.suffix import SuffixCache

__all__ = ["SuffixProposer"]


class SuffixProposer(Proposer):
    """Drafts by the suffix trees of `lookup.suffix` (Oliaro et al. 2024, arXiv:2411.04975).

    Args:
        cache: the trees; of this proposer alone.
    """

    nests = False  # the best match depends on how much of it is drafted
    needs_history = True
    needs_ending = True
    on_host = True

    def __init__(self, cache: SuffixCache) -> None:
        self.cache = cache

    def propose(self, new: Confirmed, k: int) -> Draft:
        """Take in `new` and draft up to k tokens each; a draft knows the responses of earlier rows."""
        assert new.spans.host is not None
        drafts_BK, sizes_B = self.cache.extend(
            new.slots_B.tolist(),
            [size for _, size in new.spans.host],
            np.ascontiguousarray(new.tokens_N.numpy()),
            k,
            num_prompt=new.num_prompt_B.tolist(),
            limits=new.limits_B.tolist(),
        )
        return Draft(tokens_BK=torch.from_numpy(drafts_BK), lengths_B=torch.from_numpy(sizes_B))

    def release(self, slot: int) -> None:
        """Forget the sequence's own tree; its response stays in the global one until newer requests push it out."""
        self.cache.release(slot)
