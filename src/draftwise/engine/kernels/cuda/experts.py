"""A mixture of experts without a look at the device: who is chosen, which tokens go to whom, and the products.

Pairs of a token and a chosen expert are grouped into blocks of one expert each, as many rows as suit the batch. A
program multiplies some rows of an expert's weights with one block, so that few tokens cost the reading of the chosen
experts and nothing else. How many blocks there are is known on the device alone: programs beyond the last one end at
once, and steps can be captured. With many tokens an expert the products are the library's.

Shape letters: N tokens, H hidden size, E experts, K experts a token, I inner size, P = N * K pairs, O outputs.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from draftwise.engine.kernels.cuda.kernel_launch import Kernel, interpreted, launch_next, pdl, wait
from draftwise.engine.kernels.cuda.layer import silu_mul
from draftwise.engine.kernels.cuda.matmul import find_device
from draftwise.engine.kernels.cuda.matmul_code import unfold, weight_pointers, widen

_MOST_PAIRS = 8192
"""Pairs that are grouped by one program an expert; more of them are taken in turns."""
_MANY_ROWS = 64
"""Rows an expert, on average, from which multiplying takes longer than reading its weights."""
_OUTPUTS = 64
"""Rows of weights in a tile: what the matrix instruction takes."""
_MOST_STAGES = 6

Blocks = tuple[Tensor, Tensor]
"""int32: the pairs of each block [blocks, rows], P for none, and the expert of each block, -1 behind the last one."""


def route(logits_NE: Tensor, num_chosen: int, *, normalize: bool) -> tuple[Tensor, Tensor]:
    """Return the weights, float32, and the int32 numbers of the chosen experts, [N, K]; see `Kernels.route`."""
    num_rows, num_experts = logits_NE.shape
    weights_NK = torch.empty(num_rows, num_chosen, dtype=torch.float32, device=logits_NE.device)
    chosen_NK = torch.empty(num_rows, num_chosen, dtype=torch.int32, device=logits_NE.device)
    block = triton.next_power_of_2(num_experts)
    _choose(
        (num_rows, 1),
        logits_NE,
        weights_NK,
        chosen_NK,
        logits_NE.stride(0),
        E=num_experts,
        K=num_chosen,
        NORMALIZE=normalize,
        BLOCK=block,
        BLOCK_K=triton.next_power_of_2(num_chosen),
        num_warps=1 if block <= 256 else 4,
    )
    return weights_NK, chosen_NK


@Kernel
def _choose(
    logits,
    weights,
    chosen,
    logits_stride,
    E: tl.constexpr,
    K: tl.constexpr,
    NORMALIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    expert, place = tl.arange(0, BLOCK), tl.arange(0, BLOCK_K)
    launch_next(PDL)
    wait(PDL)
    logit = tl.load(logits + row * logits_stride + expert, mask=expert < E, other=float("-inf")).to(tl.float32)
    power = tl.exp(logit - tl.max(logit, 0))
    left = power / tl.sum(power, 0)
    best_K = tl.zeros([BLOCK_K], tl.float32)
    index_K = tl.zeros([BLOCK_K], tl.int32)
    for i in tl.static_range(K):
        value, index = tl.max(left, 0), tl.minimum(tl.argmax(left, 0), E - 1)
        best_K = tl.where(place == i, value, best_K)
        index_K = tl.where(place == i, index, index_K)
        left = tl.where(expert == index, -1.0, left)
    if NORMALIZE:
        best_K /= tl.sum(best_K, 0)
    tl.store(weights + row * K + place, best_K, mask=place < K)
    tl.store(chosen + row * K + place, index_K, mask=place < K)


def group(chosen_NK: Tensor, num_experts: int, rows: int) -> Blocks:
    """Return the pairs in blocks of this many rows, the experts in ascending order and their pairs as they come."""
    num_pairs = chosen_NK.numel()
    most = min(num_pairs, num_experts + num_pairs // rows)
    if len(chosen_NK) == 1:  # nobody shares an expert
        return _one_each(num_pairs, rows, chosen_NK.device), chosen_NK.flatten()
    pairs_BR = chosen_NK.new_empty(most, rows)
    experts_B = chosen_NK.new_empty(most)
    _group(
        (num_experts, 1),
        chosen_NK,
        pairs_BR,
        experts_B,
        num_pairs,
        most,
        E=num_experts,
        BLOCK_E=triton.next_power_of_2(num_experts),
        BLOCK_P=triton.next_power_of_2(num_pairs),
        BLOCK_B=triton.next_power_of_2(most),
        ROWS=rows,
        num_warps=4 if num_pairs <= 1024 else 8,
    )
    return pairs_BR, experts_B


@functools.cache
def _one_each(num_pairs: int, rows: int, device: torch.device) -> Tensor:
    pairs_BR = torch.full((num_pairs, rows), num_pairs, dtype=torch.int32)
    pairs_BR[:, 0] = torch.arange(num_pairs)
    return pairs_BR.to(device)


@Kernel.of_sizes("num_pairs", "most")
def _group(
    chosen,
    pairs,
    experts,
    num_pairs,
    most,
    E: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_B: tl.constexpr,
    ROWS: tl.constexpr,
    PDL: tl.constexpr,
):
    own = tl.program_id(0)
    pair, expert, block = tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_E), tl.arange(0, BLOCK_B)
    launch_next(PDL)
    wait(PDL)
    choice = tl.load(chosen + pair, mask=pair < num_pairs, other=0)
    counts = tl.histogram(choice, BLOCK_E, mask=pair < num_pairs)
    blocks = (counts + ROWS - 1) // ROWS
    first = tl.sum(tl.where(expert < own, blocks, 0), 0)
    count = tl.sum(tl.where(expert == own, counts, 0), 0)
    end = first + tl.sum(tl.where(expert == own, blocks, 0), 0)
    mine = (choice == own) & (pair < num_pairs)
    rank = tl.cumsum(mine.to(tl.int32), 0) - 1
    tl.store(pairs + first * ROWS + rank, pair, mask=mine)
    empty = first * ROWS + count + tl.arange(0, ROWS)
    tl.store(pairs + empty, num_pairs, mask=empty < end * ROWS)
    tl.store(experts + block, own, mask=(block >= first) & (block < end))
    if own == E - 1:
        tl.store(experts + block, -1, mask=(block >= end) & (block < most))


def multiply(
    x_XK: Tensor, weight_EOK: Tensor, blocks: Blocks, num_pairs: int, *, gated: bool, scale_EO: Tensor | None = None
) -> Tensor:
    """Return each pair's product with its expert's weights, [P, O], in the order of the pairs.

    Args:
        x_XK: a row for each pair, or for each token.
        weight_EOK: the same type, or float8_e4m3fn with a scale; gate above up where gated.
        blocks: from `group`.
        gated: whether the result is silu(gate) * up, each rounded to its type.
        scale_EO: float32; None: 1.
    """
    pairs_BR, experts_B = blocks
    (_, num_weights, num_in), rows = weight_EOK.shape, pairs_BR.shape[1]
    num_out = num_weights // 2 if gated else num_weights
    device = find_device(weight_EOK.device)
    assert device is not None, "can_run says no"
    columns, fold, stages = _cut(
        rows, num_in, device.shared_bytes, gated=gated, x_bytes=x_XK.itemsize, weight_bytes=weight_EOK.itemsize
    )
    outputs = _OUTPUTS // fold
    y_PO = x_XK.new_empty(num_pairs, num_out)
    _multiply[(len(experts_B), triton.cdiv(num_out, outputs))](
        x_XK,
        x_XK.stride(0),
        weight_EOK,
        scale_EO,
        pairs_BR,
        experts_B,
        y_PO,
        num_pairs,
        num_out,
        IN=num_in,
        SHARED=num_pairs // len(x_XK),
        ROWS=rows,
        BLOCK_O=outputs,
        BLOCK_K=columns,
        FOLD=fold,
        GATED=gated,
        PDL=pdl(),
        NATIVE=device.hopper and not interpreted(),
        num_stages=stages,
        num_warps=4,
        launch_pdl=pdl(),
    )
    return y_PO


@functools.cache
def _cut(
    rows: int, num_in: int, shared_bytes: int, *, gated: bool, x_bytes: int, weight_bytes: int
) -> tuple[int, int, int]:
    """Return the columns of a tile, the fold and the stages, with two programs on a multiprocessor.

    A gated pair with few rows is folded (see `matmul_code`): a tile then makes half as many outputs, so that there
    are programs enough for all multiprocessors when one token reads its few experts.
    """
    for fold in (2, 1) if gated and rows <= 16 else (1,):
        for columns in (128, 64, 32, 16):
            tile = columns * (weight_bytes * _OUTPUTS * (2 if gated else 1) + x_bytes * fold * rows)
            stages = min(_MOST_STAGES, (shared_bytes // 2 - 1536) // tile)
            if num_in % (fold * columns) == 0 and stages >= 3:
                return columns, fold, stages
    return 16, 1, 2


@triton.jit(do_not_specialize=["num_pairs"])
def _multiply(
    x_ptr,
    x_stride,
    w_ptr,
    scale_ptr,
    pairs_ptr,
    experts_ptr,
    y_ptr,
    num_pairs,
    num_out,
    IN: tl.constexpr,
    SHARED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_K: tl.constexpr,
    FOLD: tl.constexpr,
    GATED: tl.constexpr,
    PDL: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """Compute one block's product with BLOCK_O outputs of its expert; SHARED pairs read one row of x.

    The order of sums and the letters are those of `matmul_code`: it depends on the fold alone.
    """
    launch_next(PDL)
    wait(PDL)
    block, first = tl.program_id(0), tl.program_id(1) * BLOCK_O
    expert = tl.load(experts_ptr + block)
    if expert < 0:
        return
    PART: tl.constexpr = IN // FOLD
    PRECISION: tl.constexpr = "ieee" if x_ptr.dtype.element_ty == tl.float32 else "tf32"
    TILES: tl.constexpr = 2 if GATED else 1
    # From here on the expert's weights are a matrix of their own, its outputs at row `base` of all.
    base = expert.to(tl.int64) * num_out * TILES
    start, last = base + first, base + num_out - 1
    cols_N = tl.arange(0, FOLD * ROWS)
    pair_N = tl.load(pairs_ptr + block * ROWS + cols_N // FOLD)
    real_N = pair_N < num_pairs
    x_ptrs_N = x_ptr + (pair_N // SHARED).to(tl.int64) * x_stride + cols_N % FOLD * PART
    x_ptrs_NK = x_ptrs_N[:, None] + tl.arange(0, BLOCK_K)[None, :]
    w_ptrs_MK = weight_pointers(w_ptr, start, last, BLOCK_O, FOLD, IN, PART, BLOCK_K)
    acc_MN = tl.zeros((BLOCK_O * FOLD, FOLD * ROWS), tl.float32)
    if GATED:
        up_ptrs_MK = weight_pointers(w_ptr, start + num_out, last + num_out, BLOCK_O, FOLD, IN, PART, BLOCK_K)
        up_MN = tl.zeros((BLOCK_O * FOLD, FOLD * ROWS), tl.float32)
    for column in range(0, PART, BLOCK_K):
        w_MK = tl.load(w_ptrs_MK + column)
        x_NK = tl.load(x_ptrs_NK + column, mask=real_N[:, None], other=0.0)
        acc_MN = tl.dot(widen(w_MK, x_NK.dtype, NATIVE), tl.trans(x_NK), acc_MN, input_precision=PRECISION)
        if GATED:
            u_MK = tl.load(up_ptrs_MK + column)
            up_MN = tl.dot(widen(u_MK, x_NK.dtype, NATIVE), tl.trans(x_NK), up_MN, input_precision=PRECISION)

    dtype = y_ptr.dtype.element_ty
    out_O = first + tl.arange(0, BLOCK_O)
    y_OR = unfold(acc_MN, BLOCK_O, FOLD, ROWS)
    if scale_ptr is not None:
        y_OR *= tl.load(scale_ptr + base + out_O, mask=out_O < num_out)[:, None]
    if GATED:
        up_OR = unfold(up_MN, BLOCK_O, FOLD, ROWS)
        if scale_ptr is not None:
            up_OR *= tl.load(scale_ptr + base + num_out + out_O, mask=out_O < num_out)[:, None]
        y_OR = y_OR.to(dtype).to(tl.float32)
        y_OR = (y_OR / (1.0 + tl.exp(-y_OR))).to(dtype).to(tl.float32) * up_OR.to(dtype).to(tl.float32)
    pair_R = tl.load(pairs_ptr + block * ROWS + tl.arange(0, ROWS))
    mask_OR = (pair_R[None, :] < num_pairs) & (out_O[:, None] < num_out)
    tl.store(y_ptr + pair_R.to(tl.int64)[None, :] * num_out + out_O[:, None], y_OR.to(dtype), mask=mask_OR)


def combine(y_PH: Tensor, weights_NK: Tensor, places_P: Tensor | None = None) -> Tensor:
    """Return the weighted sums of each token's pairs, [N, H], added up in float32; pair p is at row places_P[p]."""
    (num_rows, num_chosen), width = weights_NK.shape, y_PH.shape[1]
    out_NH = y_PH.new_empty(num_rows, width)
    block = min(1024, triton.next_power_of_2(width))
    _combine(
        (num_rows, triton.cdiv(width, block)),
        y_PH,
        weights_NK,
        places_P,
        out_NH,
        H=width,
        K=num_chosen,
        BLOCK=block,
        num_warps=4,
    )
    return out_NH


