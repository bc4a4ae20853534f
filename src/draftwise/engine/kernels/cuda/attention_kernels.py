"""Triton kernels of paged attention: one for any number of query tokens a sequence, and one that joins its splits.

A tile is M rows of one sequence and one key-value head: the queries of the A / G heads that share its keys are
folded into its rows, row r being query r // SHARE of head r % SHARE. A split is a share of a tile's keys. The host
knows neither lengths nor positions, so the grid has room for the most splits and those without keys end at once.

Shape letters: N query tokens, B sequences, P pages of a sequence, A query heads, G key-value heads, D head
dimension (padded to a power of two in a tile), M rows of a tile, K keys of a block, S splits (padded to a power
of two), F splits that are joined at a time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from draftwise.engine.kernels.cuda.kernel_launch import Kernel, launch_next, wait


@triton.jit
def _blocks(start, length, most_keys, tile, M, K, SHARE: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """Return the end of the keys that a tile looks at, the first of the blocks in which they lie, and how many there
    are: none when none of its queries exists."""
    end = tl.minimum(start + length, most_keys)
    if CAUSAL:
        end = tl.minimum(end, start + (tile * M + M - 1) // SHARE + 1)
    end = tl.where(tile * M // SHARE < length, end, 0)
    begin = tl.maximum(start + tile * M // SHARE - WINDOW + 1, 0) // K if WINDOW > 0 else 0
    return end, begin, tl.maximum((end + K - 1) // K - begin, 0)


@triton.jit
def _pages(table, block, end, K: tl.constexpr, PAGE: tl.constexpr):
    """Return the page of each key of a block. Those from the end on are not looked up: nothing waits for them."""
    keys_K = block * K + tl.arange(0, K)
    return tl.load(table + keys_K // PAGE, mask=keys_K < end, other=0)


@triton.jit
def _load(
    pages_ptr,
    pages_K,
    keys_K,
    end,
    page_stride,
    PAGE: tl.constexpr,
    GROUPS: tl.constexpr,
    D: tl.constexpr,
    DIMS: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Return keys [K, DIMS]. What lies behind the end is not read: zero times that may still be no number."""
    dims_D = tl.arange(0, DIMS)
    at_K = pages_K.to(tl.int64) * page_stride + (keys_K % PAGE) * (2 * GROUPS * D)
    at_KD = pages_ptr + at_K[:, None] + dims_D[None, :]
    if MASKED:
        loaded_KD = tl.load(at_KD, mask=(keys_K < end)[:, None] & (dims_D < D)[None, :], other=0.0)
    elif DIMS == D:
        loaded_KD = tl.load(at_KD)
    else:
        loaded_KD = tl.load(at_KD, mask=(dims_D < D)[None, :], other=0.0)
    return loaded_KD


@triton.jit
def _take(
    state,
    q_MD,
    pages_ptr,
    table,
    seen_M,
    first,
    after,
    step,
    end,
    scale,
    page_stride,
    STAGES: tl.constexpr,
    MASKED: tl.constexpr,
    WINDOW: tl.constexpr,
    PAGE: tl.constexpr,
    GROUPS: tl.constexpr,
    D: tl.constexpr,
    K: tl.constexpr,
):
    """Take every `step`-th block from `first` up to `after` into the state, and return that.

    The state is the maximum, sums and output of each row, and the pages of the first block. Sums stay spread over
    the K columns: adding them up once, at the end, saves a reduction in each block. The pages of a block are looked
    up one block ahead, so that the pipelined loads of its keys do not wait for them.
    """
    max_M, sum_MK, out_MD, pages_K = state
    DIMS: tl.constexpr = q_MD.shape[1]
    for block in tl.range(first, after, step, num_stages=STAGES):
        keys_K = block * K + tl.arange(0, K)
        k_KD = _load(pages_ptr, pages_K, keys_K, end, page_stride, PAGE, GROUPS, D, DIMS, MASKED)
        v_KD = _load(pages_ptr + GROUPS * D, pages_K, keys_K, end, page_stride, PAGE, GROUPS, D, DIMS, MASKED)
        pages_K = _pages(table, block + step, end, K, PAGE)
        scores_MK = tl.dot(q_MD, tl.trans(k_KD.to(q_MD.dtype)), input_precision="ieee")
        if MASKED:
            scores_MK = tl.where(keys_K[None, :] <= seen_M[:, None], scores_MK, float("-inf"))
        if WINDOW > 0:
            scores_MK = tl.where(keys_K[None, :] > seen_M[:, None] - WINDOW, scores_MK, float("-inf"))
        new_M = tl.maximum(max_M, tl.max(scores_MK, 1) * scale)
        # A row of which every key so far is hidden has no maximum to take away.
        base_M = tl.where(new_M == float("-inf"), 0.0, new_M) if MASKED else new_M
        weights_MK = tl.exp2(scores_MK * scale - base_M[:, None])
        shrink_M = tl.exp2(max_M - base_M)
        sum_MK = sum_MK * shrink_M[:, None] + weights_MK
        out_MD = out_MD * shrink_M[:, None]
        out_MD = tl.dot(weights_MK.to(q_MD.dtype), v_KD.to(q_MD.dtype), out_MD, input_precision="ieee")
        max_M = new_M
    return max_M, sum_MK, out_MD, pages_K


@Kernel.of_sizes(
    *("width", "table_stride", "most_keys", "most"), unaligned=("first_row_ptr", "starts_ptr", "lengths_ptr")
)
def attend(
    q_ptr,  # [N, A, D], rows `q_stride` apart
    pages_ptr,  # [pages, PAGE, 2, G, D], pages `page_stride` apart
    table_ptr,  # [B, P], rows `table_stride` apart
    first_row_ptr,
    starts_ptr,
    lengths_ptr,
    out_ptr,  # [N, A, D]
    parts_ptr,  # [N, A, S, D]: the output of each split by itself
    logs_ptr,  # [N, A, S]: the logarithm to base 2 of the sum of its weights
    scale,  # of scores, times log2(e); positive
    width,
    q_stride,
    page_stride,
    table_stride,
    most_keys,  # that the table has pages for
    most,  # splits
    PAGE: tl.constexpr,
    GROUPS: tl.constexpr,
    SHARE: tl.constexpr,
    D: tl.constexpr,
    DIMS: tl.constexpr,
    M: tl.constexpr,
    K: tl.constexpr,
    STAGES: tl.constexpr,
    SPLIT: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    UNIFORM: tl.constexpr,
    PDL: tl.constexpr,
):
    """Attend one split of one tile; grid (G * tiles, splits, B), the tiles with most keys first."""
    group = tl.program_id(0) % GROUPS
    tile = (tl.num_programs(0) - 1 - tl.program_id(0)) // GROUPS
    split = tl.program_id(1)
    seq = tl.program_id(2)
    wait(PDL)
    launch_next(PDL)  # not before: programs of `join` would take the places of those still to come
    # Splits take turns at the blocks: where one begins does not depend on lengths, and its pages come with those.
    table = table_ptr + seq.to(tl.int64) * table_stride
    if WINDOW == 0:
        pages_K = _pages(table, split, most_keys, K, PAGE)
    start = tl.load(starts_ptr + seq).to(tl.int32)
    length = tl.load(lengths_ptr + seq).to(tl.int32)
    first_row = tl.load(first_row_ptr + seq)
    end, begin, blocks = _blocks(start, length, most_keys, tile, M, K, SHARE, CAUSAL, WINDOW)
    step = tl.maximum(tl.minimum(blocks, most), 1)
    if split >= step:
        return
    if WINDOW > 0:
        pages_K = _pages(table, begin + split, end, K, PAGE)
    rows_M = tile * M + tl.arange(0, M)
    query_M = rows_M // SHARE
    head_M = group * SHARE + rows_M % SHARE
    row_M = first_row + query_M
    dims_D = tl.arange(0, DIMS)
    # What padding holds must not matter, not even if it is no number.
    q_MD = tl.load(
        q_ptr + row_M[:, None] * q_stride + head_M[:, None] * D + dims_D[None, :],
        mask=(query_M < length)[:, None] & (dims_D[None, :] < D),
        other=0.0,
    )
    if pages_ptr.dtype.element_ty.primitive_bitwidth == 8 and q_ptr.dtype.element_ty == tl.bfloat16:
        # float8_e4m3fn is exact in float16 as well, and there in one instruction for two, not in several for one.
        q_MD = q_MD.to(tl.float16)
    seen_M = tl.minimum(start + query_M, end - 1) if CAUSAL else tl.full((M,), 0, tl.int32) + end - 1
    kv_ptr = pages_ptr + group * D
    max_M = tl.full((M,), float("-inf"), tl.float32)
    state = (max_M, tl.zeros((M, K), tl.float32), tl.zeros((M, DIMS), tl.float32), pages_K)
    first = begin + split
    if M >= 64 and WINDOW == 0:
        # Many rows wait for arithmetic: blocks that all of them see whole have a loop without masks.
        whole = tl.maximum(tl.min(seen_M, 0) + 1, 0) // K
        state = _take(
            state, q_MD, kv_ptr, table, seen_M, first, whole, step, end, scale, page_stride,
            STAGES, False, WINDOW, PAGE, GROUPS, D, K,
        )  # fmt: skip
        first += tl.maximum(whole - first + step - 1, 0) // step * step
    max_M, sum_MK, out_MD, _ = _take(
        state, q_MD, kv_ptr, table, seen_M, first, begin + blocks, step, end, scale, page_stride,
        STAGES, True, WINDOW, PAGE, GROUPS, D, K,
    )  # fmt: skip
    sum_M = tl.sum(sum_MK, 1)
    some_M = tl.where(sum_M == 0.0, 1.0, sum_M)
    out_MD = out_MD / some_M[:, None]
    exists_M = query_M < (width if UNIFORM else length)
    cell_M = row_M * (GROUPS * SHARE) + head_M
    here_MD = exists_M[:, None] & (dims_D[None, :] < D)
    at_MD = cell_M[:, None] * D + dims_D[None, :]
    if not SPLIT or step == 1:
        tl.store(out_ptr + at_MD, out_MD.to(out_ptr.dtype.element_ty), mask=here_MD)
    else:
        part_M = cell_M * most + split
        tl.store(parts_ptr + part_M[:, None] * D + dims_D[None, :], out_MD, mask=here_MD)
        logs_M = tl.where(sum_M == 0.0, float("-inf"), max_M + tl.log2(some_M))
        tl.store(logs_ptr + part_M, logs_M, mask=exists_M)


@Kernel.of_sizes("width", "most_keys", "most", unaligned=("first_row_ptr", "starts_ptr", "lengths_ptr"))
def join(
    first_row_ptr,
    starts_ptr,
    lengths_ptr,
    out_ptr,
    parts_ptr,
    logs_ptr,
    width,
    most_keys,
    most,
    M,
    K,
    SHARE: tl.constexpr,
    D: tl.constexpr,
    DIMS: tl.constexpr,
    S: tl.constexpr,
    F: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    UNIFORM: tl.constexpr,
    PDL: tl.constexpr,
):
    """Join the splits of one head of one query token, in order; grid (A, queries, B)."""
    head = tl.program_id(0)
    query = tl.program_id(1)
    seq = tl.program_id(2)
    splits_S = tl.arange(0, S)
    few_F = tl.arange(0, F)
    dims_D = tl.arange(0, DIMS)
    launch_next(PDL)
    wait(PDL)
    start = tl.load(starts_ptr + seq).to(tl.int32)
    length = tl.load(lengths_ptr + seq).to(tl.int32)
    first_row = seq.to(tl.int64) * width if UNIFORM else tl.load(first_row_ptr + seq)
    cell = (first_row + query) * tl.num_programs(0) + head
    tile = (query * SHARE + head % SHARE) // M
    _, _, blocks = _blocks(start, length, most_keys, tile, M, K, SHARE, CAUSAL, WINDOW)
    num_splits = tl.where(query < (width if UNIFORM else length), tl.minimum(blocks, most), 0)
    # Where every row exists its memory does too: reading all of it does not wait for how much of it is used.
    there = most if UNIFORM else num_splits
    logs_S = tl.load(logs_ptr + cell * most + splits_S, mask=splits_S < there, other=float("-inf"))
    logs_F = tl.load(logs_ptr + cell * most + few_F, mask=few_F < there, other=float("-inf"))
    at_FD = parts_ptr + (cell * most + few_F)[:, None] * D + dims_D[None, :]
    part_FD = tl.load(at_FD, mask=(few_F < there)[:, None] & (dims_D < D)[None, :], other=0.0)
    if num_splits <= 1:
        return
    logs_S = tl.where(splits_S < num_splits, logs_S, float("-inf"))
    max_log = tl.max(logs_S, 0)
    total = tl.sum(tl.exp2(logs_S - max_log), 0)
    used_F = few_F < num_splits
    logs_F = tl.where(used_F, logs_F, float("-inf"))
    out_FD = tl.where(used_F[:, None], part_FD, 0.0) * tl.exp2(logs_F - max_log)[:, None]
    for first in tl.range(F, num_splits, F):
        used_F = first + few_F < num_splits
        logs_F = tl.load(logs_ptr + cell * most + first + few_F, mask=used_F, other=float("-inf"))
        part_FD = tl.load(at_FD + first * D, mask=used_F[:, None] & (dims_D < D)[None, :], other=0.0)
        out_FD += tl.exp2(logs_F - max_log)[:, None] * part_FD
    out_D = tl.sum(out_FD, 0) / total
    tl.store(out_ptr + cell * D + dims_D, out_D.to(out_ptr.dtype.element_ty), mask=dims_D < D)
