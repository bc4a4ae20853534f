"""Paged keys and values, and causal attention of each sequence's new tokens over its pages.

Shape letters: N new tokens of the step, B decoding sequences, Q query tokens a sequence (padded), T tokens
of context (padded), P pages, C tokens of a prefill chunk, A query heads, G key-value heads, D head dimension.
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
class DecodeGroup:
    """Sequences with few query tokens, padded to one shape."""

    pages_BP: Tensor
    last_BQ: Tensor
    """Position of each query token: the last that it may look at."""
    rows_BQ: Tensor | None
    """Row of each query token in the step, padding repeats the sequence's last; None when the step's rows
    are the queries, in order and without padding."""
    rows_M: Tensor | None
    """Rows of the step that belong to the group, and where they sit in the flattened [B, Q]."""
    padded_M: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
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
    biases: dict[object, Tensor] = field(default_factory=dict)
    """What the first layer computed for the later ones: 0 where a query may look, -inf elsewhere."""


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
    lengths_S, contexts_S = np.array(query_lens), np.array(context_lens)
    assert ((lengths_S > 0) & (lengths_S <= contexts_S)).all(), "each sequence needs a new token"
    pages_S = -(-contexts_S // block_size)
    table_SP = np.zeros((len(pages_S), pages_S.max()), dtype=np.int64)
    for i, (pages, count) in enumerate(zip(page_tables, pages_S.tolist(), strict=True)):
        table_SP[i, :count] = pages[:count]
    ends_S = lengths_S.cumsum()
    sequence_N = np.repeat(np.arange(len(lengths_S)), lengths_S)
    positions_N = np.arange(ends_S[-1]) + (contexts_S - ends_S)[sequence_N]
    slots_N = table_SP[sequence_N, positions_N // block_size] * block_size + positions_N % block_size
    decoding_B = np.flatnonzero(lengths_S <= _LONGEST_DECODE)
    prefills = [
        PrefillChunk(
            start=int(ends_S[i] - lengths_S[i]),
            length=int(lengths_S[i]),
            context=int(contexts_S[i]),
            pages_1P=torch.from_numpy(table_SP[i : i + 1, : pages_S[i]]).to(device),
        )
        for i in np.flatnonzero(lengths_S > _LONGEST_DECODE)
    ]
    # Every sequence of a group is padded to its longest context: alike ones go together.
    sizes_B = np.frexp(pages_S[decoding_B])[1]
    groups = [decoding_B[sizes_B == size] for size in np.unique(sizes_B)]
    decodes = [
        _plan_decode(
            lengths_S[group_B],
            contexts_S[group_B],
            ends_S[group_B],
            table_SP[group_B, : pages_S[group_B].max()],
            device=device,
            whole_step=len(group_B) == len(lengths_S),
        )
        for group_B in groups
    ]
    return AttentionPlan(slots_N=torch.from_numpy(slots_N).to(device), decodes=tuple(decodes), prefills=tuple(prefills))


def _plan_decode(
    lengths_B: np.ndarray,
    contexts_B: np.ndarray,
    ends_B: np.ndarray,
    tables_BP: np.ndarray,
    *,
    device: torch.device | str,
    whole_step: bool,
) -> DecodeGroup:
    """Return the group of the sequences whose rows end at `ends_B`; `whole_step` says that there are no others."""
    num_queries = int(lengths_B.max())
    offsets_BQ = np.minimum(np.arange(num_queries), lengths_B[:, None] - 1) - lengths_B[:, None]
    rows_BQ = ends_B[:, None] + offsets_BQ
    real_BQ = np.arange(num_queries) < lengths_B[:, None]
    in_order = whole_step and real_BQ.all()

    def to_device(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device)

    return DecodeGroup(
        pages_BP=to_device(tables_BP),
        last_BQ=to_device(contexts_B[:, None] + offsets_BQ),
        rows_BQ=None if in_order else to_device(rows_BQ),
        rows_M=None if in_order else to_device(rows_BQ[real_BQ]),
        padded_M=None if in_order else to_device(np.flatnonzero(real_BQ)),
    )


def attend(q_NAD: Tensor, kv: PagedKV, layer: int, plan: AttentionPlan) -> Tensor:
    """Return the attention output [N, A * D] of the new tokens, whose keys and values are stored already."""
    out_NE = q_NAD.new_empty(q_NAD.shape[0], q_NAD.shape[1] * q_NAD.shape[2])
    for i, group in enumerate(plan.decodes):
        out_ME = _decode(q_NAD, kv, layer, plan, i)
        if group.rows_M is None:
            return out_ME
        out_NE.index_copy_(0, group.rows_M, out_ME)
    for chunk in plan.prefills:
        rows = slice(chunk.start, chunk.start + chunk.length)
        out_NE[rows] = _prefill(q_NAD[rows], kv, layer, plan, chunk)
    return out_NE


def _decode(q_NAD: Tensor, kv: PagedKV, layer: int, plan: AttentionPlan, index: int) -> Tensor:
    """Return [M, A * D]. Query heads that share keys are folded into the queries: one product serves them all."""
    group = plan.decodes[index]
    B, Q = group.last_BQ.shape
    A, D = q_NAD.shape[1:]
    k_BGTD, v_BGTD = kv.gather(layer, group.pages_BP)
    G = k_BGTD.shape[1]
    if group.rows_BQ is not None:
        q_NAD = q_NAD.index_select(0, group.rows_BQ.flatten())
    q_BGXD = q_NAD.reshape(B, Q, G, A // G, D).transpose(1, 2).reshape(B, G, Q * A // G, D)
    bias_B1XT = plan.biases.get(("decode", index))
    if bias_B1XT is None:
        last_BX = group.last_BQ.repeat_interleave(A // G, dim=1)
        bias_B1XT = plan.biases["decode", index] = _bias(last_BX, k_BGTD.shape[2], q_NAD.dtype).unsqueeze(1)
    out_BGXD = F.scaled_dot_product_attention(q_BGXD, k_BGTD, v_BGTD, attn_mask=bias_B1XT)
    out_XE = out_BGXD.view(B, G, Q, A // G, D).transpose(1, 2).reshape(B * Q, A * D)
    return out_XE if group.padded_M is None else out_XE.index_select(0, group.padded_M)


def _prefill(q_CAD: Tensor, kv: PagedKV, layer: int, plan: AttentionPlan, chunk: PrefillChunk) -> Tensor:
    """Return [C, A * D]."""
    k_1GTD, v_1GTD = (t[:, :, : chunk.context] for t in kv.gather(layer, chunk.pages_1P))
    bias_CT = None
    if chunk.length < chunk.context:
        bias_CT = plan.biases.get(("prefill", chunk.start))
        if bias_CT is None:
            last_C = torch.arange(chunk.context - chunk.length, chunk.context, device=q_CAD.device)
            bias_CT = plan.biases["prefill", chunk.start] = _bias(last_C, chunk.context, q_CAD.dtype)
    q_1ACD = q_CAD.transpose(0, 1).unsqueeze(0)
    out_1ACD = F.scaled_dot_product_attention(
        q_1ACD, k_1GTD, v_1GTD, attn_mask=bias_CT, is_causal=bias_CT is None, enable_gqa=True
    )
    return out_1ACD[0].transpose(0, 1).flatten(1)


def _bias(last: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """Return [*last.shape, length]: 0 up to and with position `last`, -inf after it."""
    hidden = torch.arange(length, device=last.device) > last.unsqueeze(-1)
    return torch.zeros(hidden.shape, dtype=dtype, device=last.device).masked_fill_(hidden, float("-inf"))
