"""Prompt lookup on the device: the proposals of `ngram` for a whole batch, without asking the host anything.

Shape letters: S slots, B sequences, N new tokens (padded), L token positions, K draft tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftwise.engine.proposers.base import Confirmed, Draft, Proposer

__all__ = ["NgramGpuProposer"]

NO_TOKEN = -1


class NgramGpuProposer(Proposer):
    """Drafts exactly what `NgramProposer` drafts, with static shapes and lengths that stay on the device.

    Every position of a sequence is compared with its end at once: max_model_len x prompt_lookup_max comparisons a
    sequence. The token buffer takes 4 bytes x max_num_seqs x max_model_len.
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
        self._tokens_SL = torch.full((max_num_seqs, columns), NO_TOKEN, dtype=torch.int32, device=self._device)
        self._lengths_S = torch.zeros(max_num_seqs, dtype=torch.long, device=self._device)

    def propose(self, new: Confirmed, k: int) -> Draft:
        """Take in `new` and draft up to k tokens each; nothing is read back to the host."""
        slots_B, num_prompt_B = self._to_device(new.slots, new.num_prompt)
        lengths_B = self._append(slots_B, new)
        if k == 0:
            return Draft.empty(len(new.slots), device=self._device)
        tokens_BL = self._tokens_SL[slots_B]
        starts_B = self._find_continuations(tokens_BL, lengths_B)
        budget_B = (self._max_model_len - lengths_B).clamp(min=0, max=k)
        num_draft_B = torch.minimum(budget_B, lengths_B - starts_B) * (lengths_B > num_prompt_B)
        offsets_K = torch.arange(k, device=self._device)
        columns_BK = (self._longest + starts_B[:, None] + offsets_K).clamp(max=tokens_BL.shape[1] - 1)
        tokens_BK = tokens_BL.gather(1, columns_BK).long()
        valid_BK = offsets_K < num_draft_B[:, None]
        return Draft(tokens_BK=torch.where(valid_BK, tokens_BK, 0), lengths_B=num_draft_B)

    def release(self, slot: int) -> None:
        """Forget the sequence in `slot`: tokens past a sequence's length are never looked at."""
        self._lengths_S[slot].zero_()

    def _append(self, slots_B: Tensor, new: Confirmed) -> Tensor:
        """Write the new tokens behind the old ones and return the new lengths [B]."""
        old_B = self._lengths_S[slots_B]
        offsets_N = torch.arange(new.tokens_BN.shape[1], device=self._device)
        positions_BN = old_B[:, None] + offsets_N
        valid_BN = (offsets_N < new.lengths_B[:, None]) & (positions_BN < self._max_model_len)
        columns_BN = self._longest + torch.where(valid_BN, positions_BN, self._max_model_len)
        self._tokens_SL[slots_B[:, None], columns_BN] = new.tokens_BN.to(torch.int32)
        lengths_B = old_B + new.lengths_B
        self._lengths_S[slots_B] = lengths_B
        return lengths_B

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

    def _to_device(self, *columns: tuple[int, ...]) -> Tensor:
        """Return host integers as an int64 device tensor, without waiting for the device (hence pinned memory)."""
        host = torch.tensor(columns, dtype=torch.long, pin_memory=self._device.type == "cuda")
        return host.to(self._device, non_blocking=True)
