"""Computes a decoder layer's steps between its matrix products and attention, in Triton.

Each reads its inputs once and writes its results once, sums in float32 and takes a row of the pass by itself, so that
a row's result has the same bits in any batch. Before they wait for the kernel before them they read weights.

Shape letters: N rows of a pass, H hidden size, I intermediate size, V vocabulary, A query heads, G key-value heads,
S = A + 2G, D head dimension, T positions of a table.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftwise.engine.kernels.cuda.kernel_launch import Kernel, launch_next, wait

_LANES = 8
"""Values a thread takes at a time: 16 bytes of bfloat16."""
_FEW_ROWS = 512
"""Most rows whose residual stream is asked to stay in the L2 while a layer's weights go through it."""


def add(x_NH: Tensor, delta_NH: Tensor) -> Tensor:
    """Return x + delta; the rows of x may lie apart."""
    total_NH = x_NH.new_empty(x_NH.shape)
    _run_add_norm(x_NH, delta_NH, None, total_NH, None, tokens_N=None, eps=0.0)
    return total_NH


def add_norm(
    x_NH: Tensor,
    delta_NH: Tensor | None,
    weight_H: Tensor,
    total_NH: Tensor | None,
    eps: float,
    delta_weight_H: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return x + delta and its RMS norm; see `Kernels.add_norm`."""
    normed_NH = x_NH.new_empty(x_NH.shape)
    if total_NH is None and delta_NH is not None:
        total_NH = x_NH.new_empty(x_NH.shape)
    _run_add_norm(x_NH, delta_NH, weight_H, total_NH, normed_NH, tokens_N=None, eps=eps, delta_weight_H=delta_weight_H)
    return x_NH if total_NH is None else total_NH, normed_NH


def embed(
    tokens_N: Tensor, embedding_VH: Tensor, weight_H: Tensor, total_NH: Tensor | None, eps: float, factor: float
) -> tuple[Tensor, Tensor]:
    """Return the embeddings of the tokens times a factor and their RMS norm; see `Kernels.embed`."""
    normed_NH = embedding_VH.new_empty(len(tokens_N), embedding_VH.shape[1])
    total_NH = torch.empty_like(normed_NH) if total_NH is None else total_NH
    _run_add_norm(embedding_VH, None, weight_H, total_NH, normed_NH, tokens_N=tokens_N, eps=eps, factor=factor)
    return total_NH, normed_NH


def _run_add_norm(
    x_NH: Tensor,
    delta_NH: Tensor | None,
    weight_H: Tensor | None,
    total_NH: Tensor | None,
    normed_NH: Tensor | None,
    *,
    tokens_N: Tensor | None,
    eps: float,
    factor: float = 1.0,
    delta_weight_H: Tensor | None = None,
) -> None:
    """Launch `_add_norm`; what is None is not read or not written, and row n of x is row tokens_N[n] if there are."""
    width = x_NH.shape[1]
    block = triton.next_power_of_2(width)
    rows = len(x_NH if tokens_N is None else tokens_N)
    in_parts = delta_NH is not None and delta_NH.dim() == 3
    _add_norm(
        (rows, 1),
        x_NH,
        delta_NH,
        delta_weight_H,
        weight_H,
        total_NH,
        normed_NH,
        None if tokens_N is None else tokens_N.contiguous(),
        x_NH.stride(0),
        width if delta_NH is None else delta_NH.stride(-2),
        delta_NH.stride(0) if in_parts else 0,
        width if total_NH is None else total_NH.stride(0),
        eps,
        H=width,
        BLOCK=block,
        FACTOR=factor,
        PARTS=len(delta_NH) if in_parts else 1,
        KEEP="evict_last" if rows <= _FEW_ROWS else "",
        num_warps=_num_warps(block),
    )


@Kernel
def _add_norm(
    x,
    delta,
    delta_weight,
    weight,
    total,
    normed,
    tokens,
    x_stride,
    delta_stride,
    part_stride,
    total_stride,
    eps,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
    FACTOR: tl.constexpr,
    PARTS: tl.constexpr,
    KEEP: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < H
    launch_next(PDL)
    if weight is not None:
        scale = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    if delta_weight is not None:
        delta_scale = tl.load(delta_weight + columns, mask=inside, other=0.0).to(tl.float32)
    wait(PDL)
    source = row if tokens is None else tl.load(tokens + row)
    value = tl.load(x + source * x_stride + columns, mask=inside, other=0.0, eviction_policy=KEEP)
    if FACTOR != 1.0:
        value = (value.to(tl.float32) * FACTOR).to(value.dtype)
    if delta is not None:
        added = tl.load(delta + row * delta_stride + columns, mask=inside, other=0.0)
        for part in tl.static_range(1, PARTS):
            added += tl.load(delta + part * part_stride + row * delta_stride + columns, mask=inside, other=0.0)
        added = added.to(value.dtype)
        if delta_weight is not None:
            wide = added.to(tl.float32)
            factor = tl.rsqrt(tl.sum(wide * wide, axis=0) / H + eps)
            added = (wide * factor * delta_scale).to(added.dtype)
        value = (value.to(tl.float32) + added.to(tl.float32)).to(value.dtype)
    if total is not None:
        tl.store(total + row * total_stride + columns, value, mask=inside, eviction_policy=KEEP)
    if weight is not None:
        wide = value.to(tl.float32)
        factor = tl.rsqrt(tl.sum(wide * wide, axis=0) / H + eps)
        tl.store(normed + row * H + columns, (wide * factor * scale).to(normed.dtype.element_ty), mask=inside)


def embed_beside(
    tokens_N: Tensor,
    embedding_VH: Tensor,
    state_NH: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    *,
    state_first: bool,
    positions_N: Tensor | None,
    eps: float,
) -> Tensor:
    """Return embeddings and states, concatenated; see `Kernels.embed_beside`."""
    width = embedding_VH.shape[1]
    block = triton.next_power_of_2(width)
    out_NX = embedding_VH.new_empty(len(tokens_N), 2 * width)
    token_norm, state_norm = (None, None) if norms is None else norms
    _embed_beside(
        (len(tokens_N), 2),
        tokens_N.contiguous(),
        embedding_VH,
        state_NH,
        token_norm,
        state_norm,
        None if positions_N is None else positions_N.contiguous(),
        out_NX,
        state_NH.stride(0),
        eps,
        H=width,
        BLOCK=block,
        STATE_HALF=0 if state_first else 1,
        num_warps=_num_warps(block),
    )
    return out_NX


@Kernel
def _embed_beside(
    tokens,
    embedding,
    state,
    token_norm,
    state_norm,
    positions,
    out,
    state_stride,
    eps,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
    STATE_HALF: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    half = tl.program_id(1)
    is_state = half == STATE_HALF
    columns = tl.arange(0, BLOCK)
    inside = columns < H
    launch_next(PDL)
    if token_norm is not None:
        weight = state_norm if is_state else token_norm
        scale = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    wait(PDL)
    told = inside
    if is_state:
        source = state + row * state_stride
    else:
        source = embedding + tl.load(tokens + row) * H
        if positions is not None:
            told = inside & (tl.load(positions + row) != 0)
    value = tl.load(source + columns, mask=told, other=0.0)
    if token_norm is not None:
        wide = value.to(tl.float32)
        factor = tl.rsqrt(tl.sum(wide * wide, axis=0) / H + eps)
        value = (wide * factor * scale).to(value.dtype)
    tl.store(out + row * (2 * H) + half * H + columns, value, mask=inside)


def silu_mul(gate_up_N2I: Tensor, *, gelu: bool = False) -> Tensor:
    """Return silu(gate) * up, or gelu(gate) * up; see `Kernels.silu_mul` and `Kernels.gelu_mul`."""
    rows, width = len(gate_up_N2I), gate_up_N2I.shape[1] // 2
    out_NI = gate_up_N2I.new_empty(rows, width)
    block = min(1024, triton.next_power_of_2(width))
    _silu_mul(
        (rows, triton.cdiv(width, block)),
        gate_up_N2I,
        out_NI,
        gate_up_N2I.stride(0),
        I=width,
        BLOCK=block,
        GELU=gelu,
        num_warps=_num_warps(block),
    )
    return out_NI


@Kernel
def _silu_mul(
    gate_up,
    out,
    gate_up_stride,
    I: tl.constexpr,  # noqa: E741
    BLOCK: tl.constexpr,
    GELU: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < I
    launch_next(PDL)
    wait(PDL)
    source = gate_up + row * gate_up_stride + columns
    gate = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(source + I, mask=inside, other=0.0).to(tl.float32)
    # 0.5 (1 + tanh(z)) is sigmoid(2 z); 1.5957691 is 2 sqrt(2 / pi).
    slope = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate) if GELU else gate
    tl.store(out + row * I + columns, (gate * tl.sigmoid(slope) * up).to(out.dtype.element_ty), mask=inside)


def rotate_and_store(
    qkv_NSD: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    table_TD: Tensor,
    positions_N: Tensor,
    pages: Tensor,
    slots_N: Tensor,
    *,
    num_kv_heads: int,
    eps: float,
) -> Tensor:
    """Norm and rotate q and k, store k and v, and return q_NAD, which takes the place of q; see `Kernels`.

    Args:
        table_TD: float32, for each position its cosines and behind them its sines.
        positions_N: int64, row of the table for each row; clamped to it.
        pages: [num_pages, block_size, 2, G, D] of the layer.
        slots_N: int64, page * block_size + offset of each row.
    """
    rows, num_heads, size = qkv_NSD.shape
    num_q = num_heads - 2 * num_kv_heads
    block_half = triton.next_power_of_2(size // 2)
    heads = max(1, 64 * _LANES // block_half)
    q_norm, k_norm = (None, None) if norms is None else norms
    _rotate_and_store(
        (rows, triton.cdiv(num_heads, heads)),
        qkv_NSD,
        q_norm,
        k_norm,
        table_TD,
        positions_N.contiguous(),
        pages,
        slots_N.contiguous(),
        qkv_NSD.stride(0),
        len(table_TD) - 1,
        eps,
        A=num_q,
        S=num_heads,
        HALF=size // 2,
        HEADS=heads,
        BLOCK=block_half,
        LARGEST=torch.finfo(pages.dtype).max if pages.dtype.itemsize == 1 else None,
        num_warps=4,
    )
    return qkv_NSD[:, :num_q]


@Kernel
def _rotate_and_store(
    qkv,
    q_norm,
    k_norm,
    table,
    positions,
    pages,
    slots,
    qkv_stride,
    last_position,
    eps,
    A: tl.constexpr,
    S: tl.constexpr,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    LARGEST: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    is_q, is_v, inside = heads < A, heads >= (A + S) // 2, (heads < S) & (columns < HALF)
    # Whole tiles, though all heads read the same: what is loaded in one layout needs no exchange between threads.
    tile = tl.zeros_like(heads) + columns
    launch_next(PDL)
    if q_norm is not None:
        left_scale = tl.where(is_q, _load_wide(q_norm + tile, inside), _load_wide(k_norm + tile, inside))
        right_scale = tl.where(is_q, _load_wide(q_norm + HALF + tile, inside), _load_wide(k_norm + HALF + tile, inside))
    wait(PDL)
    # What each layer reads again stays in the L2.
    position = tl.minimum(tl.maximum(tl.load(positions + row, eviction_policy="evict_last"), 0), last_position)
    slot = tl.load(slots + row, eviction_policy="evict_last")
    source = qkv + row * qkv_stride + heads * (2 * HALF) + columns
    left, right = _load_wide(source, inside), _load_wide(source + HALF, inside)
    turn = table + position * (2 * HALF) + tile
    cos = tl.where(is_v, 1.0, tl.load(turn, mask=inside, other=0.0, eviction_policy="evict_last"))
    sin = tl.where(is_v, 0.0, tl.load(turn + HALF, mask=inside, other=0.0, eviction_policy="evict_last"))
    if q_norm is not None:
        squares = tl.sum(left * left, axis=1, keep_dims=True) + tl.sum(right * right, axis=1, keep_dims=True)
        factor = tl.rsqrt(squares / (2 * HALF) + eps)
        left = tl.where(is_v, left, left * factor * left_scale)
        right = tl.where(is_v, right, right * factor * right_scale)
    turned_left = (left * cos - right * sin).to(qkv.dtype.element_ty)
    turned_right = (right * cos + left * sin).to(qkv.dtype.element_ty)
    tl.store(source, turned_left, mask=inside & is_q)
    tl.store(source + HALF, turned_right, mask=inside & is_q)
    place = pages + slot * ((S - A) * 2 * HALF) + (heads - A) * (2 * HALF) + columns
    tl.store(place, _stored(turned_left, pages.dtype.element_ty, LARGEST), mask=inside & (heads >= A))
    tl.store(place + HALF, _stored(turned_right, pages.dtype.element_ty, LARGEST), mask=inside & (heads >= A))


@triton.jit
def _load_wide(pointers, mask):
    return tl.load(pointers, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _stored(value, dtype: tl.constexpr, LARGEST: tl.constexpr):
    """Return a value as it is stored: one-byte floats saturate."""
    if LARGEST is not None:
        value = tl.minimum(tl.maximum(value.to(tl.float32), -LARGEST), LARGEST)
    return value.to(dtype)


def _num_warps(block: int) -> int:
    """Return how many warps take a block at `_LANES` values a thread."""
    return max(1, min(16, block // (32 * _LANES)))
