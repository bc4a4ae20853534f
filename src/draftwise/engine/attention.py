"""Paged keys and values, and attention of each sequence's new tokens over its pages.

On a GPU one Triton kernel attends for all sequences of a step. The groups and chunks here are what runs elsewhere, and
in float64: torch's own attention over gathered pages.

Shape letters: N new tokens of the step, B decoding sequences, Q query tokens each (padded), M and X = B * Q their
tokens without and with padding, C tokens of a prefill chunk, T tokens of context (padded), P pages, A query heads,
G key-value heads, Y = Q * A / G queries of a key-value head, D head dimension, E = A * D.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from draftwise.core import ModelShape
from draftwise.engine.spans import Spans
from draftwise.engine.transfer import upload

__all__ = ["AttentionPlan", "PagedKV", "attend", "plan_attention"]

_LONGEST_DECODE = 32
"""Sequences with at most so many query tokens are padded and batched; longer ones run one by one."""


class PagedKV:
    """Key and value pages of all layers, allocated once.

    Args:
        shape: whose layers, key-value heads and head dimension.
        num_pages: pages that sequences can hold. One more is scratch: rows without a place are written there.
        block_size: tokens a page.
        dtype: what keys and values are stored as; float8_e4m3fn is widened when it is read.
        device: where.

    Attributes:
        layers: for each layer [num_pages + 1, block_size, 2, G, D]; a token's keys and values lie beside each
            other, so that one copy gathers both.
        num_bytes: memory of all layers.
    """

    def __init__(
        self, shape: ModelShape, *, num_pages: int, block_size: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        self.num_pages, self.block_size = num_pages, block_size
        self.num_bytes = (num_pages + 1) * block_size * shape.kv_bytes_per_token(dtype.itemsize)
        size = (num_pages + 1, block_size, 2, shape.num_kv_heads, shape.head_dim)
        # Zeros, because pages are gathered whole: what a masked position holds must at least be finite.
        self.layers = [torch.zeros(size, dtype=dtype, device=device) for _ in range(shape.num_layers)]

    def store(self, layer: int, slots_N: Tensor, kv_N2GD: Tensor) -> None:
        """Store keys and values of N tokens at their slots (page * block_size + offset)."""
        flat = self.layers[layer].flatten(0, 1)
        if self.is_narrow:
            largest = torch.finfo(flat.dtype).max
            flat.view(torch.uint8).index_copy_(
                0, slots_N, kv_N2GD.clamp(-largest, largest).to(flat.dtype).view(torch.uint8)
            )
        else:
            flat.index_copy_(0, slots_N, kv_N2GD)

    @property
    def is_narrow(self) -> bool:
        """Whether keys and values are stored in one byte and must be widened."""
        return self.layers[0].dtype.itemsize == 1

    def gather(self, layer: int, pages_BP: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return keys and values, [B, G, P * block_size, D] each, of B lists of pages."""
        pages = self.layers[layer]
        stored = pages.view(torch.uint8) if self.is_narrow else pages
        tokens = stored.index_select(0, pages_BP.flatten()).view(pages_BP.shape[0], -1, *pages.shape[2:])
        if self.is_narrow:
            tokens = tokens.view(pages.dtype).to(dtype)
        keys_BGTD, values_BGTD = tokens.permute(2, 0, 3, 1, 4).unbind(0)
        return keys_BGTD, values_BGTD


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
    biases: dict[DecodeGroup | PrefillChunk, Tensor] = field(default_factory=dict)
    """What the first layer computes for the later ones: 0 where a query may look, -inf elsewhere."""

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
    owners_N1 = _owners(spans).unsqueeze(1)
    indices_N1 = (positions_N // block_size).masked_fill(positions_N == end, last).unsqueeze(1)
    pages_N = page_table_BP.index_select(0, owners_N1.squeeze(1)).gather(1, indices_N1).squeeze(1).long()
    return positions_N, pages_N * block_size + positions_N % block_size


def _owners(spans: Spans) -> Tensor:
    """Return the sequence of each row [N]."""
    return spans.pack(torch.arange(spans.num_seqs, device=spans.starts_B.device).unsqueeze(1).expand(-1, spans.width))


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


def attend(q_NAD: Tensor, kv: PagedKV, layer: int, plan: AttentionPlan) -> Tensor:
    """Return the attention output [N, A * D] of the new tokens, whose keys and values are stored already."""
    if q_NAD.is_cuda and q_NAD.dtype != torch.float64:
        from draftwise.engine.kernels.cuda.attention import decode_attention  # Triton is there where CUDA is

        spans = plan.spans
        return decode_attention(
            q_NAD,
            kv.layers[layer],
            plan.page_table_BP,
            spans.first_row_B,
            spans.starts_B,
            spans.lengths_B,
            width=spans.width,
            causal=plan.causal,
            scale=q_NAD.shape[-1] ** -0.5,
        )
    out_NE = q_NAD.new_empty(q_NAD.shape[0], q_NAD.shape[1] * q_NAD.shape[2])
    for group in plan.decodes:
        if group.padding is None:
            return _decode(q_NAD, kv, layer, group, plan.biases)
        out_XE = _decode(q_NAD.index_select(0, group.padding.rows_X), kv, layer, group, plan.biases)
        out_NE.index_copy_(0, group.padding.rows_M, out_XE.index_select(0, group.padding.padded_M))
    for chunk in plan.prefills:
        rows = slice(chunk.row, chunk.row + chunk.length)
        out_NE[rows] = _prefill(q_NAD[rows], kv, layer, chunk, plan.biases)
    return out_NE


def _decode(
    q_XAD: Tensor, kv: PagedKV, layer: int, group: DecodeGroup, biases: dict[DecodeGroup | PrefillChunk, Tensor]
) -> Tensor:
    """Return [X, A * D]. Query heads that share keys are folded into the queries: one product serves them all."""
    (num_seqs, num_queries), (_, heads, size) = group.last_BQ.shape, q_XAD.shape
    k_BGTD, v_BGTD = kv.gather(layer, group.pages_BP, q_XAD.dtype)
    groups, share = k_BGTD.shape[1], heads // k_BGTD.shape[1]
    q_BGYD = q_XAD.reshape(num_seqs, num_queries, groups, share, size).transpose(1, 2).flatten(2, 3)
    bias_B1YT = biases.get(group)
    if bias_B1YT is None:
        bias_BQT = _bias(group.last_BQ, k_BGTD.shape[2], q_XAD.dtype)
        bias_B1YT = biases[group] = bias_BQT.unsqueeze(2).expand(-1, -1, share, -1).flatten(1, 2).unsqueeze(1)
    out_BGYD = F.scaled_dot_product_attention(q_BGYD, k_BGTD, v_BGTD, attn_mask=bias_B1YT)
    out_BQGSD = out_BGYD.view(num_seqs, groups, num_queries, share, size).transpose(1, 2)
    return out_BQGSD.reshape(num_seqs * num_queries, heads * size)


def _prefill(
    q_CAD: Tensor, kv: PagedKV, layer: int, chunk: PrefillChunk, biases: dict[DecodeGroup | PrefillChunk, Tensor]
) -> Tensor:
    """Return [C, A * D]."""
    k_1GTD, v_1GTD = (t[:, :, : chunk.context] for t in kv.gather(layer, chunk.pages_1P, q_CAD.dtype))
    bias_CT = None
    if chunk.length < chunk.context:
        bias_CT = biases.get(chunk)
        if bias_CT is None:
            last_C = torch.arange(chunk.context - chunk.length, chunk.context, device=q_CAD.device)
            bias_CT = biases[chunk] = _bias(last_C, chunk.context, q_CAD.dtype)
    out_1ACD = F.scaled_dot_product_attention(
        q_CAD.transpose(0, 1).unsqueeze(0),
        k_1GTD,
        v_1GTD,
        attn_mask=bias_CT,
        is_causal=bias_CT is None,
        enable_gqa=True,
    )
    return out_1ACD[0].transpose(0, 1).flatten(1)


def _bias(last: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """Return [*last.shape, length]: 0 up to and with position `last`, -inf after it."""
    hidden = torch.arange(length, device=last.device) > last.unsqueeze(-1)
    return torch.zeros(hidden.shape, dtype=dtype, device=last.device).masked_fill_(hidden, float("-inf"))
