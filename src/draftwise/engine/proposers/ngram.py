"""Drafts by prompt lookup, on host or device: the tokens after the first occurrence of the longest repeated suffix.

Both draft the same. The device version drafts for a whole batch without the host.

Shape letters: S slots, B sequences, W rows that a sequence can have at most, N rows of new tokens, L token positions,
K draft tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.models import CausalLM
from draftwise.engine.proposers.proposer import Confirmed, Proposer
from draftwise.engine.resolved_spec import ResolvedSpec
from draftwise.engine.sampling.draft import Draft
from draftwise.lookup.ngram_index import NgramIndex

NO_TOKEN = -1


class NgramProposer(Proposer):
    """Drafts by lookup in the sequence itself (Saxena 2023, prompt-lookup-decoding), exactly as vLLM's `ngram`.

    Takes the longest n-gram, prompt_lookup_min <= n <= prompt_lookup_max, that ends the sequence and occurred before,
    and drafts the tokens after its earliest occurrence (up to max_model_len in total).
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
        """Add `new` and draft up to k tokens each, in constant time per new token."""
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


class NgramGpuProposer(Proposer):
    """Drafts exactly what `NgramProposer` drafts, with static shapes and lengths that stay on the device.

    It compares every position of a sequence with its end at once: max_model_len x prompt_lookup_max comparisons per
    sequence, in one kernel on a GPU (`kernels.cuda.prompt_lookup`), otherwise in torch. The token buffer takes 4 bytes
    x (max_num_seqs + 1) x max_model_len; its last slot is for padding rows.
    """

    needs_history = True

    def __init__(
        self,
        *,
        prompt_lookup_min: int,
        prompt_lookup_max: int,
        max_num_seqs: int,
        max_model_len: int,
        device: torch.device | str = "cpu",
    ) -> None:
        assert 1 <= prompt_lookup_min <= prompt_lookup_max, "the resolved config guarantees it"
        self._shortest, self._longest = prompt_lookup_min, prompt_lookup_max
        self._max_model_len = max_model_len
        self._device = torch.device(device)
        # Position p of a sequence is column `longest + p`: the margin on the left, which equals no token, ends each
        # comparison that would start before the sequence. The last column swallows writes of padding.
        columns = self._longest + max_model_len + 1
        self._tokens_SL = torch.full((max_num_seqs + 1, columns), NO_TOKEN, dtype=torch.int32, device=self._device)

    @torch.inference_mode()
    def propose(self, new: Confirmed, k: int) -> Draft:
        """Add `new` and draft up to k tokens each, without reading anything back to the host."""
        if k > 0 and self._device.type == "cuda" and new.spans.host is None:
            return self._append_and_draft(new, k)
        self._append(new)
        if k == 0:
            return Draft.empty(new.spans.num_seqs, device=self._device)
        return self._draft(new, k)

    def release(self, slot: int) -> None:
        """Do nothing: `Confirmed` gives the length of a sequence's known tokens."""

    def _append_and_draft(self, new: Confirmed, k: int) -> Draft:
        """Do both in one kernel; the rows are those of a step, uniform."""
        from draftwise.engine.kernels.cuda.prompt_lookup import append_and_look_up  # Triton is there where CUDA is

        tokens_BK, lengths_B = append_and_look_up(
            self._tokens_SL,
            new.slots_B,
            new.spans.starts_B,
            new.spans.lengths_B,
            new.tokens_N,
            new.limits_B,
            k=k,
            shortest=self._shortest,
            longest=self._longest,
        )
        return Draft(tokens_BK=tokens_BK, lengths_B=lengths_B)

    def _append(self, new: Confirmed) -> None:
        """Write each new token to its position; padding and what overruns max_model_len go to the last column."""
        spans = new.spans
        offsets_W = torch.arange(spans.width, device=self._device)
        positions_BW = spans.starts_B.unsqueeze(1) + offsets_W
        valid_BW = (offsets_W < spans.lengths_B.unsqueeze(1)) & (positions_BW < self._max_model_len)
        columns_BW = self._longest + torch.where(valid_BW, positions_BW, self._max_model_len)
        slots_N = spans.pack(new.slots_B.unsqueeze(1).expand(-1, spans.width))
        self._tokens_SL[slots_N, spans.pack(columns_BW)] = new.tokens_N.to(torch.int32)

    def _draft(self, new: Confirmed, k: int) -> Draft:
        """Draft from what has been written."""
        lengths_B = new.spans.starts_B + new.spans.lengths_B
        tokens_BL = self._tokens_SL[new.slots_B]
        starts_B = self._find_continuations(tokens_BL, lengths_B)
        budget_B = torch.minimum(new.limits_B, self._max_model_len - lengths_B).clamp_(0, k)
        num_draft_B = torch.minimum(budget_B, lengths_B - starts_B)
        offsets_K = torch.arange(k, device=self._device)
        columns_BK = (self._longest + starts_B[:, None] + offsets_K).clamp(max=tokens_BL.shape[1] - 1)
        tokens_BK = tokens_BL.gather(1, columns_BK).long()
        return Draft(tokens_BK=torch.where(offsets_K < num_draft_B[:, None], tokens_BK, 0), lengths_B=num_draft_B)

    def _find_continuations(self, tokens_BL: Tensor, lengths_B: Tensor) -> Tensor:
        """Return [B] where the earliest occurrence of the longest known suffix ends; the length itself if none does."""
        size = self._max_model_len
        positions_L = torch.arange(size, dtype=torch.int32, device=self._device)
        # Does the n-gram that ends at each position (and before the last one) equal the n-gram that ends the sequence?
        equal_BL = positions_L < lengths_B[:, None] - 1
        longest_BL = torch.zeros(equal_BL.shape, dtype=torch.int32, device=self._device)
        for back in range(self._longest):
            left = self._longest - back
            # A full sequence that overran max_model_len drafts nothing; the clamp only keeps its gather in bounds.
            last_B1 = (left + lengths_B[:, None] - 1).clamp(max=tokens_BL.shape[1] - 1)
            equal_BL = equal_BL & (tokens_BL[:, left : left + size] == tokens_BL.gather(1, last_B1))
            longest_BL += equal_BL
        best_B1 = longest_BL.amax(dim=1, keepdim=True).clamp(min=self._shortest)
        ends_BL = torch.where(longest_BL == best_B1, positions_L + 1, lengths_B[:, None].int())
        return ends_BL.amin(dim=1).long()


def build(spec: ResolvedSpec, config: EngineConfig, target: CausalLM) -> Proposer:
    """Return prompt lookup on the host, or on a GPU on the device, because the host would wait for each step's tokens.

    Both draft the same.
    """
    if target.device.type == "cuda":
        return build_gpu(spec, config, target)
    return NgramProposer(**_read_options(spec, config))


def build_gpu(spec: ResolvedSpec, config: EngineConfig, target: CausalLM) -> Proposer:
    """Return prompt lookup on the target's device."""
    return NgramGpuProposer(**_read_options(spec, config), device=target.device)


def _read_options(spec: ResolvedSpec, config: EngineConfig) -> dict[str, Any]:
    """Return what both implementations of prompt lookup are made with."""
    return {
        "prompt_lookup_min": spec.prompt_lookup_min,
        "prompt_lookup_max": spec.prompt_lookup_max,
        "max_num_seqs": config.max_num_seqs,
        "max_model_len": config.max_model_len,
    }
