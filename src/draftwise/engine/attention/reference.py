"""Attention of each sequence's new tokens over its pages in plain torch: on a CPU, in float64, and as the contract.

Shape letters: N new tokens of the step, B decoding sequences, Q query tokens each (padded), X = B * Q with padding, C
tokens of a prefill chunk, T tokens of context (padded), A query heads, G key-value heads, Y = Q * A / G queries of a
key-value head, D head dimension, E = A * D.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from draftwise.engine.attention.plan import AttentionPlan, DecodeGroup, PrefillChunk
from draftwise.engine.memory.kv import PagedKV

__all__ = ["attend"]


def attend(q_NAD: Tensor, kv: PagedKV, layer: int, plan: AttentionPlan) -> Tensor:
    """Return the attention output [N, A * D] of the new tokens, whose keys and values are stored already."""
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
