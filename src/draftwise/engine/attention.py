"""Paged keys and values, and attention of each sequence's new tokens over its pages.

Shape letters: N new tokens of the step, B decoding sequences, Q query tokens each (padded), M and X = B * Q their
tokens without and with padding, C tokens of a prefill chunk, T tokens of context (padded), P pages, A query heads,
G key-value heads, Y = Q * A / G queries of a key-value head, D head dimension, E = A * D.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from draftwise.core import ModelShape

__all__ = ["AttentionPlan", "PagedKV", "attend", "plan_attention"]

_LONGEST_DECODE = 32
"""Sequences with at most so many query tokens are padded and batched; longer ones run one by one."""


class PagedKV:
    """Key and value pages of all layers, allocated once.

    Attributes:
        layers: for each layer [num_pages, block_size, 2, G, D]; a token's keys and values lie beside each
            other, so that one copy gathers both.
        num_bytes: memory of all layers.
    """

    def __init__(
        self, shape: ModelShape, *, num_pages: int, block_size: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        self.num_pages, self.block_size = num_pages, block_size
        self.num_bytes = num_pages * block_size * shape.kv_bytes_per_token(dtype.itemsize)
        size = (num_pages, block_size, 2, shape.num_kv_heads, shape.head_dim)
        # Zeros, because pages are gathered whole: what a masked position holds must at least be finite.
        self.layers = [torch.zeros(size, dtype=dtype, device=device) for _ in range(shape.num_layers)]

    def store(self, layer: int, slots_N: Tensor, kv_N2GD: Tensor) -> None:
        """Store keys and values of N tokens at their slots (page * block_size + offset)."""
        self.layers[layer].flatten(0, 1).index_copy_(0, slots_N, kv_N2GD)

    def gather(self, layer: int, pages_BP: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values, [B, G, P * block_size, D] each, of B lists of pages."""
        pages = self.layers[layer]
        tokens = pages.index_select(0, pages_BP.flatten()).view(pages_BP.shape[0], -1, *pages.shape[2:])
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

    start: int
    length: int
    context: int
    pages_1P: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPlan:
    """Where each new token is stored and what it looks at; valid for one step and all its layers."""

    slots_N: Tensor
    decodes: tuple[DecodeGroup, ...]
    prefills: tuple[PrefillChunk, ...]
    biases: dict[DecodeGroup | PrefillChunk, Tensor] = field(default_factory=dict)
    """What the first layer computes for the later ones: 0 where a query may look, -inf elsewhere."""


@dataclass(frozen=True, slots=True)
class _Span:
    """New tokens of one sequence: rows of the step, tokens after it, and the pages that hold those."""

    start: int
    length: int
    context: int
    pages: Sequence[int]


