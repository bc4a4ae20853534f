"""SuffixDecoding on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.models import CausalLM
from draftwise.engine.proposers.proposer import Confirmed, Proposer
from draftwise.engine.resolved_spec import ResolvedSpec
from draftwise.engine.sampling.draft import Draft
from draftwise.machine.folders import one_at_a_time

if TYPE_CHECKING:
    from draftwise.lookup.suffix_cache import SuffixCache


class SuffixProposer(Proposer):
    """Drafts by the suffix trees of `lookup.suffix_cache` (Oliaro et al. 2024, arXiv:2411.04975).

    Args:
        cache: trees, used only by this proposer.
    """

    nests = False  # the best match depends on how much of it is drafted
    needs_history = True
    needs_ending = True
    on_host = True

    def __init__(self, cache: SuffixCache) -> None:
        self.cache = cache

    def propose(self, new: Confirmed, k: int) -> Draft:
        """Add `new` and draft up to k tokens each. A draft can use the responses of earlier rows."""
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
        """Forget the sequence's own tree. Its response stays in the global tree until newer requests evict it."""
        self.cache.release(slot)


def build(spec: ResolvedSpec, _config: EngineConfig, _target: CausalLM) -> Proposer:
    """Return the proposer. One process compiles its kernels for all."""
    with one_at_a_time("suffix-kernels"):
        from draftwise.lookup.suffix_cache import SuffixCache  # the import compiles them

        cache = SuffixCache(
            max_tree_depth=spec.suffix_decoding_max_tree_depth,
            max_cached_requests=spec.suffix_decoding_max_cached_requests,
            max_spec_factor=spec.suffix_decoding_max_spec_factor,
            min_token_prob=spec.suffix_decoding_min_token_prob,
        )
    return SuffixProposer(cache)
