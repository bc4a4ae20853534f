"""The device's table of running sequences, so steps need nothing from the host.

Shape letters: S slots, B sequences of a step, W tokens that a step can confirm at most, P pages of a sequence,
F features of a token.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from draftwise.engine.memory.transfer import upload
from draftwise.engine.sampling.draft import Draft
from draftwise.engine.sampling.params import SamplingParams
from draftwise.engine.sampling.tempering import Tempering
from draftwise.engine.sampling.verify import AcceptedTokens
from draftwise.engine.step.launched import pack
from draftwise.engine.step.scheduler import PageChange, Sequence


class _Column(IntEnum):
    """Integers of a sequence; those up to NUM_NEW, and IS_REAL last, are where the kernels look for them."""

    CAPACITY = 0
    """Capacity of its pages in tokens."""
    NUM_TOKENS = 1
    """Confirmed tokens; the last one is not computed yet."""
    NUM_PROMPT = 2
    MAX_TOKENS = 3
    MAX_DRAFT = 4
    """The request's own num_speculative_tokens."""
    NUM_NEW = 5
    """Number of tokens that the last step confirmed; they follow these columns."""
    SEED = 6
    TOP_K = 7
    IS_REAL = 8
    """0 for the padding row, which never advances."""


class _Share(IntEnum):
    """Real numbers of a sequence."""

    TEMPERATURE = 0
    TOP_P = 1
    MIN_P = 2


class _DerivedColumn(IntEnum):
    """Integers that follow from the others at the start of a step."""

    LIMIT = 0
    LAST = 1
    POSITION = 2
    NEW_START = 3
    NUM_OUTPUT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The rows of a step's sequences at its start; int64 unless noted."""

    slots_B: Tensor
    limits_B: Tensor
    """Maximum draft tokens of each, at most the step's k."""
    last_B: Tensor
    """The token to compute next."""
    position_B: Tensor
    """Position of that token."""
    num_prompt_B: Tensor
    num_output_B: Tensor
    seeds_B: Tensor
    tempering: Tempering
    page_table_BP: Tensor
    """int32, see `plan_attention`."""
    new_tokens_BW: Tensor
    """Tokens that the last step confirmed, padded with valid token ids."""
    num_new_B: Tensor
    new_start_B: Tensor
    """Position of the first new token."""
    features_BWF: Tensor | None
    """Auxiliary hidden states before each of these tokens."""