def plan_attention(
    *,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    page_tables: Sequence[Sequence[int]],
    block_size: int,
    device: torch.device | str,
    causal: bool = True,
) -> AttentionPlan:
    """Return the plan for one step.

    Args:
        query_lens: new tokens of each sequence; their rows follow each other in the step's flat tokens.
        context_lens: tokens of each sequence after this step, the new ones included.
        page_tables: pages of each sequence, at least ceil(context / block_size); more are ignored.
        block_size: tokens a page.
        device: where the plan's tensors go.
        causal: whether a token looks at those up to itself only, and not at all of its sequence's.
    """
    slots: list[int] = []
    prefills: list[PrefillChunk] = []
    # Every sequence of a group is padded to its longest context: alike ones go together.
    groups: dict[int, list[_Span]] = {}
    for length, context, table in zip(query_lens, context_lens, page_tables, strict=True):
        num_pages = -(-context // block_size)
        assert 0 < length <= context, "each sequence needs a new token"
        assert num_pages <= len(table), "each token needs a place"
        span = _Span(len(slots), length, context, table[:num_pages])
        slots += [table[t // block_size] * block_size + t % block_size for t in range(context - length, context)]
        if length <= _LONGEST_DECODE or not causal:
            groups.setdefault(num_pages.bit_length(), []).append(span)
        else:
            pages_1P = _to_device(span.pages, device).unsqueeze(0)
            prefills.append(PrefillChunk(start=span.start, length=length, context=context, pages_1P=pages_1P))
    return AttentionPlan(
        slots_N=_to_device(slots, device),
        decodes=tuple(
            _plan_decode(spans, num_rows=len(slots), causal=causal, device=device) for spans in groups.values()
        ),
        prefills=tuple(prefills),
    )


def _plan_decode(spans: list[_Span], *, num_rows: int, causal: bool, device: torch.device | str) -> DecodeGroup:
    """Return the group of `spans`, which are a part or all of the `num_rows` of the step."""
    num_queries, num_pages = max(span.length for span in spans), max(len(span.pages) for span in spans)
    pages: list[int] = []
    last: list[int] = []
    for span in spans:
        pages += [*span.pages, *[0] * (num_pages - len(span.pages))]
        own = range(span.context - span.length, span.context) if causal else [span.context - 1] * span.length
        last += [*own, *[span.context - 1] * (num_queries - span.length)]
    alone_and_even = sum(span.length for span in spans) == num_rows == len(last)
    return DecodeGroup(
        pages_BP=_to_device(pages, device).view(len(spans), num_pages),
        last_BQ=_to_device(last, device).view(len(spans), num_queries),
        padding=None if alone_and_even else _pad(spans, num_queries, device),
    )


def _pad(spans: list[_Span], num_queries: int, device: torch.device | str) -> Padding:
    rows: list[int] = []
    padded: list[int] = []
    queries: list[int] = []
    for b, span in enumerate(spans):
        own = range(span.start, span.start + span.length)
        rows += own
        padded += range(b * num_queries, b * num_queries + span.length)
        queries += [*own, *[own[-1]] * (num_queries - span.length)]
    rows_M, padded_M, rows_X = (_to_device(index, device) for index in (rows, padded, queries))
    return Padding(rows_M=rows_M, padded_M=padded_M, rows_X=rows_X)


def _to_device(values: Sequence[int], device: torch.device | str) -> Tensor:
    """Return an int64 tensor, by way of numpy because torch.tensor takes five times as long over a list."""
    return torch.from_numpy(np.array(values, dtype=np.int64)).to(device)


def attend(q_NAD: Tensor, kv: PagedKV, layer: int, plan: AttentionPlan) -> Tensor:
    """Return the attention output [N, A * D] of the new tokens, whose keys and values are stored already."""
    out_NE = q_NAD.new_empty(q_NAD.shape[0], q_NAD.shape[1] * q_NAD.shape[2])
    for group in plan.decodes:
        if group.padding is None:
            return _decode(q_NAD, kv, layer, group, plan.biases)
        out_XE = _decode(q_NAD.index_select(0, group.padding.rows_X), kv, layer, group, plan.biases)
        out_NE.index_copy_(0, group.padding.rows_M, out_XE.index_select(0, group.padding.padded_M))
    for chunk in plan.prefills:
        rows = slice(chunk.start, chunk.start + chunk.length)
        out_NE[rows] = _prefill(q_NAD[rows], kv, layer, chunk, plan.biases)
    return out_NE


def _decode(
    q_XAD: Tensor, kv: PagedKV, layer: int, group: DecodeGroup, biases: dict[DecodeGroup | PrefillChunk, Tensor]
) -> Tensor:
    """Return [X, A * D]. Query heads that share keys are folded into the queries: one product serves them all."""
    (num_seqs, num_queries), (_, heads, size) = group.last_BQ.shape, q_XAD.shape
    k_BGTD, v_BGTD = kv.gather(layer, group.pages_BP)
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
    k_1GTD, v_1GTD = (t[:, :, : chunk.context] for t in kv.gather(layer, chunk.pages_1P))
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
