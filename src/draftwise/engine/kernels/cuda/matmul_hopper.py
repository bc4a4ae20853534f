"""The products of `matmul_code` for Hopper: the copy engine fetches weights before the kernel in front has ended.

What Triton's own pipelines load, activations and weights, is loaded after `wait`. Here the first tiles of weights of
every program are on their way when it waits, so that the memory has work while one kernel drains and the next starts.
The order of sums is that of `matmul_code`, and so are the shape letters. One-byte weights are multiplied as they are,
with activations of the same type and a scale for each row: widened first, they took up to twice as long.
"""

from __future__ import annotations

import functools

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from draftwise.engine.kernels.cuda.kernel_launch import Kernel


def descriptor(matrix: Tensor, shape: list[int], stride: int, tile: list[int]) -> TensorDescriptor:
    """Return what the copy engine needs to know of a matrix whose rows are `stride` apart."""
    return TensorDescriptor(matrix, shape, [stride, 1], tile, shared_layout(8 * matrix.itemsize))


@functools.cache
def shared_layout(bits: int) -> gl.NVMMASharedLayout:
    """Return the layout in shared memory of rows whose elements have this many bits."""
    return gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=bits, rank=2)


@gluon.jit
def control(INSTRUCTION: gl.constexpr):
    """Issue an instruction that takes no operand and returns nothing."""
    gl.inline_asm_elementwise(INSTRUCTION + "; mov.b32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _fetch_weights(w_desc, row, next_half, column, bar, w_smem, slot, TILES: gl.constexpr, pred):
    for t in gl.static_range(TILES):
        tile = w_smem.index(slot * TILES + t)
        tma.async_copy_global_to_shared(w_desc, [row + t * next_half, column], bar, tile, pred=pred)


@gluon.jit
def _unfold(acc_MN, BLOCK_O: gl.constexpr, FOLD: gl.constexpr, ROWS: gl.constexpr):
    """Return product_OR: part f of a weight row counts only with part f of the activations."""
    M: gl.constexpr = BLOCK_O * FOLD
    if FOLD > 1:
        rows_M = gl.arange(0, M, layout=gl.SliceLayout(1, acc_MN.type.layout))
        cols_N = gl.arange(0, ROWS * FOLD, layout=gl.SliceLayout(0, acc_MN.type.layout))
        acc_MN = gl.where(rows_M[:, None] % FOLD == cols_N[None, :] % FOLD, acc_MN, 0.0)
        acc_MN = gl.sum(gl.reshape(acc_MN, (M, ROWS, FOLD)), axis=2)
    if FOLD >= 8:
        acc_MN = gl.sum(gl.reshape(acc_MN, (M // 2, 2, ROWS)), axis=1)
    if FOLD >= 4:
        acc_MN = gl.sum(gl.reshape(acc_MN, (BLOCK_O * 2, 2, ROWS)), axis=1)
    if FOLD >= 2:
        acc_MN = gl.sum(gl.reshape(acc_MN, (BLOCK_O, 2, ROWS)), axis=1)
    return acc_MN


@gluon.jit
def _scale(y_OR, x_scale_ptr, w_scale_ptr, row_R, out_O, above, num_rows, num_out):
    """Return products of quantized values by their scales; those of the weights begin `above` the pointer."""
    if w_scale_ptr is not None:
        w_scale_O = gl.load(w_scale_ptr + above + out_O, mask=out_O < num_out, other=0.0)
        y_OR *= gl.load(x_scale_ptr + row_R, mask=row_R < num_rows, other=0.0)[None, :] * w_scale_O[:, None]
    return y_OR


@Kernel.of_sizes("num_rows", jit=gluon.jit)
def hopper_kernel(
    x_desc,
    w_desc,
    x_scale_ptr,
    w_scale_ptr,
    bias_ptr,
    y_ptr,
    num_rows,
    num_out,
    IN: gl.constexpr,
    ROWS: gl.constexpr,
    BLOCK_O: gl.constexpr,
    BLOCK_K: gl.constexpr,
    FOLD: gl.constexpr,
    STAGES: gl.constexpr,
    GATED: gl.constexpr,
    PARTS: gl.constexpr,
    PDL: gl.constexpr,
):
    """Compute what `matmul_kernel` or, where GATED, `gated_kernel` does; scales are of one-byte values, or None.

    With PARTS, each of as many programs takes a part of the columns and writes its sums to a matrix of its own.
    """
    M: gl.constexpr = BLOCK_O * FOLD
    N: gl.constexpr = ROWS * FOLD
    STEPS: gl.constexpr = IN // FOLD // BLOCK_K
    TILES: gl.constexpr = 2 if GATED else 1
    BITS: gl.constexpr = w_desc.dtype.primitive_bitwidth
    BYTES: gl.constexpr = BITS // 8 * BLOCK_K * (TILES * M + N)
    MMA: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, N, 256 // BITS]
    )
    if PDL:
        control("griddepcontrol.launch_dependents")
    part, begin, count = 0, 0, STEPS
    if PARTS > 1:
        part = gl.program_id(0) % PARTS
        begin = part * STEPS // PARTS
        count = (part + 1) * STEPS // PARTS - begin
    first = gl.program_id(0) // PARTS * BLOCK_O
    row, next_half = first * FOLD, num_out * FOLD
    w_smem = gl.allocate_shared_memory(w_desc.dtype, [STAGES * TILES, M, BLOCK_K], w_desc.layout)
    x_smem = gl.allocate_shared_memory(x_desc.dtype, [STAGES, N, BLOCK_K], x_desc.layout)
    bars = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(bars.index(s), count=1)
    fence_async_shared()
    for s in gl.static_range(STAGES):
        mbarrier.expect(bars.index(s), BYTES)
        _fetch_weights(w_desc, row, next_half, (begin + s) * BLOCK_K, bars.index(s), w_smem, s, TILES, True)
    if PDL:
        control("griddepcontrol.wait")
    for s in gl.static_range(STAGES):
        tma.async_copy_global_to_shared(x_desc, [0, (begin + s) * BLOCK_K], bars.index(s), x_smem.index(s))

    acc_MN = gl.zeros([M, N], gl.float32, MMA)
    up_MN = gl.zeros([M, N], gl.float32, MMA)
    slot, phase = 0, 0
    for step in range(count):
        bar = bars.index(slot)
        mbarrier.wait(bar, phase)
        x_KN = x_smem.index(slot).permute((1, 0))
        acc_MN = warpgroup_mma(w_smem.index(slot * TILES), x_KN, acc_MN, is_async=True)
        if GATED:
            up_MN = warpgroup_mma(w_smem.index(slot * TILES + 1), x_KN, up_MN, is_async=True)
            acc_MN, up_MN = warpgroup_mma_wait(num_outstanding=0, deps=(acc_MN, up_MN))
        else:
            acc_MN = warpgroup_mma_wait(num_outstanding=0, deps=(acc_MN,))
        again = step + STAGES < count
        column = (begin + step + STAGES) * BLOCK_K
        mbarrier.expect(bar, BYTES, pred=again)
        _fetch_weights(w_desc, row, next_half, column, bar, w_smem, slot, TILES, again)
        tma.async_copy_global_to_shared(x_desc, [0, column], bar, x_smem.index(slot), pred=again)
        last = slot == STAGES - 1
        slot = gl.where(last, 0, slot + 1)
        phase = gl.where(last, phase ^ 1, phase)

    OUT: gl.constexpr = gl.BlockedLayout([1, 1], [min(BLOCK_O, 32), 32 // min(BLOCK_O, 32)], [1, 4], [0, 1])
    y_OR = gl.convert_layout(_unfold(acc_MN, BLOCK_O, FOLD, ROWS), OUT)
    out_O = first + gl.arange(0, BLOCK_O, layout=gl.SliceLayout(1, OUT))
    row_R = gl.arange(0, ROWS, layout=gl.SliceLayout(0, OUT))
    places_OR = (part * num_rows + row_R[None, :]) * num_out + out_O[:, None]
    mask_OR = (row_R[None, :] < num_rows) & (out_O[:, None] < num_out)
    dtype: gl.constexpr = y_ptr.dtype.element_ty
    y_OR = _scale(y_OR, x_scale_ptr, w_scale_ptr, row_R, out_O, 0, num_rows, num_out)
    if GATED:
        up_OR = gl.convert_layout(_unfold(up_MN, BLOCK_O, FOLD, ROWS), OUT)
        up_OR = _scale(up_OR, x_scale_ptr, w_scale_ptr, row_R, out_O, num_out, num_rows, num_out)
        y_OR = y_OR.to(dtype).to(gl.float32)
        y_OR = (y_OR / (1.0 + gl.exp(-y_OR))).to(dtype).to(gl.float32)
        y_OR *= up_OR.to(dtype).to(gl.float32)
    if bias_ptr is not None:
        y_OR += gl.load(bias_ptr + out_O, mask=out_O < num_out, other=0.0).to(gl.float32)[:, None]
    gl.store(y_ptr + places_OR, y_OR.to(dtype), mask=mask_OR)
