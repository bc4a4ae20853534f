"""What the device knows of the running sequences, so that a step needs nothing from the host.

Shape letters: S slots, B sequences of a step, W tokens that a step can make final at most, P pages of a sequence,
F features of a token.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from draftwise.engine.logits import Tempering
from draftwise.engine.scheduler import PageChange
from draftwise.engine.sequence import Sequence
from draftwise.engine.transfer import upload
from draftwise.engine.verify import Verdict

__all__ = ["SequenceTable", "View"]


class _Column(IntEnum):
    """Integers of a sequence."""

    NUM_TOKENS = 0
    """Final tokens, the last of which is not computed yet."""
    NUM_PROMPT = 1
    MAX_TOKENS = 2
    MAX_DRAFT = 3
    """The request's own num_speculative_tokens."""
    SEED = 4
    TOP_K = 5
    IS_REAL = 6
    """0 for the row of padding, which never moves on."""


class _Share(IntEnum):
    """Real numbers of a sequence."""

    TEMPERATURE = 0
    TOP_P = 1
    MIN_P = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The rows of a step's sequences."""

    slots_B: Tensor
    num_tokens_B: Tensor
    num_prompt_B: Tensor
    max_draft_B: Tensor
    """Guesses that each can use: by its request, its end and the pages that it holds."""
    seeds_B: Tensor
    tempering: Tempering
    page_table_BP: Tensor
    """int32, see `plan_attention`."""
    news_BW: Tensor
    """Tokens that the last step made final, in front, valid token ids behind them."""
    num_news_B: Tensor
    features_BWF: Tensor | None
    """Of each of these tokens, the tapped states before it."""
    is_real_B: Tensor

    @property
    def last_B1(self) -> Tensor:
        """The token to compute next."""
        return self.news_BW.gather(1, self.num_news_B.unsqueeze(1) - 1)


class SequenceTable:
    """A row for each slot, and one more for padding: the last.

    Args:
        num_slots: sequences that can run together.
        max_model_len: tokens of a sequence at most.
        block_size: tokens a page.
        scratch_page: page for whatever has no place.
        width: W, tokens that a step can make final at most.
        num_features: F; 0 when nothing is tapped.
        dtype: of the features.
        device: where.
    """

    def __init__(
        self,
        *,
        num_slots: int,
        max_model_len: int,
        block_size: int,
        scratch_page: int,
        width: int,
        num_features: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.padding_slot = num_slots
        self._device, self._block_size, self._scratch_page = device, block_size, scratch_page
        rows = num_slots + 1
        num_pages = -(-max_model_len // block_size) + 1  # the last column stays scratch
        self._integers_SC = torch.zeros(rows, len(_Column), dtype=torch.long, device=device)
        self._shares_SC = torch.zeros(rows, len(_Share), device=device)
        self._pages_SP = torch.full((rows, num_pages), scratch_page, dtype=torch.int32, device=device)
        self._capacity_S = torch.zeros(rows, dtype=torch.long, device=device)
        self._news_SW = torch.zeros(rows, width, dtype=torch.long, device=device)
        self._num_news_S = torch.ones(rows, dtype=torch.long, device=device)
        self._features_SWF = None
        if num_features:
            self._features_SWF = torch.zeros(rows, width, num_features, dtype=dtype, device=device)
        self._integers_SC[num_slots, _Column.NUM_TOKENS] = 1

    def release(self, slots: Items[int]) -> None:
        """Take all pages from rows whose sequences are gone: they are other sequences' now."""
        slots_B = upload(slots, self._device)
        self._pages_SP.index_fill_(0, slots_B, self._scratch_page)
        self._capacity_S.index_fill_(0, slots_B, 0)

    def give_pages(self, changes: Items[PageChange]) -> None:
        """Enter pages that sequences were given, in order."""
        slots, indices, pages = upload([(each.slot, each.index, each.page) for each in changes], self._device).unbind(1)
        self._pages_SP.index_put_((slots, indices), pages.int())
        last = {each.slot: (each.index + 1) * self._block_size for each in changes}
        rows_B, capacity_B = upload([list(last), list(last.values())], self._device)
        self._capacity_S.index_copy_(0, rows_B, capacity_B)

    def pages(self, slots_B: Tensor) -> Tensor:
        """Return page_table_BP, int32."""
        return self._pages_SP.index_select(0, slots_B)

    def enter(self, sequences: Items[Sequence], tokens_B: Tensor, features_BF: Tensor | None) -> None:
        """Let sequences decode from here on.

        Args:
            sequences: their prompts are computed.
            tokens_B: int64, what was sampled after them, which the host need not know yet.
            features_BF: the tapped states before these tokens.
        """
        integers, shares = zip(*(_row(sequence) for sequence in sequences), strict=True)
        slots_B = upload([sequence.row for sequence in sequences], self._device)
        self._integers_SC.index_copy_(0, slots_B, upload(integers, self._device))
        self._shares_SC.index_copy_(0, slots_B, upload(shares, self._device, np.float32))
        self._news_SW[:, 0].index_copy_(0, slots_B, tokens_B)
        self._num_news_S.index_fill_(0, slots_B, 1)
        if features_BF is not None and self._features_SWF is not None:
            self._features_SWF[:, 0].index_copy_(0, slots_B, features_BF)

    def look_up(self, slots_B: Tensor, *, all_greedy: bool, truncates: bool) -> View:
        """Return the rows of some slots.

        Args:
            slots_B: int64; padding names `padding_slot`.
            all_greedy: see `Tempering`.
            truncates: see `Tempering`.
        """
        integers = self._integers_SC.index_select(0, slots_B).unbind(1)
        shares = self._shares_SC.index_select(0, slots_B).unbind(1)
        num_tokens_B = integers[_Column.NUM_TOKENS]
        end_B = torch.minimum(integers[_Column.MAX_TOKENS] - 1, self._capacity_S.index_select(0, slots_B))
        features = self._features_SWF
        return View(
            slots_B=slots_B,
            num_tokens_B=num_tokens_B,
            num_prompt_B=integers[_Column.NUM_PROMPT],
            max_draft_B=torch.minimum(integers[_Column.MAX_DRAFT], end_B - num_tokens_B).clamp_(min=0),
            seeds_B=integers[_Column.SEED],
            tempering=Tempering(
                temperature_B=shares[_Share.TEMPERATURE],
                top_k_B=integers[_Column.TOP_K],
                top_p_B=shares[_Share.TOP_P],
                min_p_B=shares[_Share.MIN_P],
                all_greedy=all_greedy,
                truncates=truncates,
            ),
            page_table_BP=self.pages(slots_B),
            news_BW=self._news_SW.index_select(0, slots_B),
            num_news_B=self._num_news_S.index_select(0, slots_B),
            features_BWF=None if features is None else features.index_select(0, slots_B),
            is_real_B=integers[_Column.IS_REAL],
        )

    def advance(self, view: View, verdict: Verdict, features_BSF: Tensor | None) -> None:
        """Make final what a step emitted.

        Args:
            view: what the step began with.
            verdict: what it emitted; S is at most W.
            features_BSF: the tapped states before each emitted token.
        """
        num_emitted_B, width = verdict.num_accepted_B + 1, verdict.tokens_BS.shape[1]
        num_tokens_B = view.num_tokens_B + num_emitted_B * view.is_real_B
        self._integers_SC[:, _Column.NUM_TOKENS].index_copy_(0, view.slots_B, num_tokens_B)
        self._num_news_S.index_copy_(0, view.slots_B, num_emitted_B)
        self._news_SW[:, :width].index_copy_(0, view.slots_B, verdict.tokens_BS.clamp(min=0))
        if features_BSF is not None and self._features_SWF is not None:
            self._features_SWF[:, :width].index_copy_(0, view.slots_B, features_BSF)


def _row(sequence: Sequence) -> tuple[list[int], list[float]]:
    """Return the integers and real numbers of a sequence whose next token has just been sampled."""
    params = sequence.params
    own_k = params.num_speculative_tokens
    integers = {
        _Column.NUM_TOKENS: len(sequence.tokens) + 1,
        _Column.NUM_PROMPT: sequence.num_prompt,
        _Column.MAX_TOKENS: sequence.max_tokens,
        _Column.MAX_DRAFT: 2**31 if own_k is None else own_k,
        _Column.SEED: sequence.seed,
        _Column.TOP_K: params.top_k,
        _Column.IS_REAL: 1,
    }
    shares = {_Share.TEMPERATURE: params.temperature, _Share.TOP_P: params.top_p, _Share.MIN_P: params.min_p}
    return [integers[column] for column in _Column], [shares[share] for share in _Share]
