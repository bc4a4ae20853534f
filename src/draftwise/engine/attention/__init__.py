"""Attention over pages: which row looks at what, and the fastest code there is for it."""

from __future__ import annotations

import torch
from torch import Tensor

from draftwise.engine.attention import reference
from draftwise.engine.attention.plan import AttentionPlan
from draftwise.engine.memory.kv import PagedKV

__all__ = ["attend", "has_kernel"]


def has_kernel(dtype: torch.dtype) -> bool:
    """Say whether a GPU has a kernel for this type; without one, torch attends, by lengths that the host knows."""
    return dtype != torch.float64


def attend(q_NAD: Tensor, kv: PagedKV, layer: int, plan: AttentionPlan) -> Tensor:
    """Return the attention output [N, A * D] of the new tokens, whose keys and values are stored already."""
    if q_NAD.is_cuda and has_kernel(q_NAD.dtype):
        from draftwise.engine.kernels.cuda.attention import decode_attention  # Triton is there where CUDA is

        spans, first = plan.spans, 0
        out_NE = torch.empty(q_NAD.shape[0], q_NAD.shape[1] * q_NAD.shape[2], dtype=q_NAD.dtype, device=q_NAD.device)
        for num_seqs, width in spans.parts or ((spans.num_seqs, spans.width),):
            part = slice(first, first + num_seqs)
            first += num_seqs
            decode_attention(
                q_NAD,
                kv.layers[layer],
                plan.page_table_BP[part],
                spans.first_row_B[part],
                spans.starts_B[part],
                spans.lengths_B[part],
                width=width,
                causal=plan.causal,
                scale=q_NAD.shape[-1] ** -0.5,
                uniform=False if spans.parts else None,
                out=out_NE,
            )
        return out_NE
    return reference.attend(q_NAD, kv, layer, plan)
