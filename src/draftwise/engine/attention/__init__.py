"""Attention over pages: which row looks at what, and the fastest code there is for it."""

from __future__ import annotations

import torch
from torch import Tensor

from draftwise.engine.attention import reference
from draftwise.engine.attention.plan import AttentionPlan
from draftwise.engine.memory.kv import PagedKV

__all__ = ["attend", "attend_by_kernel", "has_kernel"]


def has_kernel(dtype: torch.dtype) -> bool:
    """Say whether a GPU has a kernel for this type; without one, torch attends, by lengths that the host knows."""
    return dtype != torch.float64


def attend(q_NAD: Tensor, kv: PagedKV, layer: int, plan: AttentionPlan) -> Tensor:
    """Return the attention output [N, A * D] of the new tokens, whose keys and values are stored already."""
    if q_NAD.is_cuda and has_kernel(q_NAD.dtype):
        return attend_by_kernel(q_NAD, kv, layer, plan)
    return reference.attend(q_NAD, kv, layer, plan)


def attend_by_kernel(q_NAD: Tensor, kv: PagedKV, layer: int, plan: AttentionPlan) -> Tensor:
    """Return what `attend` does."""
    from draftwise.engine.kernels.cuda.attention import decode_attention  # Triton is there where CUDA is

    spans, pages, scale = plan.spans, kv.layers[layer], q_NAD.shape[-1] ** -0.5
    if not spans.parts:
        of_seqs = plan.page_table_BP, spans.first_row_B, spans.starts_B, spans.lengths_B
        return decode_attention(q_NAD, pages, *of_seqs, width=spans.width, causal=plan.causal, scale=scale)
    out_NE = torch.empty(q_NAD.shape[0], q_NAD.shape[1] * q_NAD.shape[2], dtype=q_NAD.dtype, device=q_NAD.device)
    for part in spans.parts:
        seqs, rows = slice(part.first_seq, part.first_seq + part.num_seqs), slice(None)
        first_row_B = spans.first_row_B[seqs]
        if part.first_row is not None:
            rows = slice(part.first_row, part.first_row + part.num_seqs * part.width)
            first_row_B = first_row_B - part.first_row if part.first_row else first_row_B
        decode_attention(
            q_NAD[rows],
            pages,
            plan.page_table_BP[seqs],
            first_row_B,
            spans.starts_B[seqs],
            spans.lengths_B[seqs],
            width=part.width,
            causal=plan.causal,
            scale=scale,
            uniform=part.first_row is not None,
            out=out_NE[rows],
        )
    return out_NE
