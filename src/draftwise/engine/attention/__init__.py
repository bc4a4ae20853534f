"""Attends over pages: picks the fastest implementation for the rows of a pass.

Shape letters: N new tokens of the step, B decoding sequences, Q query tokens each (padded), X = B * Q with padding, C
tokens of a prefill chunk, T tokens of context (padded), A query heads, G key-value heads, Y = Q * A / G queries of a
key-value head, D head dimension, E = A * D.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from draftwise.engine.attention.pass_rows import AttentionPlan, DecodeGroup, PrefillChunk
from draftwise.engine.memory.kv import PagedKV

__all__ = ["attend", "attend_by_kernel", "attend_by_torch", "has_kernel", "has_row_kernel"]


def has_kernel(dtype: torch.dtype) -> bool:
    """Return whether a GPU has a kernel for this type. Otherwise, torch attends, with lengths known to the host."""
    return dtype != torch.float64


def has_row_kernel(q_NAD: Tensor, kv: PagedKV) -> bool:
    """Return whether a CPU has a kernel for such rows, whose bits depend only on the row itself."""
    fits = q_NAD.dtype in (torch.bfloat16, torch.float32) and not kv.is_narrow and q_NAD.shape[-1] % 16 == 0
    return q_NAD.device.type == "cpu" and fits and len(q_NAD) > 0


def attend(
    q_NAD: Tensor,
    kv: PagedKV,
    layer: int,
    plan: AttentionPlan,
    *,
    scale: float | None = None,
    window: int | None = None,
) -> Tensor:
    """Return the attention output [N, A * D] of the new tokens. Their keys and values must be stored already.

    Args:
        scale: factor on the scores. None: 1 / sqrt(D).
        window: number of positions, own included, that a token attends to. None: all. Causal passes only.
    """
    if window is not None and window >= plan.most_tokens:
        window = None
    if q_NAD.is_cuda and has_kernel(q_NAD.dtype):
        return attend_by_kernel(q_NAD, kv, layer, plan, scale=scale, window=window)
    if has_row_kernel(q_NAD, kv):
        from draftwise.engine.kernels.cpu import attend_rows  # numba compiles it, which a GPU never needs

        scale = q_NAD.shape[-1] ** -0.5 if scale is None else scale
        return attend_rows(q_NAD, kv, layer, plan.page_table_BP, plan.looks, scale=scale, window=window)
    return attend_by_torch(q_NAD, kv, layer, plan, scale=scale, window=window)


def attend_by_kernel(
    q_NAD: Tensor,
    kv: PagedKV,
    layer: int,
    plan: AttentionPlan,
    *,
    scale: float | None = None,
    window: int | None = None,
) -> Tensor:
    """Return the same as `attend`, by the GPU kernel."""
    from draftwise.engine.kernels.cuda.paged_attention import decode_attention  # Triton is there where CUDA is

    spans, pages, scale = plan.spans, kv.layers[layer], scale or q_NAD.shape[-1] ** -0.5
    if not spans.parts:
        of_seqs = plan.page_table_BP, spans.first_row_B, spans.starts_B, spans.lengths_B
        return decode_attention(
            q_NAD, pages, *of_seqs, width=spans.width, causal=plan.causal, scale=scale, window=window
        )
    out_NE = torch.empty(q_NAD.shape[0], q_NAD.shape[1] * q_NAD.shape[2], dtype=q_NAD.dtype, device=q_NAD.device)
    launches = []
    for part in spans.parts:
        seqs, rows = slice(part.first_seq, part.first_seq + part.num_seqs), slice(None)
        first_row_B = spans.first_row_B[seqs]
        if part.first_row is not None:
            rows = slice(part.first_row, part.first_row + part.num_seqs * part.width)
            first_row_B = first_row_B - part.first_row if part.first_row else first_row_B
        launches.append(
            partial(
                decode_attention,
                q_NAD[rows],
                pages,
                plan.page_table_BP[seqs],
                first_row_B,
                spans.starts_B[seqs],
                spans.lengths_B[seqs],
                width=part.width,
                causal=plan.causal,
                scale=scale,
                window=window,
                uniform=part.first_row is not None,
                out=out_NE[rows],
            )
        )
    _launch_together(launches, q_NAD.device)
    return out_NE


def _launch_together(launches: Sequence[Callable[[], Tensor]], device: torch.device) -> None:
    """Launch kernels that do not depend on each other. Where one leaves a GPU idle at its end, the next one starts."""
    if device.type != "cuda":
        for launch in launches:
            launch()
        return
    main, side = torch.cuda.current_stream(device), _side_stream(device)
    side.wait_stream(main)
    launches[0]()
    with torch.cuda.stream(side):
        for launch in launches[1:]:
            launch()
    main.wait_stream(side)


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def attend_by_torch(
    q_NAD: Tensor,
    kv: PagedKV,
    layer: int,
    plan: AttentionPlan,
    *,
    scale: float | None = None,
    window: int | None = None,
) -> Tensor:
    """Return the same as `attend`, in torch: on a CPU, in float64, and as the kernels' reference."""
    out_NE = q_NAD.new_empty(q_NAD.shape[0], q_NAD.shape[1] * q_NAD.shape[2])
    how = plan.biases.setdefault(window, {}), scale, window
    for group in plan.decodes:
        if group.padding is None:
            return _decode(q_NAD, kv, layer, group, *how)
        out_XE = _decode(q_NAD.index_select(0, group.padding.rows_X), kv, layer, group, *how)
        out_NE.index_copy_(0, group.padding.rows_M, out_XE.index_select(0, group.padding.padded_M))
    for chunk in plan.prefills:
        rows = slice(chunk.row, chunk.row + chunk.length)
        out_NE[rows] = _prefill(q_NAD[rows], kv, layer, chunk, *how)
    return out_NE


