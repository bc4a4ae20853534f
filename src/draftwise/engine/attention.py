"""Paged keys and values, and causal attention of each sequence's new tokens over its pages.

Shape letters: N new tokens of the step, B decoding sequences, Q query tokens a sequence (padded), T tokens
of context (padded), P pages a sequence (padded), M query tokens of all decoding sequences, C tokens of a
prefill chunk, A query heads, G key-value heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
        keys, values: one tensor [num_pages, block_size, G, D] for each layer.
    """

    def __init__(
        self, shape: ModelShape, *, num_pages: int, block_size: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        self.num_pages, self.block_size = num_pages, block_size
        self.num_bytes = num_pages * block_size * shape.kv_bytes_per_token(dtype.itemsize)
        size = (shape.num_layers, num_pages, block_size, shape.num_kv_heads, shape.head_dim)
        # Zeros, because pages are gathered whole: what a masked position holds must at least be finite.
        self.keys = list(torch.zeros(size, dtype=dtype, device=device))
        self.values = list(torch.zeros(size, dtype=dtype, device=device))

    def write(self, layer: int, slots_N: Tensor, keys_NGD: Tensor, values_NGD: Tensor) -> None:
        """Store keys and values of N tokens at their slots (page * block_size + offset)."""
        self.keys[layer].flatten(0, 1).index_copy_(0, slots_N, keys_NGD)
        self.values[layer].flatten(0, 1).index_copy_(0, slots_N, values_NGD)

    def gather(self, layer: int, pages_P: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values [P * block_size, G, D] of the given pages, in their order."""
        return (
            self.keys[layer].index_select(0, pages_P).flatten(0, 1),
            self.values[layer].index_select(0, pages_P).flatten(0, 1),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeGroup:
    """Sequences with few query tokens, padded to one shape."""

    rows_M: Tensor
    """Rows of the step's tokens that belong to the group."""
    padded_M: Tensor
    """Where each of them sits in the flattened [B, Q]."""
    rows_BQ: Tensor
    """The inverse; padding points at any row of the step."""
    pages_BP: Tensor
    mask_B1QT: Tensor
    """True where a query may look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillChunk:
    """One sequence with many query tokens."""

    start: int
    length: int
    context: int
    pages_P: Tensor
    mask_CT: Tensor | None
    """None when the chunk is the whole context: plain causal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPlan:
    """Where each new token is stored and what it looks at; valid for one step, all layers."""

    slots_N: Tensor
    decode: DecodeGroup | None
    prefills: tuple[PrefillChunk, ...]


def plan_attention(
    *,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    page_tables: Sequence[Sequence[int]],
    block_size: int,
    device: torch.device | str,
) -> AttentionPlan:
    """Return the plan for one step.

    Args:
        query_lens: new tokens of each sequence; their rows follow each other in the step's flat tokens.
        context_lens: tokens of each sequence after this step, the new ones included.
        page_tables: pages of each sequence, at least ceil(context / block_size); more are ignored.
        block_size: tokens a page.
        device: where the plan's tensors go.
    """
    slots: list[int] = []
    decoding: list[tuple[int, int, int, Sequence[int]]] = []
    prefills: list[PrefillChunk] = []
    for length, context, pages in zip(query_lens, context_lens, page_tables, strict=True):
        start = len(slots)
        assert 0 < length <= context <= len(pages) * block_size, "every new token needs a page"
        slots += [pages[t // block_size] * block_size + t % block_size for t in range(context - length, context)]
        pages = pages[: -(-context // block_size)]
        if length <= _LONGEST_DECODE:
            decoding.append((start, length, context, pages))
        else:
            prefills.append(_plan_prefill(start, length, context, pages, device))
    return AttentionPlan(
        slots_N=torch.tensor(slots, device=device),
        decode=_plan_decode(decoding, block_size, device) if decoding else None,
        prefills=tuple(prefills),
    )


def _plan_prefill(
    start: int, length: int, context: int, pages: Sequence[int], device: torch.device | str
) -> PrefillChunk:
    mask_CT = None
    if length < context:
        queries_C = torch.arange(context - length, context, device=device)
        mask_CT = torch.arange(context, device=device) <= queries_C.unsqueeze(1)
    pages_P = torch.tensor(pages, device=device)
    return PrefillChunk(start=start, length=length, context=context, pages_P=pages_P, mask_CT=mask_CT)


def _plan_decode(
    decoding: Sequence[tuple[int, int, int, Sequence[int]]], block_size: int, device: torch.device | str
) -> DecodeGroup:
    num_queries = max(length for _, length, _, _ in decoding)
    num_pages = max(len(pages) for *_, pages in decoding)
    rows, padded, rows_of, tables, last = [], [], [], [], []
    for b, (start, length, context, pages) in enumerate(decoding):
        rows += range(start, start + length)
        padded += range(b * num_queries, b * num_queries + length)
        rows_of.append([start + min(q, length - 1) for q in range(num_queries)])
        tables.append([*pages, *[pages[0]] * (num_pages - len(pages))])
        last.append([context - length + min(q, length - 1) for q in range(num_queries)])
    last_B1Q1 = torch.tensor(last, device=device)[:, None, :, None]
    return DecodeGroup(
        rows_M=torch.tensor(rows, device=device),
        padded_M=torch.tensor(padded, device=device),
        rows_BQ=torch.tensor(rows_of, device=device),
        pages_BP=torch.tensor(tables, device=device),
        mask_B1QT=torch.arange(num_pages * block_size, device=device) <= last_B1Q1,
    )


def attend(q_NAD: Tensor, k_NGD: Tensor, v_NGD: Tensor, kv: PagedKV, layer: int, plan: AttentionPlan) -> Tensor:
    """Store the new keys and values, then return the attention output [N, A, D] of the new tokens."""
    kv.write(layer, plan.slots_N, k_NGD, v_NGD)
    out_NAD = torch.empty_like(q_NAD)
    if plan.decode is not None:
        out_NAD.index_copy_(0, plan.decode.rows_M, _decode(q_NAD, kv, layer, plan.decode))
    for chunk in plan.prefills:
        rows = slice(chunk.start, chunk.start + chunk.length)
        out_NAD[rows] = _prefill(q_NAD[rows], kv, layer, chunk)
    return out_NAD


def _decode(q_NAD: Tensor, kv: PagedKV, layer: int, group: DecodeGroup) -> Tensor:
    """Return [M, A, D]."""
    (B, Q), (_, A, D) = group.rows_BQ.shape, q_NAD.shape
    k_TGD, v_TGD = kv.gather(layer, group.pages_BP.flatten())
    k_BGTD, v_BGTD = (t.view(B, -1, *t.shape[1:]).transpose(1, 2) for t in (k_TGD, v_TGD))
    q_BAQD = q_NAD[group.rows_BQ.flatten()].view(B, Q, A, D).transpose(1, 2)
    out_BAQD = F.scaled_dot_product_attention(q_BAQD, k_BGTD, v_BGTD, attn_mask=group.mask_B1QT, enable_gqa=True)
    return out_BAQD.transpose(1, 2).reshape(B * Q, A, D)[group.padded_M]


def _prefill(q_CAD: Tensor, kv: PagedKV, layer: int, chunk: PrefillChunk) -> Tensor:
    """Return [C, A, D]."""
    k_1GTD, v_1GTD = (t[: chunk.context].transpose(0, 1)[None] for t in kv.gather(layer, chunk.pages_P))
    q_1ACD = q_CAD.transpose(0, 1)[None]
    mask_CT = chunk.mask_CT
    out_1ACD = F.scaled_dot_product_attention(
        q_1ACD, k_1GTD, v_1GTD, attn_mask=mask_CT, is_causal=mask_CT is None, enable_gqa=True
    )
    return out_1ACD[0].transpose(0, 1)
