"""Paged attention of prompts on Hopper: pages fetched by the copy engine, products and softmax at the same time.

What `attention_kernels.attend` computes, for tiles of many rows. One warp fetches pages of keys and values, which lie
anywhere, into a ring of blocks; two groups of four warps take 64 rows of the tile each. A group has the scores of the
next block multiplied while it weighs the values of the last one, as FlashAttention 3 does (arXiv 2407.08608, section
3.2). Blocks are taken from the last one down: that needs masks, and its values are cleaned once of what lies behind
the end, for zero times what is no number would be none.

Shape letters: see `attention_kernels`.
"""

from __future__ import annotations

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
from draftwise.engine.kernels.cuda.matmul_hopper import control, shared_layout

ROWS = gl.constexpr(128)
"""Rows of a tile."""
KEYS = gl.constexpr(128)
"""Keys of a block."""
_CHUNK = 64
"""16-bit elements that the copy engine swizzles as one."""


def describe_pages(pages: Tensor) -> TensorDescriptor:
    """Return what the copy engine needs to know of pages [num_pages, PAGE, 2, G, D] of a 16-bit type."""
    num_pages, page, _, groups, dim = pages.shape
    shape, row = [num_pages * page, 2 * groups * dim], 2 * groups * dim
    return TensorDescriptor(pages, shape, [row, 1], [min(page, KEYS.value), _CHUNK], shared_layout(16))