@Kernel
def _combine(y, weights, places, out, H: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    launch_next(PDL)
    wait(PDL)
    total = tl.zeros([BLOCK], tl.float32)
    for i in tl.static_range(K):
        place = row * K + i
        source = place if places is None else tl.load(places + place)
        value = tl.load(y + source * H + columns, mask=columns < H, other=0.0).to(tl.float32)
        total += value * tl.load(weights + place)
    tl.store(out + row * H + columns, total.to(out.dtype.element_ty), mask=columns < H)


def can_run(down_EHI: Tensor) -> bool:
    """Say whether these kernels take weights of such a type and size."""
    hidden, inner = down_EHI.shape[1:]
    return (
        down_EHI.dtype != torch.float64 and find_device(down_EHI.device) is not None and hidden % 16 == inner % 16 == 0
    )


def run_experts(
    x_NH: Tensor,
    weights_NK: Tensor,
    chosen_NK: Tensor,
    gate_up_E2IH: Tensor,
    down_EHI: Tensor,
    scales: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Return the weighted sum of what each token's experts make of it, [N, H].

    Args:
        x_NH: contiguous rows.
        weights_NK: float32, from `route`.
        chosen_NK: int32, from `route`.
        gate_up_E2IH: gate above up, in the type of x or in float8_e4m3fn.
        down_EHI: the same type.
        scales: float32 [E, 2I] and [E, H] of one-byte weights.
    """
    num_experts, num_chosen = len(down_EHI), chosen_NK.shape[1]
    if chosen_NK.numel() > _MANY_ROWS * num_experts and _has_library(x_NH, gate_up_E2IH):
        return _run_library(x_NH, weights_NK, chosen_NK, gate_up_E2IH, down_EHI)
    most_rows = max(1, _MOST_PAIRS // num_chosen)
    if len(x_NH) > most_rows:
        parts = zip(*(each.split(most_rows) for each in (x_NH, weights_NK, chosen_NK)), strict=True)
        return torch.cat([run_experts(x, some, those, gate_up_E2IH, down_EHI, scales) for x, some, those in parts])
    num_pairs = chosen_NK.numel()
    blocks = group(chosen_NK, num_experts, _choose_rows(num_pairs / num_experts))
    first, second = scales or (None, None)
    inner_PI = multiply(x_NH, gate_up_E2IH, blocks, num_pairs, gated=True, scale_EO=first)
    y_PH = multiply(inner_PI, down_EHI, blocks, num_pairs, gated=False, scale_EO=second)
    return combine(y_PH, weights_NK)


def _choose_rows(mean: float) -> int:
    """Return the rows of a block: few experts should need two blocks, which both read its weights."""
    return 16 if mean <= 8 else 32 if mean <= 24 else 64


def _has_library(x_NH: Tensor, weight_EOK: Tensor) -> bool:
    """Say whether torch multiplies groups without asking the device how large they are (Hopper and later)."""
    if x_NH.dtype != torch.bfloat16 or weight_EOK.dtype != torch.bfloat16 or not hasattr(F, "grouped_mm"):
        return False
    return not interpreted() and torch.cuda.get_device_capability(x_NH.device) >= (9, 0)


def _run_library(x_NH: Tensor, weights_NK: Tensor, chosen_NK: Tensor, gate_up_E2IH: Tensor, down_EHI: Tensor) -> Tensor:
    product: Any = F.grouped_mm
    experts_P, order_P = chosen_NK.flatten().sort(stable=True)
    numbers_E = torch.arange(len(down_EHI), dtype=experts_P.dtype, device=experts_P.device)
    ends_E = torch.searchsorted(experts_P, numbers_E, right=True, out_int32=True)
    both_P2I = product(x_NH[order_P // chosen_NK.shape[1]], gate_up_E2IH.transpose(1, 2), offs=ends_E)
    y_PH = product(silu_mul(both_P2I), down_EHI.transpose(1, 2), offs=ends_E)
    places_P = torch.empty_like(order_P)
    places_P[order_P] = torch.arange(len(order_P), device=order_P.device)
    return combine(y_PH, weights_NK, places_P)