def _decode(
    q_XAD: Tensor,
    kv: PagedKV,
    layer: int,
    group: DecodeGroup,
    biases: dict[DecodeGroup | PrefillChunk, Tensor],
    scale: float | None,
    window: int | None,
) -> Tensor:
    """Return [X, A * D]. Query heads that share keys are folded into the queries: one product serves them all."""
    (num_seqs, num_queries), (_, heads, size) = group.last_BQ.shape, q_XAD.shape
    k_BGTD, v_BGTD = kv.gather(layer, group.pages_BP, q_XAD.dtype)
    groups, share = k_BGTD.shape[1], heads // k_BGTD.shape[1]
    q_BGYD = q_XAD.reshape(num_seqs, num_queries, groups, share, size).transpose(1, 2).flatten(2, 3)
    bias_B1YT = biases.get(group)
    if bias_B1YT is None:
        bias_BQT = _bias(group.last_BQ, k_BGTD.shape[2], q_XAD.dtype, window)
        bias_B1YT = biases[group] = bias_BQT.unsqueeze(2).expand(-1, -1, share, -1).flatten(1, 2).unsqueeze(1)
    out_BGYD = F.scaled_dot_product_attention(q_BGYD, k_BGTD, v_BGTD, attn_mask=bias_B1YT, scale=scale)
    out_BQGSD = out_BGYD.view(num_seqs, groups, num_queries, share, size).transpose(1, 2)
    return out_BQGSD.reshape(num_seqs * num_queries, heads * size)


def _prefill(
    q_CAD: Tensor,
    kv: PagedKV,
    layer: int,
    chunk: PrefillChunk,
    biases: dict[DecodeGroup | PrefillChunk, Tensor],
    scale: float | None,
    window: int | None,
) -> Tensor:
    """Return [C, A * D]."""
    k_1GTD, v_1GTD = (t[:, :, : chunk.context] for t in kv.gather(layer, chunk.pages_1P, q_CAD.dtype))
    bias_CT = None
    if chunk.length < chunk.context or (window is not None and window < chunk.context):
        bias_CT = biases.get(chunk)
        if bias_CT is None:
            last_C = torch.arange(chunk.context - chunk.length, chunk.context, device=q_CAD.device)
            bias_CT = biases[chunk] = _bias(last_C, chunk.context, q_CAD.dtype, window)
    out_1ACD = F.scaled_dot_product_attention(
        q_CAD.transpose(0, 1).unsqueeze(0),
        k_1GTD,
        v_1GTD,
        attn_mask=bias_CT,
        is_causal=bias_CT is None,
        scale=scale,
        enable_gqa=True,
    )
    return out_1ACD[0].transpose(0, 1).flatten(1)


def _bias(last: Tensor, length: int, dtype: torch.dtype, window: int | None) -> Tensor:
    """Return [*last.shape, length]: 0 for the `window` positions up to and with `last`, -inf elsewhere."""
    positions = torch.arange(length, device=last.device)
    hidden = positions > last.unsqueeze(-1)
    if window is not None:
        hidden |= positions <= last.unsqueeze(-1) - window
    return torch.zeros(hidden.shape, dtype=dtype, device=last.device).masked_fill_(hidden, float("-inf"))
