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
    return reference.attend(q_NAD, kv, layer, plan)