class SequenceTable:
    """One row per slot, and a last one for padding.

    Args:
        scratch_page: page for writes without a place.
        width: W, maximum tokens that a step can confirm.
        num_features: F; 0 without auxiliary hidden states.
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
        self.padding_slot, self.width = num_slots, width
        self.device, self._block_size, self._scratch_page = device, block_size, scratch_page
        rows = num_slots + 1
        num_pages = -(-max_model_len // block_size) + 1  # the last column stays scratch
        self._integers_SC = torch.zeros(rows, len(_Column) + width, dtype=torch.long, device=device)
        self._integers_SC[num_slots, [_Column.NUM_TOKENS, _Column.NUM_NEW]] = 1
        self._shares_SC = torch.zeros(rows, len(_Share), device=device)
        self._pages_SP = torch.full((rows, num_pages), scratch_page, dtype=torch.int32, device=device)
        self._features_SWF = None
        if num_features:
            self._features_SWF = torch.zeros(rows, width, num_features, dtype=dtype, device=device)

    @property
    def reach(self) -> int:
        """Maximum positions of a sequence with a page."""
        return (self._pages_SP.shape[1] - 1) * self._block_size

    def release(self, slots: abc.Sequence[int]) -> None:
        """Clear the pages of rows whose sequences are gone: they belong to others now."""
        slots_B = upload(slots, self.device)
        self._pages_SP.index_fill_(0, slots_B, self._scratch_page)
        self._integers_SC[:, _Column.CAPACITY].index_fill_(0, slots_B, 0)

    def give_pages(self, changes: abc.Sequence[PageChange]) -> None:
        """Record newly assigned pages, in order."""
        slots, indices, pages = upload([(each.slot, each.index, each.page) for each in changes], self.device).unbind(1)
        self._pages_SP.index_put_((slots, indices), pages.int())
        last = {each.slot: (each.index + 1) * self._block_size for each in changes}
        rows_B, capacity_B = upload([list(last), list(last.values())], self.device)
        self._integers_SC[:, _Column.CAPACITY].index_copy_(0, rows_B, capacity_B)

    def pages(self, slots_B: Tensor) -> Tensor:
        """Return page_table_BP, int32."""
        return self._pages_SP.index_select(0, slots_B)

    def find_limits(self, sequences: abc.Sequence[Sequence], k: int) -> Tensor:
        """Return `View.limits_B` on the CPU, for sequences whose tokens the host knows."""
        ends = (min(s.max_tokens - 1, len(s.pages) * self._block_size) - len(s.tokens) for s in sequences)
        limits = [max(min(_max_draft(s.params), end, k), 0) for s, end in zip(sequences, ends, strict=True)]
        return upload(limits, "cpu")

    def enter(self, sequences: abc.Sequence[Sequence], tokens_B: Tensor, features_BF: Tensor | None) -> None:
        """Start decoding of sequences.

        Args:
            sequences: sequences whose prompts are computed.
            tokens_B: int64, sampled next tokens, which the host need not know yet.
            features_BF: auxiliary hidden states before these tokens.
        """
        integers, shares = zip(*(_row(sequence) for sequence in sequences), strict=True)
        slots_B = upload([sequence.row for sequence in sequences], self.device)
        written = self._integers_SC[:, _Column.CAPACITY + 1 : len(_Column)]
        written.index_copy_(0, slots_B, upload(integers, self.device))
        self._integers_SC[:, len(_Column)].index_copy_(0, slots_B, tokens_B)
        self._shares_SC.index_copy_(0, slots_B, upload(shares, self.device, np.float32))
        if features_BF is not None and self._features_SWF is not None:
            self._features_SWF[:, 0].index_copy_(0, slots_B, features_BF)

    def look_up(self, slots_B: Tensor, *, k: int, all_greedy: bool, truncates: bool) -> View:
        """Return the rows of slots.

        Args:
            slots_B: int64; padding uses `padding_slot`.
            all_greedy: see `Tempering`, like the next.
        """
        features = self._features_SWF
        integers_CB, derived_DB, shares_CB, pages_BP = self._look_up(slots_B, k)
        integers, derived, shares = integers_CB.unbind(), derived_DB.unbind(), shares_CB.unbind()
        return View(
            slots_B=slots_B,
            limits_B=derived[_DerivedColumn.LIMIT],
            last_B=derived[_DerivedColumn.LAST],
            position_B=derived[_DerivedColumn.POSITION],
            num_prompt_B=integers[_Column.NUM_PROMPT],
            num_output_B=derived[_DerivedColumn.NUM_OUTPUT],
            seeds_B=integers[_Column.SEED],
            tempering=Tempering(
                temperature_B=shares[_Share.TEMPERATURE],
                top_k_B=integers[_Column.TOP_K],
                top_p_B=shares[_Share.TOP_P],
                min_p_B=shares[_Share.MIN_P],
                all_greedy=all_greedy,
                truncates=truncates,
            ),
            page_table_BP=pages_BP,
            new_tokens_BW=integers_CB[len(_Column) :].t(),
            num_new_B=integers[_Column.NUM_NEW],
            new_start_B=derived[_DerivedColumn.NEW_START],
            features_BWF=None if features is None else features.index_select(0, slots_B),
        )

    def _look_up(self, slots_B: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return integers_CB, derived_DB, shares_CB and pages_BP, all contiguous.

        On a CPU by numpy, here and in `advance`: torch runs far more code for few numbers.
        """
        if slots_B.is_cuda:
            from draftwise.engine.kernels.cuda.step_rows import look_up_rows  # Triton is there where CUDA is

            tables = self._integers_SC, self._shares_SC, self._pages_SP
            return look_up_rows(*tables, slots_B, first_new=len(_Column), k=k)
        integers_SC, shares_SC, pages_SP, slots = (
            each.numpy() for each in (self._integers_SC, self._shares_SC, self._pages_SP, slots_B)
        )
        integers_CB = np.ascontiguousarray(integers_SC[slots].T)
        capacity_B, num_tokens_B, num_prompt_B, max_tokens_B, max_draft_B, num_new_B = integers_CB[:6]
        derived_DB = np.empty((len(_DerivedColumn), len(slots)), np.int64)
        room_B = np.minimum(max_tokens_B - 1, capacity_B) - num_tokens_B
        derived_DB[_DerivedColumn.LIMIT] = np.minimum(max_draft_B, room_B).clip(0, k)
        derived_DB[_DerivedColumn.LAST] = integers_SC[slots, num_new_B + (len(_Column) - 1)]
        derived_DB[_DerivedColumn.POSITION] = num_tokens_B - 1
        derived_DB[_DerivedColumn.NEW_START] = num_tokens_B - num_new_B
        derived_DB[_DerivedColumn.NUM_OUTPUT] = num_tokens_B - num_prompt_B
        shares_CB, pages_BP = np.ascontiguousarray(shares_SC[slots].T), pages_SP[slots]
        found = [torch.from_numpy(each) for each in (integers_CB, derived_DB, shares_CB, pages_BP)]
        return found[0], found[1], found[2], found[3]

    def advance(self, view: View, draft: Draft, accepted: AcceptedTokens, features_BSF: Tensor | None) -> Tensor:
        """Confirm the tokens that a step emitted.

        Args:
            accepted: emitted tokens; S is at most W.
            features_BSF: auxiliary hidden states before each emitted token.

        Returns:
            the numbers that the host reads, see `launched.pack`.
        """
        width, features_SWF = accepted.tokens_BS.shape[1], self._features_SWF
        if view.slots_B.is_cuda:
            from draftwise.engine.kernels.cuda import step_rows  # Triton is there where CUDA is

            if features_BSF is not None and features_SWF is not None:
                step_rows.store_rows(features_SWF, view.slots_B, features_BSF)
            new = accepted.num_accepted_B, accepted.tokens_BS, draft.lengths_B, draft.tokens_BK
            return step_rows.advance_rows(self._integers_SC, view.slots_B, *new, first_new=len(_Column))
        if features_BSF is not None and features_SWF is not None:
            features_SWF[:, :width].index_copy_(0, view.slots_B, features_BSF)
        integers_SC, slots = self._integers_SC.numpy(), view.slots_B.numpy()
        integers_BC, num_emitted_B = integers_SC[slots], accepted.num_accepted_B.numpy() + 1
        integers_BC[:, _Column.NUM_TOKENS] += num_emitted_B * integers_BC[:, _Column.IS_REAL]
        integers_BC[:, _Column.NUM_NEW] = num_emitted_B
        integers_BC[:, len(_Column) : len(_Column) + width] = np.maximum(accepted.tokens_BS.numpy(), 0)
        integers_SC[slots] = integers_BC
        return pack(draft, accepted)


def _max_draft(params: SamplingParams) -> int:
    own_k = params.num_speculative_tokens
    return 2**31 if own_k is None else own_k


def _row(sequence: Sequence) -> tuple[list[int], list[float]]:
    """Return the integers and real numbers of a sequence whose next token has just been sampled."""
    params = sequence.params
    integers = {  # all but CAPACITY, which its pages say
        _Column.NUM_TOKENS: len(sequence.tokens) + 1,
        _Column.NUM_PROMPT: sequence.num_prompt,
        _Column.MAX_TOKENS: sequence.max_tokens,
        _Column.MAX_DRAFT: _max_draft(params),
        _Column.NUM_NEW: 1,
        _Column.SEED: sequence.seed,
        _Column.TOP_K: params.top_k,
        _Column.IS_REAL: 1,
    }
    shares = {_Share.TEMPERATURE: params.temperature, _Share.TOP_P: params.top_p, _Share.MIN_P: params.min_p}
    return [integers[column] for column in _Column if column in integers], [shares[share] for share in _Share]
