"""Triton code of the matrix products for few rows, which read every weight once.

The weights are the tall side of the matrix instruction and the activations its narrow one. The columns of a weight
row are cut into FOLD parts, which are summed by themselves, as if they were rows of their own, and then in pairs:
((p0 + p1) + (p2 + p3)). So few rows of weights make a tall tile, and with the same FOLD an output has the same bits
for any number of rows, whatever the sizes of the tiles are.

Shape letters: R rows of activations, padded to ROWS; O outputs of a program; F folded parts; M = O * F rows in a tile
of weights; N = F * ROWS columns of its product; K columns in a tile of weights.
"""

from __future__ import annotations

import triton
import triton.language as tl

from draftwise.engine.kernels.cuda.kernel_launch import launch_next, wait


@triton.jit
def _prefetch(
    w_ptr,
    first,
    last,
    BLOCK_O: tl.constexpr,
    FOLD: tl.constexpr,
    IN: tl.constexpr,
    PART: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Ask for the first COLUMNS of each of the M rows, all PART at most, to be brought into the L2."""
    CHUNKS: tl.constexpr = 128 // (BLOCK_O * FOLD) if BLOCK_O * FOLD < 128 else 1  # each of 128 threads asks for one
    STEP: tl.constexpr = min(COLUMNS, PART) // CHUNKS
    BYTES: tl.constexpr = STEP * w_ptr.dtype.element_ty.primitive_bitwidth // 8
    row_C = tl.arange(0, BLOCK_O * FOLD * CHUNKS) // CHUNKS
    start_C = tl.minimum(first + row_C // FOLD, last).to(tl.int64) * IN + row_C % FOLD * PART
    chunk_C = tl.arange(0, BLOCK_O * FOLD * CHUNKS) % CHUNKS
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0;",
        "=r,l,n",
        [w_ptr + start_C + chunk_C * STEP, BYTES],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def weight_pointers(
    w_ptr,
    first,
    last,
    BLOCK_O: tl.constexpr,
    FOLD: tl.constexpr,
    IN: tl.constexpr,
    PART: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Return pointers_MK of the first tile of outputs first, first + 1, ...; rows beyond the last repeat it."""
    rows_M = tl.arange(0, BLOCK_O * FOLD)
    output_M = tl.minimum(first + rows_M // FOLD, last).to(tl.int64)
    start_M = output_M * IN + rows_M % FOLD * PART
    return w_ptr + start_M[:, None] + tl.arange(0, BLOCK_K)[None, :]


@triton.jit
def _weights(w_ptrs_MK, w_desc, row, column):
    """Return the tile of weights at (row, column) of the descriptor's matrix, or at the pointers."""
    if w_desc is not None:
        return w_desc.load([row, column])
    return tl.load(w_ptrs_MK)


@triton.jit
def _activations(x_ptrs_NK, real_N, x_desc, column):
    """Return the tile of activations at a column of the descriptor's matrix, or at the pointers; padding is 0."""
    if x_desc is not None:
        return x_desc.load([0, column])
    return tl.load(x_ptrs_NK, mask=real_N[:, None], other=0.0)


@triton.jit
def widen(w_MK, dtype: tl.constexpr, NATIVE: tl.constexpr):
    """Return the weights in the activations' type.

    Triton turns float8_e4m3 into bfloat16 one at a time, slower than they come from memory. Here two at a time:
    sign, exponent and fraction go where bfloat16 has them, and 2^120 makes up for its larger exponent bias.
    """
    if w_MK.dtype == tl.float8e4nv and dtype == tl.bfloat16 and NATIVE:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 both, value, scale;
            mov.b32 scale, 0x7b807b80;
            prmt.b32 both, $1, 0, 0x1404;
            shr.b32 value, both, 4;
            and.b32 value, value, 0x07f007f0;
            lop3.b32 value, both, 0x80008000, value, 0xea;
            mul.bf16x2 $0, value, scale;
            }""",
            "=r,r",
            [w_MK],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=2,
        )
    return w_MK.to(dtype)


@triton.jit
def unfold(acc_MN, BLOCK_O: tl.constexpr, FOLD: tl.constexpr, ROWS: tl.constexpr):
    """Return product_OR: part f of a weight row counts only with part f of the activations.

    Sums are over two at a time, so that their order is the same in every layout.
    """
    M: tl.constexpr = BLOCK_O * FOLD
    if FOLD > 1:
        same_MN = tl.arange(0, M)[:, None] % FOLD == tl.arange(0, FOLD * ROWS)[None, :] % FOLD
        acc_MN = tl.sum(tl.reshape(tl.where(same_MN, acc_MN, 0.0), (M, ROWS, FOLD)), axis=2)
    if FOLD >= 8:
        acc_MN = tl.sum(tl.reshape(acc_MN, (M // 2, 2, ROWS)), axis=1)
    if FOLD >= 4:
        acc_MN = tl.sum(tl.reshape(acc_MN, (BLOCK_O * 2, 2, ROWS)), axis=1)
    if FOLD >= 2:
        acc_MN = tl.sum(tl.reshape(acc_MN, (BLOCK_O, 2, ROWS)), axis=1)
    return acc_MN


@triton.jit(do_not_specialize=["num_rows"])
def matmul_kernel(
    x_ptr,
    x_stride,
    x_desc,
    w_ptr,
    w_desc,
    scale_ptr,
    bias_ptr,
    y_ptr,
    num_rows,
    num_out,
    IN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_K: tl.constexpr,
    FOLD: tl.constexpr,
    PREFETCH: tl.constexpr,
    PDL: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """Compute y = x @ w.T * scale + bias for O outputs.

    Args:
        x_ptr: [num_rows, IN], rows x_stride apart.
        x_desc: the activations as [num_rows * FOLD, IN / FOLD], or None.
        w_ptr: [num_out, IN].
        w_desc: the weights as [num_out * FOLD, IN / FOLD], or None.
        scale_ptr: float32 [num_out] or None.
        bias_ptr: [num_out] or None.
        y_ptr: [num_rows, num_out].
        num_rows: up to ROWS.
        num_out: outputs.
        IN, ROWS, BLOCK_O, BLOCK_K, FOLD: sizes; BLOCK_K divides IN / FOLD.
        PREFETCH: columns of each row of weights to ask for before the activations are there.
        PDL: whether the launch is a dependent one.
        NATIVE: whether this is a GPU of compute capability 9.
    """
    launch_next(PDL)
    PART: tl.constexpr = IN // FOLD
    first, last = tl.program_id(0) * BLOCK_O, num_out - 1
    if PDL and PREFETCH > 0:
        _prefetch(w_ptr, first, last, BLOCK_O, FOLD, IN, PART, PREFETCH)
    wait(PDL)
    cols_N = tl.arange(0, FOLD * ROWS)
    row_N = cols_N // FOLD
    x_ptrs_NK = x_ptr + (row_N * x_stride + cols_N % FOLD * PART)[:, None] + tl.arange(0, BLOCK_K)[None, :]
    w_ptrs_MK = weight_pointers(w_ptr, first, last, BLOCK_O, FOLD, IN, PART, BLOCK_K)
    acc_MN = tl.zeros((BLOCK_O * FOLD, FOLD * ROWS), tl.float32)
    for column in range(0, PART, BLOCK_K):
        w_MK = _weights(w_ptrs_MK + column, w_desc, first * FOLD, column)
        x_NK = _activations(x_ptrs_NK + column, row_N < num_rows, x_desc, column)
        acc_MN = tl.dot(widen(w_MK, x_NK.dtype, NATIVE), tl.trans(x_NK), acc_MN)
    y_OR = unfold(acc_MN, BLOCK_O, FOLD, ROWS)

    out_O, row_R = first + tl.arange(0, BLOCK_O), tl.arange(0, ROWS)
    places_OR = row_R[None, :] * num_out + out_O[:, None]
    mask_OR = (row_R[None, :] < num_rows) & (out_O[:, None] < num_out)
    if scale_ptr is not None:
        y_OR *= tl.load(scale_ptr + out_O, mask=out_O < num_out)[:, None]
    if bias_ptr is not None:
        y_OR += tl.load(bias_ptr + out_O, mask=out_O < num_out).to(tl.float32)[:, None]
    tl.store(y_ptr + places_OR, y_OR.to(y_ptr.dtype.element_ty), mask=mask_OR)


@triton.jit(do_not_specialize=["num_rows"])
def gated_kernel(
    x_ptr,
    x_stride,
    x_desc,
    w_ptr,
    w_desc,
    scale_ptr,
    y_ptr,
    num_rows,
    num_out,
    IN: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_K: tl.constexpr,
    FOLD: tl.constexpr,
    PREFETCH: tl.constexpr,
    PDL: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """Compute silu(x @ gate.T) * (x @ up.T) for O outputs; gate is the first num_out rows of w, up the other ones.

    Both products and the activation are rounded to y's type, as where they are operations of their own. For the
    arguments see `matmul_kernel`; scale is [2 * num_out].
    """
    launch_next(PDL)
    PART: tl.constexpr = IN // FOLD
    first, last = tl.program_id(0) * BLOCK_O, num_out - 1
    if PDL and PREFETCH > 0:
        _prefetch(w_ptr, first, last, BLOCK_O, FOLD, IN, PART, PREFETCH)
        _prefetch(w_ptr, first + num_out, last + num_out, BLOCK_O, FOLD, IN, PART, PREFETCH)
    wait(PDL)
    cols_N = tl.arange(0, FOLD * ROWS)
    row_N = cols_N // FOLD
    x_ptrs_NK = x_ptr + (row_N * x_stride + cols_N % FOLD * PART)[:, None] + tl.arange(0, BLOCK_K)[None, :]
    gate_ptrs_MK = weight_pointers(w_ptr, first, last, BLOCK_O, FOLD, IN, PART, BLOCK_K)
    up_ptrs_MK = weight_pointers(w_ptr, first + num_out, last + num_out, BLOCK_O, FOLD, IN, PART, BLOCK_K)
    gate_MN = tl.zeros((BLOCK_O * FOLD, FOLD * ROWS), tl.float32)
    up_MN = tl.zeros((BLOCK_O * FOLD, FOLD * ROWS), tl.float32)
    for column in range(0, PART, BLOCK_K):
        g_MK = _weights(gate_ptrs_MK + column, w_desc, first * FOLD, column)
        u_MK = _weights(up_ptrs_MK + column, w_desc, (first + num_out) * FOLD, column)
        x_NK = _activations(x_ptrs_NK + column, row_N < num_rows, x_desc, column)
        gate_MN = tl.dot(widen(g_MK, x_NK.dtype, NATIVE), tl.trans(x_NK), gate_MN)
        up_MN = tl.dot(widen(u_MK, x_NK.dtype, NATIVE), tl.trans(x_NK), up_MN)
    gate_OR, up_OR = unfold(gate_MN, BLOCK_O, FOLD, ROWS), unfold(up_MN, BLOCK_O, FOLD, ROWS)

    out_O, row_R = first + tl.arange(0, BLOCK_O), tl.arange(0, ROWS)
    dtype = y_ptr.dtype.element_ty
    if scale_ptr is not None:
        gate_OR *= tl.load(scale_ptr + out_O, mask=out_O < num_out)[:, None]
        up_OR *= tl.load(scale_ptr + num_out + out_O, mask=out_O < num_out)[:, None]
    gate_OR = gate_OR.to(dtype).to(tl.float32)
    active_OR = (gate_OR / (1.0 + tl.exp(-gate_OR))).to(dtype).to(tl.float32)
    y_OR = active_OR * up_OR.to(dtype).to(tl.float32)
    mask_OR = (row_R[None, :] < num_rows) & (out_O[:, None] < num_out)
    tl.store(y_ptr + row_R[None, :] * num_out + out_O[:, None], y_OR.to(dtype), mask=mask_OR)
