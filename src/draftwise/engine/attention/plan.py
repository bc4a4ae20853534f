"""Where each new token of a step is stored, and what it attends to.

On a GPU one Triton kernel attends for all sequences of a step. The groups and chunks here are for `reference`, which
runs elsewhere and in float64: torch's own attention over gathered pages.

Shape letters: N new tokens of the step, B decoding sequences, Q query tokens each (padded), M and X = B * Q their
tokens without and with padding, P pages.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from draftwise.engine.attention.spans import Spans
from draftwise.engine.memory.transfer import upload

__all__ = ["AttentionPlan", "DecodeGroup", "PrefillChunk", "Wanted", "plan_attention"]

_LONGEST_DECODE = 32
"""Sequences with at most so many query tokens are padded and batched; longer ones run one by one."""
_FEW_ROWS = 64
"""Rows up to which a layer takes no longer than for one, so that leaving some out only adds launches."""
_LARGEST_PART = 0.75
"""Of a pass's rows, that may be wanted where leaving out the others is to save more than it costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """Where the M rows of a group lie in the step, and where among its padded queries."""

    rows_M: Tensor
    padded_M: Tensor
    rows_X: Tensor
    """Row of each padded query; padding repeats its sequence's last."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodeGroup:
    """Sequences with few query tokens, padded to one shape."""

    pages_BP: Tensor
    last_BQ: Tensor
    """Position of each query token: the last that it may look at."""
    padding: Padding | None
    """None when the step's rows are the queries, in order and without padding."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefillChunk:
    """One sequence with many query tokens."""

    row: int
    start: int
    length: int
    pages_1P: Tensor

    @property
    def context(self) -> int:
        """Tokens after the step."""
        return self.start + self.length


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionPlan:
    """Where each new token is stored and what it looks at; valid for one step and all its layers."""

    spans: Spans
    positions_N: Tensor
    """int64, within the page table."""
    slots_N: Tensor
    """int64, page * block_size + offset; in the scratch page for rows that have no place."""
    page_table_BP: Tensor
    """int32; unused entries and the whole last column name the scratch page."""
    block_size: int
    causal: bool
    """Whether a token looks at those up to itself only, and not at all of its sequence's."""
    wanted: Wanted | None = None
    """Rows whose results somebody reads; None: all. Of the others the last layer only stores keys and values."""
    biases: dict[DecodeGroup | PrefillChunk, Tensor] = field(default_factory=dict)
    """What the first layer computes for the later ones: 0 where a query may look, -inf elsewhere."""

    def wanting(self, rows_R: Tensor, spans: Spans) -> AttentionPlan:
        """Return the plan of a pass of which only some rows are wanted; `spans` are their positions. It is itself where
        leaving out the others would not pay."""
        if not self._pays(len(rows_R)):
            return self
        plan = replace(self, biases={}, spans=spans, positions_N=self.positions_N[rows_R], slots_N=self.slots_N[rows_R])
        return replace(self, biases={}, wanted=Wanted(rows_R, plan))

    def wanting_last(self) -> AttentionPlan:
        """Return the plan of a pass of which only the last row of each sequence is wanted, or itself; see `wanting`."""
        spans = self.spans
        return self.wanting(spans.last_row_B, spans.ends()) if self._pays(spans.num_seqs) else self

    def _pays(self, num_wanted: int) -> bool:
        num_rows = self.spans.num_rows
        return num_rows > _FEW_ROWS and num_wanted <= _LARGEST_PART * num_rows

    @cached_property
    def prefills(self) -> tuple[PrefillChunk, ...]:
        """Sequences whose rows are computed one by one: only where the host knows how many there are."""
        if self.spans.host is None:
            return ()
        chunks, row = [], 0
        for b, (start, length) in enumerate(self.spans.host):
            if self._is_prefill(length):
                num_pages = -(-(start + length) // self.block_size)
                pages_1P = self.page_table_BP[b : b + 1, :num_pages].long()
                chunks.append(PrefillChunk(row=row, start=start, length=length, pages_1P=pages_1P))
            row += length
        return tuple(chunks)

    @cached_property
    def decodes(self) -> tuple[DecodeGroup, ...]:
        """Sequences with few query tokens; those of alike context together, because all are padded to the longest."""
        if self.spans.host is None:
            return (self._uniform_group(),)
        groups: dict[int, list[_Span]] = {}
        row = 0
        for b, (start, length) in enumerate(self.spans.host):
            if length and not self._is_prefill(length):
                num_pages = -(-(start + length) // self.block_size)
                groups.setdefault(num_pages.bit_length(), []).append(_Span(b, row, start, length, num_pages))
            row += length
        return tuple(self._group(spans) for spans in groups.values())

    def _uniform_group(self) -> DecodeGroup:
        """Return all sequences as one group that reaches over their whole tables."""
        spans = self.spans
        last_BQ = spans.unpack(self.positions_N)
        if not self.causal:
            last_BQ = (spans.starts_B + spans.lengths_B - 1).unsqueeze(1).expand_as(last_BQ)
        return DecodeGroup(pages_BP=self.page_table_BP.long(), last_BQ=last_BQ, padding=None)

    def _is_prefill(self, length: int) -> bool:
        return self.causal and length > _LONGEST_DECODE

    def _group(self, spans: list[_Span]) -> DecodeGroup:
        """Return the group of `spans`, which are a part or all of the step's rows."""
        num_queries, num_pages = max(span.length for span in spans), max(span.num_pages for span in spans)
        last: list[int] = []
        for span in spans:
            end = span.start + span.length
            own = range(span.start, end) if self.causal else [end - 1] * span.length
            last += [*own, *[end - 1] * (num_queries - span.length)]
        device = self.page_table_BP.device
        alone_and_even = sum(span.length for span in spans) == self.spans.num_rows == len(last)
        owners = upload([span.index for span in spans], device)
        return DecodeGroup(
            pages_BP=self.page_table_BP[:, :num_pages].index_select(0, owners).long(),
            last_BQ=upload(last, device).view(len(spans), num_queries),
            padding=None if alone_and_even else _pad(spans, num_queries, device),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """Some rows of a pass, and what they look at."""

    rows_R: Tensor
    plan: AttentionPlan


@dataclass(frozen=True, slots=True)
class _Span:
    """New tokens of one sequence: which one, its rows, and the pages that it then fills."""

    index: int
    row: int
    start: int
    length: int
    num_pages: int


def plan_attention(
    spans: Spans, page_table_BP: Tensor, *, block_size: int, limit: int | None = None, causal: bool = True
) -> AttentionPlan:
    """Return the plan for one step, without waiting for the device.

    Args:
        spans: the new tokens of each sequence.
        page_table_BP: int32, pages of each sequence; unused entries and the last column name the scratch page.
        block_size: tokens a page.
        limit: rows at this position or later have no place; None: as far as the table reaches.
        causal: whether a token looks at those up to itself only, and not at all of its sequence's.
    """
    if spans.host is None and page_table_BP.is_cuda:
        from draftwise.engine.kernels.cuda.plan import place_rows  # Triton is there where CUDA is

        positions_N, slots_N = place_rows(
            spans.starts_B, page_table_BP, width=spans.width, block_size=block_size, limit=limit
        )
    else:
        positions_N, slots_N = _place(spans, page_table_BP, block_size, limit)
    return AttentionPlan(
        spans=spans,
        positions_N=positions_N,
        slots_N=slots_N,
        page_table_BP=page_table_BP,
        block_size=block_size,
        causal=causal,
    )


def _place(spans: Spans, page_table_BP: Tensor, block_size: int, limit: int | None) -> tuple[Tensor, Tensor]:
    """Return positions_N and slots_N."""
    last = page_table_BP.shape[1] - 1
    end = last * block_size if limit is None else min(limit, last * block_size)
    positions_N = spans.positions_N.clamp(0, end)
    indices_N = (positions_N // block_size).masked_fill(positions_N == end, last)
    pages_N = page_table_BP[spans.owners_N, indices_N].long()
    return positions_N, pages_N * block_size + positions_N % block_size


def _pad(spans: list[_Span], num_queries: int, device: torch.device | str) -> Padding:
    rows: list[int] = []
    padded: list[int] = []
    queries: list[int] = []
    for b, span in enumerate(spans):
        own = range(span.row, span.row + span.length)
        rows += own
        padded += range(b * num_queries, b * num_queries + span.length)
        queries += [*own, *[own[-1]] * (num_queries - span.length)]
    rows_M, padded_M, rows_X = (upload(index, device) for index in (rows, padded, queries))
    return Padding(rows_M=rows_M, padded_M=padded_M, rows_X=rows_X)