@gluon.jit
def _fetch(
    kv_desc, smem, full, free, table, group, count, last, step, end,
    PAGE: gl.constexpr, GROUPS: gl.constexpr, D: gl.constexpr, K: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Fetch `count` blocks, from `last` down, into the ring: keys into the even places, values into the odd ones."""
    BOX: gl.constexpr = PAGE if PAGE < K else K
    nowhere = kv_desc.shape[0]
    for i in range(count):
        first = (last - i * step) * K
        slot = i % STAGES
        phase = (i // STAGES) & 1
        for half in gl.static_range(2):
            place = 2 * slot + half
            mbarrier.wait(free.index(place), phase ^ 1)
            mbarrier.expect(full.index(place), K * D * 2)
            tile = smem.index(place)
            for box in gl.static_range(K // BOX):
                key = first + box * BOX
                page = gl.load(table + key // PAGE, mask=key < end, other=0)
                row = gl.where(key < end, page * PAGE + key % PAGE, nowhere)  # behind the end: zeros
                for chunk in gl.static_range(D // 64):
                    column = (half * GROUPS + group) * D + chunk * 64
                    there = tile.slice(chunk * K + box * BOX, BOX)
                    tma.async_copy_global_to_shared(kv_desc, [row, column], full.index(place), there)


@gluon.jit
def _weigh(scores_MK, max_M, first, seen_M, scale, MASKED: gl.constexpr, K: gl.constexpr):
    """Return the weights of a block, the new maximum of each row, and by what older sums shrink."""
    if MASKED:
        keys_K = first + gl.arange(0, K, layout=gl.SliceLayout(0, scores_MK.type.layout))
        scores_MK = gl.where(keys_K[None, :] <= seen_M[:, None], scores_MK, float("-inf"))
    new_M = gl.maximum(max_M, gl.max(scores_MK, 1) * scale)
    base_M = new_M
    if MASKED:  # a row of which every key so far is hidden has no maximum to take away
        base_M = gl.where(new_M == float("-inf"), 0.0, new_M)
    weights_MK = gl.exp2(scores_MK * scale - base_M[:, None])
    return weights_MK, new_M, gl.exp2(max_M - base_M)


@gluon.jit
def _take(
    state, q_smem, smem, full, free, seen_M, last, step, first_i, after_i, scale,
    MASKED: gl.constexpr, D: gl.constexpr, K: gl.constexpr, STAGES: gl.constexpr,
    SCORES: gl.constexpr, OUT: gl.constexpr, WEIGHTS: gl.constexpr,
):  # fmt: skip
    """Take blocks `first_i` up to `after_i`, multiplying scores of each while the values before it are weighed."""
    max_M, sum_M, out_MD, weights_MK = state
    layout: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    dtype: gl.constexpr = smem.dtype
    for i in range(first_i, after_i):
        slot, phase = i % STAGES, (i // STAGES) & 1
        before, phase_before = (i - 1) % STAGES, ((i - 1) // STAGES) & 1
        mbarrier.wait(full.index(2 * slot), phase)
        k_KD = smem.index(2 * slot)._reinterpret(dtype, [K, D], layout)
        none_MK = gl.zeros([64, K], gl.float32, SCORES)
        scores_MK = warpgroup_mma(q_smem, k_KD.permute((1, 0)), none_MK, use_acc=False, is_async=True)
        mbarrier.wait(full.index(2 * before + 1), phase_before)
        v_KD = smem.index(2 * before + 1)._reinterpret(dtype, [K, D], layout)
        out_MD = warpgroup_mma(weights_MK, v_KD, out_MD, is_async=True)
        scores_MK = warpgroup_mma_wait(num_outstanding=1, deps=(scores_MK,))
        mbarrier.arrive(free.index(2 * slot), count=1)
        new_MK, max_M, shrink_M = _weigh(scores_MK, max_M, (last - i * step) * K, seen_M, scale, MASKED, K)
        sum_M = sum_M * shrink_M + gl.sum(new_MK, 1)
        out_MD, weights_MK = warpgroup_mma_wait(num_outstanding=0, deps=(out_MD, weights_MK))
        mbarrier.arrive(free.index(2 * before + 1), count=1)
        out_MD = out_MD * gl.convert_layout(shrink_M, gl.SliceLayout(1, OUT))[:, None]
        weights_MK = gl.convert_layout(new_MK.to(dtype), WEIGHTS)
    return max_M, sum_M, out_MD, weights_MK


@gluon.jit
def _stage_queries(
    q_ptr, q_smem, q_stride, row_0, first_row, length, group, SHARE: gl.constexpr, D: gl.constexpr
):  # fmt: skip
    """Bring 64 rows of queries to shared memory."""
    PLAIN: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    rows_M = row_0 + gl.arange(0, 64, layout=gl.SliceLayout(1, PLAIN))
    query_M, head_M = rows_M // SHARE, group * SHARE + rows_M % SHARE
    dims_D = gl.arange(0, D, layout=gl.SliceLayout(0, PLAIN))
    # What padding holds must not matter, not even if it is no number.
    at_MD = q_ptr + ((first_row + query_M) * q_stride + head_M * D)[:, None] + dims_D[None, :]
    q_smem.store(gl.load(at_MD, mask=(query_M < length)[:, None], other=0.0))
    fence_async_shared()


@gluon.jit
def _attend_rows(
    q_ptr, q_stride, q_smem, smem, full, free, clean, out_ptr, parts_ptr, logs_ptr, row_0,
    group, split, most, start, length, width, first_row, count, whole, last, step, end, scale,
    WHO: gl.constexpr, GROUPS: gl.constexpr, SHARE: gl.constexpr, D: gl.constexpr, K: gl.constexpr,
    STAGES: gl.constexpr, SPLIT: gl.constexpr, CAUSAL: gl.constexpr, UNIFORM: gl.constexpr,
):  # fmt: skip
    """Attend 64 rows of a tile from `row_0` on."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, K, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, OUT, k_width=2)
    layout: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    dtype: gl.constexpr = smem.dtype
    _stage_queries(q_ptr, q_smem, q_stride, row_0, first_row, length, group, SHARE, D)
    queries_M = (row_0 + gl.arange(0, 64, layout=gl.SliceLayout(1, SCORES))) // SHARE
    seen_M = queries_M * 0 + end - 1
    if CAUSAL:
        seen_M = gl.minimum(start + queries_M, end - 1)

    mbarrier.wait(full.index(0), 0)
    k_KD = smem.index(0)._reinterpret(dtype, [K, D], layout)
    none_MK = gl.zeros([64, K], gl.float32, SCORES)
    scores_MK = warpgroup_mma(q_smem, k_KD.permute((1, 0)), none_MK, use_acc=False, is_async=True)
    scores_MK = warpgroup_mma_wait(num_outstanding=0, deps=(scores_MK,))
    mbarrier.arrive(free.index(0), count=1)
    no_M = gl.full([64], float("-inf"), gl.float32, gl.SliceLayout(1, SCORES))
    weights_MK, max_M, _ = _weigh(scores_MK, no_M, last * K, seen_M, scale, True, K)
    sum_M = gl.sum(weights_MK, 1)
    weights_MK = gl.convert_layout(weights_MK.to(dtype), WEIGHTS)
    mbarrier.wait(full.index(1), 0)
    if WHO == 0:
        if last * K + K > end:
            PLAIN: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
            keys_K = last * K + gl.arange(0, K, layout=gl.SliceLayout(1, PLAIN))
            v_KD = smem.index(1)._reinterpret(dtype, [K, D], layout)
            values_KD = v_KD.load(PLAIN)
            v_KD.store(gl.where((keys_K < end)[:, None], values_KD, gl.zeros([K, D], dtype, PLAIN)))
            fence_async_shared()
        mbarrier.arrive(clean, count=1)
    mbarrier.wait(clean, 0)
    state = (max_M, sum_M, gl.zeros([64, D], gl.float32, OUT), weights_MK)
    state = _take(
        state, q_smem, smem, full, free, seen_M, last, step, 1, whole, scale, True, D, K, STAGES, SCORES, OUT, WEIGHTS
    )
    state = _take(
        state, q_smem, smem, full, free, seen_M, last, step, whole, count, scale, False, D, K, STAGES, SCORES, OUT,
        WEIGHTS,
    )  # fmt: skip
    max_M, sum_M, out_MD, weights_MK = state
    place, phase = 2 * ((count - 1) % STAGES) + 1, ((count - 1) // STAGES) & 1
    mbarrier.wait(full.index(place), phase)
    out_MD = warpgroup_mma(weights_MK, smem.index(place)._reinterpret(dtype, [K, D], layout), out_MD, is_async=True)
    out_MD = warpgroup_mma_wait(num_outstanding=0, deps=(out_MD,))

    some_M = gl.where(sum_M == 0.0, 1.0, sum_M)
    rows_M = row_0 + gl.arange(0, 64, layout=gl.SliceLayout(1, OUT))
    query_M, head_M = rows_M // SHARE, group * SHARE + rows_M % SHARE
    exists_M = query_M < length
    if UNIFORM:
        exists_M = query_M < width
    cell_M = (first_row + query_M) * (GROUPS * SHARE) + head_M
    out_MD = out_MD / gl.convert_layout(some_M, gl.SliceLayout(1, OUT))[:, None]
    dims_D = gl.arange(0, D, layout=gl.SliceLayout(0, OUT))
    if not SPLIT or step == 1:
        gl.store(out_ptr + cell_M[:, None] * D + dims_D[None, :], out_MD.to(dtype), mask=exists_M[:, None])
    else:
        part_M = cell_M * most + split
        gl.store(parts_ptr + part_M[:, None] * D + dims_D[None, :], out_MD, mask=exists_M[:, None])
        logs_M = gl.where(sum_M == 0.0, float("-inf"), max_M + gl.log2(some_M))
        gl.store(logs_ptr + part_M, gl.convert_layout(logs_M, gl.SliceLayout(1, OUT)), mask=exists_M)


@Kernel.of_sizes(
    *("width", "table_stride", "most_keys", "most"),
    unaligned=("first_row_ptr", "starts_ptr", "lengths_ptr"),
    jit=gluon.jit,
)
def attend_hopper(
    q_ptr,
    kv_desc,
    table_ptr,
    first_row_ptr,
    starts_ptr,
    lengths_ptr,
    out_ptr,
    parts_ptr,
    logs_ptr,
    scale,
    width,
    q_stride,
    table_stride,
    most_keys,
    most,
    PAGE: gl.constexpr,
    GROUPS: gl.constexpr,
    SHARE: gl.constexpr,
    D: gl.constexpr,
    STAGES: gl.constexpr,
    SPLIT: gl.constexpr,
    CAUSAL: gl.constexpr,
    UNIFORM: gl.constexpr,
    PDL: gl.constexpr,
):
    """Attend one split of one tile; grid (G * tiles, splits, B), the tiles with most keys first."""
    M: gl.constexpr = ROWS
    K: gl.constexpr = KEYS
    group = gl.program_id(0) % GROUPS
    tile = (gl.num_programs(0) - 1 - gl.program_id(0)) // GROUPS
    split = gl.program_id(1)
    seq = gl.program_id(2)
    if PDL:
        control("griddepcontrol.wait")
        control("griddepcontrol.launch_dependents")
    start = gl.load(starts_ptr + seq).to(gl.int32)
    length = gl.load(lengths_ptr + seq).to(gl.int32)
    first_row = gl.load(first_row_ptr + seq)
    end = gl.minimum(start + length, most_keys)
    whole_keys = end
    if CAUSAL:
        end = gl.minimum(end, start + (tile * M + M - 1) // SHARE + 1)
        whole_keys = gl.minimum(end, start + tile * M // SHARE + 1)
    blocks = gl.where(tile * M // SHARE < length, (end + K - 1) // K, 0)
    step = gl.maximum(gl.minimum(blocks, most), 1)
    if split >= blocks or split >= step:
        return
    count = (blocks - split + step - 1) // step
    last = split + (count - 1) * step
    # Blocks below this one are seen whole by every row; of this split's `count`, those from `whole` on.
    below = gl.maximum(whole_keys // K - split + step - 1, 0) // step
    whole = gl.maximum(count - below, 1)

    layout: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    dtype: gl.constexpr = kv_desc.dtype
    q_smem = gl.allocate_shared_memory(dtype, [2, 64, D], layout)
    smem = gl.allocate_shared_memory(dtype, [2 * STAGES, K * (D // 64), 64], layout)
    full = gl.allocate_shared_memory(gl.int64, [2 * STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [2 * STAGES, 1], mbarrier.MBarrierLayout())
    clean = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for place in gl.static_range(2 * STAGES):
        mbarrier.init(full.index(place), count=1)
        mbarrier.init(free.index(place), count=2)
    mbarrier.init(clean, count=1)
    fence_async_shared()
    table = table_ptr + seq.to(gl.int64) * table_stride
    gl.warp_specialize(
        [
            (
                _attend_rows,
                (
                    q_ptr, q_stride, q_smem.index(0), smem, full, free, clean, out_ptr, parts_ptr, logs_ptr, tile * M,
                    group, split, most, start, length, width, first_row, count, whole, last, step, end, scale,
                    0, GROUPS, SHARE, D, K, STAGES, SPLIT, CAUSAL, UNIFORM,
                ),
            ),
            (
                _attend_rows,
                (
                    q_ptr, q_stride, q_smem.index(1), smem, full, free, clean, out_ptr, parts_ptr, logs_ptr,
                    tile * M + 64, group, split, most, start, length, width, first_row, count, whole, last, step, end,
                    scale, 1, GROUPS, SHARE, D, K, STAGES, SPLIT, CAUSAL, UNIFORM,
                ),
            ),
            (
                _fetch,
                (kv_desc, smem, full, free, table, group, count, last, step, end, PAGE, GROUPS, D, K, STAGES),
            ),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip
