"""Repetition, presence and frequency penalties, from counts of tokens that stay on the device.

Which tokens a sequence has had is counted where they are emitted, so that a step with penalties need not wait until the
host knows the tokens of the one before.

Shape letters: T slots, B sequences, N of them with penalties, S = K+1 target rows a sequence, K draft tokens,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draftwise.engine.memory.transfer import upload
from draftwise.engine.sampling.params import SamplingParams
from draftwise.engine.sampling.tempering import kernels_for

__all__ = ["Penalties", "TokenCounts"]


class TokenCounts:
    """How often each token has come in the sequences of a table's slots; there once the first has penalties.

    Args:
        num_slots: T.
        vocab_size: V.
        device: where.
    """

    def __init__(self, num_slots: int, vocab_size: int, device: torch.device) -> None:
        self._shape, self._device = (num_slots, vocab_size), device
        self._tables: tuple[Tensor, Tensor] | None = None

    @property
    def tables(self) -> tuple[Tensor, Tensor]:
        """in_prompt_TV, bool, and num_output_TV, int32."""
        if self._tables is None:
            in_prompt_TV = torch.zeros(self._shape, dtype=torch.bool, device=self._device)
            self._tables = in_prompt_TV, torch.zeros(self._shape, dtype=torch.int32, device=self._device)
        return self._tables

    def enter(self, slots: Sequence[int], prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]) -> None:
        """Let slots be those of other sequences, with a prompt and what each has been given by now."""
        slots_N = upload(slots, self._device)
        in_prompt_TV, num_output_TV = self.tables
        in_prompt_TV.index_fill_(0, slots_N, 0)
        num_output_TV.index_fill_(0, slots_N, 0)
        in_prompt_TV.view(-1).index_fill_(0, self._cells(slots, prompts), 1)
        cells_X = self._cells(slots, outputs)
        num_output_TV.view(-1).scatter_add_(0, cells_X, torch.ones_like(cells_X, dtype=torch.int32))

    def _cells(self, slots: Sequence[int], histories: Sequence[Sequence[int]]) -> Tensor:
        """Return where the tokens of all histories lie in a table."""
        pairs = zip(slots, histories, strict=True)
        cells = [np.asarray(tokens, np.int64) + slot * self._shape[1] for slot, tokens in pairs]
        return upload(np.concatenate(cells), self._device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalties:
    """Those of a step's sequences that have penalties."""

    counts: TokenCounts
    members_N: Tensor
    """int64, which of the B sequences."""
    member_B: Tensor
    """int64, which of these a sequence is; -1: none."""
    slots_N: Tensor
    """int64."""
    settings_N3: Tensor
    """float64: repetition, frequency, presence."""

    @classmethod
    def of(
        cls, params: Sequence[SamplingParams], slots: Sequence[int], counts: TokenCounts, device: torch.device
    ) -> Penalties | None:
        """Return the penalties of B sequences; None where none has any.

        Args:
            params: of the sequences.
            slots: of the sequences, in `counts`.
            counts: what they have had.
            device: of the logits.
        """
        members = [b for b, each in enumerate(params) if each.penalises]
        if not members:
            return None
        chosen = [params[b] for b in members]
        settings = [(p.repetition_penalty, p.frequency_penalty, p.presence_penalty) for p in chosen]
        unused = [-1] * (len(params) - len(members))
        places = np.full(len(params), -1)
        places[members] = np.arange(len(members))
        members_B, slots_B, member_B = upload(
            [members + unused, [slots[b] for b in members] + unused, places.tolist()], device
        )
        return cls(
            counts=counts,
            members_N=members_B[: len(members)],
            member_B=member_B,
            slots_N=slots_B[: len(members)],
            settings_N3=upload(settings, device, np.float64),
        )

    def apply(self, logits_BSV: Tensor, draft_BK: Tensor) -> Tensor:
        """Return the changed logits: repetition for tokens of prompt and output, the others for those of the output.

        Args:
            logits_BSV: any float type; half precision is widened. Sequences past the B-th have no penalties.
            draft_BK: int64; row s counts draft tokens 0..s-1 as output.
        """
        in_prompt_TV, num_output_TV = self.counts.tables
        if kernels := kernels_for(logits_BSV):
            settings_N3 = self.settings_N3.float()
            return kernels.penalize(
                logits_BSV, draft_BK, self.member_B, self.slots_N, settings_N3, in_prompt_TV, num_output_TV
            )
        changed_BSV = logits_BSV.to(torch.promote_types(logits_BSV.dtype, torch.float32), copy=True)
        logits_NSV = changed_BSV[self.members_N]
        count_NSV = torch.zeros_like(logits_NSV)
        count_NSV[:, 1:].scatter_(2, draft_BK[self.members_N].unsqueeze(2), 1)
        count_NSV = count_NSV.cumsum_(1).add_(num_output_TV[self.slots_N].unsqueeze(1))
        repetition, frequency, presence = self.settings_N3.to(logits_NSV.dtype).t()[:, :, None, None]
        seen_NSV = (count_NSV > 0) | in_prompt_TV[self.slots_N].unsqueeze(1)
        scaled_NSV = torch.where(logits_NSV > 0, logits_NSV / repetition, logits_NSV * repetition)
        logits_NSV = torch.where(seen_NSV, scaled_NSV, logits_NSV)
        logits_NSV -= frequency * count_NSV
        logits_NSV -= presence * (count_NSV > 0)
        changed_BSV[self.members_N] = logits_NSV
        return changed_BSV

    def count(self, tokens_BS: Tensor) -> None:
        """Take note of what a step emitted: int64, -1 after the end."""
        tokens_NS = tokens_BS[self.members_N]
        _, num_output_TV = self.counts.tables
        cells_NS = tokens_NS.clamp(min=0) + self.slots_N.unsqueeze(1) * num_output_TV.shape[1]
        num_output_TV.view(-1).scatter_add_(0, cells_NS.flatten(), (tokens_NS >= 0).flatten().int())
