"""Prompt lookup on the host: what followed the sequence's longest known suffix where it first occurred."""

from __future__ import annotations

from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.models import CausalLM
from draftwise.engine.proposers import ngram_gpu
from draftwise.engine.proposers.proposer import Confirmed, Proposer
from draftwise.engine.resolved_spec import ResolvedSpec
from draftwise.engine.sampling.draft import Draft
from draftwise.lookup.ngram_index import NgramIndex

__all__ = ["NgramProposer", "build"]


class NgramProposer(Proposer):
    """Drafts by lookup in the sequence itself (Saxena 2023, prompt-lookup-decoding), exactly as vLLM's `ngram`.

    Of all n-grams with prompt_lookup_min <= n <= prompt_lookup_max that end the sequence, it takes the longest one that
    occurred before, goes to that n-gram's earliest occurrence and drafts what followed it (at most up to
    max_model_len tokens in all).
    """

    needs_history = True
    on_host = True

    def __init__(
        self,
        *,
        prompt_lookup_min: int,
        prompt_lookup_max: int,
        max_num_seqs: int,  # noqa: ARG002  (of the method's other implementation, which allocates by it)
        max_model_len: int,
    ) -> None:
        self._shortest, self._longest = prompt_lookup_min, prompt_lookup_max
        self._max_model_len = max_model_len
        self._indices: dict[int, NgramIndex] = {}

    def propose(self, new: Confirmed, k: int) -> Draft:
        """Take in `new` and draft up to k tokens each: constant time per new token, however long the prompt."""
        rows = []
        limits = new.limits_B.tolist()
        for slot, tokens, limit in zip(new.slots_B.tolist(), new.to_lists(), limits, strict=True):
            index = self._indices.get(slot)
            if index is None:
                index = self._indices[slot] = NgramIndex(self._shortest, self._longest)
            index.extend(tokens)
            rows.append(index.draft(min(limit, k, self._max_model_len - len(index.tokens))))
        return Draft.from_lists(rows, k)

    def release(self, slot: int) -> None:
        """Forget the sequence in `slot`."""
        self._indices.pop(slot, None)


def build(spec: ResolvedSpec, config: EngineConfig, target: CausalLM) -> Proposer:
    """Return the proposer; on a GPU that of `ngram_gpu`, since here the host would wait for each step's tokens.

    Both draft the same.
    """
    if target.device.type == "cuda":
        return ngram_gpu.build(spec, config, target)
    return NgramProposer(**ngram_gpu.read_options(spec, config))
