"""Triton kernels of paged attention: one for any number of query tokens a sequence, and one that joins its splits.

A tile is M rows of one sequence and one key-value head: the queries of the A / G heads that share its keys are
folded into its rows, row r being query r // SHARE of head r % SHARE. A split is a share of a tile's keys. The host
knows neither lengths nor positions, so the grid has room for the most splits and those without keys end at once.

Shape letters: N query tokens, B sequences, P pages of a sequence, A query heads, G key-value heads, D head
dimension (padded to a power of two in a tile), M rows of a tile, K keys of a block, S splits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from draftwise.engine.kernels.cuda.launch import launch_next, wait

__all__ = ["attend", "join"]


@triton.jit
def _blocks(start, length, tile, SHARE: tl.constexpr, M: tl.constexpr, K: tl.constexpr, CAUSAL: tl.constexpr):
    """Return how many keys a tile looks at, and in how many blocks they lie: none when none of its queries exists."""
    end = start + length
    if CAUSAL:
        end = tl.minimum(end, start + (tile * M + M - 1) // SHARE + 1)
    end = tl.where(tile * M // SHARE < length, end, 0)
    return end, (end + K - 1) // K


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
def _weigh(scores_MK, keys_K, seen_M, max_M, scale, MASKED: tl.constexpr):
    """Return the new maximum of each row, what older weights shrink by, and the weights of these keys."""
    if MASKED:
        scores_MK = tl.where(keys_K[None, :] <= seen_M[:, None], scores_MK, float("-inf"))
    new_M = tl.maximum(max_M, tl.max(scores_MK, 1) * scale)
    # A row of which every key so far is hidden has no maximum to take away.
    base_M = tl.where(new_M == float("-inf"), 0.0, new_M) if MASKED else new_M
    return new_M, tl.exp2(max_M - base_M), tl.exp2(scores_MK * scale - base_M[:, None])


@triton.jit
def _narrow(
    q_MD,
    pages_ptr,
    table,
    pages_K,
    seen_M,
    first,
    after,
    step,
    end,
    scale,
    page_stride,
    STAGES: tl.constexpr,
    PAGE: tl.constexpr,
    GROUPS: tl.constexpr,
    D: tl.constexpr,
    K: tl.constexpr,
):
    """Return the maximum, sum and output of each row over every `step`-th block: for few rows, which wait for memory.

    Sums stay spread over the K columns until the end: that saves a reduction across warps in each block. The pages
    of a block are looked up one block ahead, so that the pipelined loads of its keys do not wait for them.
    """
    M: tl.constexpr = q_MD.shape[0]
    DIMS: tl.constexpr = q_MD.shape[1]
    max_M = tl.full((M,), float("-inf"), tl.float32)
    sum_MK = tl.zeros((M, K), tl.float32)
    out_MD = tl.zeros((M, DIMS), tl.float32)
    for block in tl.range(first, after, step, num_stages=STAGES):
        keys_K = block * K + tl.arange(0, K)
        k_KD = _load(pages_ptr, pages_K, keys_K, end, page_stride, PAGE, GROUPS, D, DIMS, True)
        v_KD = _load(pages_ptr + GROUPS * D, pages_K, keys_K, end, page_stride, PAGE, GROUPS, D, DIMS, True)
        pages_K = _pages(table, block + step, end, K, PAGE)
        scores_MK = tl.dot(q_MD, tl.trans(k_KD.to(q_MD.dtype)), input_precision="ieee")
        max_M, shrink_M, weights_MK = _weigh(scores_MK, keys_K, seen_M, max_M, scale, True)
        sum_MK = sum_MK * shrink_M[:, None] + weights_MK
        out_MD = out_MD * shrink_M[:, None]
        out_MD = tl.dot(weights_MK.to(q_MD.dtype), v_KD.to(q_MD.dtype), out_MD, input_precision="ieee")
    return max_M, tl.sum(sum_MK, 1), out_MD


@triton.jit
def _wide(
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
    PAGE: tl.constexpr,
    GROUPS: tl.constexpr,
    D: tl.constexpr,
    K: tl.constexpr,
):
    """Take every `step`-th block into the state: for many rows, which wait for the matrix units.

    The state is the maximum, sum and output of each row, the scores of the block to come, its pages and those of the
    one after that: while one block's scores become weights, the matrix units make the scores of the next.
    """
    max_M, sum_M, out_MD, scores_MK, pages_K, next_K = state
    DIMS: tl.constexpr = q_MD.shape[1]
    for block in tl.range(first, after, step, num_stages=STAGES):
        keys_K = block * K + tl.arange(0, K)
        k_KD = _load(pages_ptr, next_K, keys_K + step * K, end, page_stride, PAGE, GROUPS, D, DIMS, True)
        next_MK = tl.dot(q_MD, tl.trans(k_KD.to(q_MD.dtype)), input_precision="ieee")
        v_KD = _load(pages_ptr + GROUPS * D, pages_K, keys_K, end, page_stride, PAGE, GROUPS, D, DIMS, MASKED)
        # Handing `next_K` on instead would be a dependency over two rounds, which keeps the loop from being pipelined.
        pages_K = _pages(table, block + step, end, K, PAGE)
        next_K = _pages(table, block + 2 * step, end, K, PAGE)
        max_M, shrink_M, weights_MK = _weigh(scores_MK, keys_K, seen_M, max_M, scale, MASKED)
        sum_M = sum_M * shrink_M + tl.sum(weights_MK, 1)
        out_MD = out_MD * shrink_M[:, None]
        out_MD = tl.dot(weights_MK.to(q_MD.dtype), v_KD.to(q_MD.dtype), out_MD, input_precision="ieee")
        scores_MK = next_MK
    return max_M, sum_M, out_MD, scores_MK, pages_K, next_K


@triton.jit(do_not_specialize=["width", "table_stride", "num_pages", "most"])
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
    num_pages,  # P
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
    UNIFORM: tl.constexpr,
    PDL: tl.constexpr,
):
    """Attend one split of one tile; grid (G * tiles, splits, B), the tiles with most keys first."""
    group = tl.program_id(0) % GROUPS
    tile = (tl.num_programs(0) - 1 - tl.program_id(0)) // GROUPS
    split = tl.program_id(1)
    seq = tl.program_id(2)
    wait(PDL)
    launch_next(PDL)
    # Splits take turns at the blocks: where one begins does not depend on lengths, and its pages come with those.
    table = table_ptr + seq.to(tl.int64) * table_stride
    pages_K = _pages(table, split, num_pages * PAGE, K, PAGE)
    start = tl.load(starts_ptr + seq).to(tl.int32)
    length = tl.load(lengths_ptr + seq).to(tl.int32)
    first_row = tl.load(first_row_ptr + seq)
    end, blocks = _blocks(start, length, tile, SHARE, M, K, CAUSAL)
    step = tl.maximum(tl.minimum(blocks, most), 1)
    if split >= step:
        return
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
    if M < 64:
        max_M, sum_M, out_MD = _narrow(
            q_MD, kv_ptr, table, pages_K, seen_M, split, blocks, step, end, scale, page_stride,
            STAGES, PAGE, GROUPS, D, K,
        )  # fmt: skip
    else:
        keys_K = split * K + tl.arange(0, K)
        k_KD = _load(kv_ptr, pages_K, keys_K, end, page_stride, PAGE, GROUPS, D, DIMS, True)
        scores_MK = tl.dot(q_MD, tl.trans(k_KD.to(q_MD.dtype)), input_precision="ieee")
        max_M = tl.full((M,), float("-inf"), tl.float32)
        next_K = _pages(table, split + step, end, K, PAGE)
        state = (max_M, tl.zeros((M,), tl.float32), tl.zeros((M, DIMS), tl.float32), scores_MK, pages_K, next_K)
        # Every row sees the keys that the first one sees: there nothing need be masked.
        whole = tl.maximum(tl.min(seen_M, 0) + 1, 0) // K
        state = _wide(
            state, q_MD, kv_ptr, table, seen_M, split, whole, step, end, scale, page_stride,
            STAGES, False, PAGE, GROUPS, D, K,
        )  # fmt: skip
        rest = split + tl.maximum(whole - split + step - 1, 0) // step * step
        max_M, sum_M, out_MD, _, _, _ = _wide(
            state, q_MD, kv_ptr, table, seen_M, rest, blocks, step, end, scale, page_stride,
            STAGES, True, PAGE, GROUPS, D, K,
        )  # fmt: skip
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


@triton.jit(do_not_specialize=["width", "most"])
def join(
    first_row_ptr,
    starts_ptr,
    lengths_ptr,
    out_ptr,
    parts_ptr,
    logs_ptr,
    width,
    most,
    SHARE: tl.constexpr,
    D: tl.constexpr,
    DIMS: tl.constexpr,
    M: tl.constexpr,
    K: tl.constexpr,
    S: tl.constexpr,
    CAUSAL: tl.constexpr,
    UNIFORM: tl.constexpr,
    PDL: tl.constexpr,
):
    """Join the splits of one head of one query token, in order; grid (A, queries, B)."""
    head = tl.program_id(0)
    query = tl.program_id(1)
    seq = tl.program_id(2)
    splits_S = tl.arange(0, S)
    dims_D = tl.arange(0, DIMS)
    wait(PDL)
    launch_next(PDL)
    start = tl.load(starts_ptr + seq).to(tl.int32)
    length = tl.load(lengths_ptr + seq).to(tl.int32)
    cell = (tl.load(first_row_ptr + seq) + query) * tl.num_programs(0) + head
    tile = (query * SHARE + head % SHARE) // M
    _, blocks = _blocks(start, length, tile, SHARE, M, K, CAUSAL)
    num_splits = tl.minimum(blocks, most)
    if num_splits <= 1 or query >= (width if UNIFORM else length):
        return
    used_S = splits_S < num_splits
    part_S = cell * most + splits_S
    logs_S = tl.load(logs_ptr + part_S, mask=used_S, other=float("-inf"))
    part_SD = tl.load(
        parts_ptr + part_S[:, None] * D + dims_D[None, :],
        mask=used_S[:, None] & (dims_D[None, :] < D),
        other=0.0,
    )
    weights_S = tl.exp2(logs_S - tl.max(logs_S, 0))
    out_D = tl.sum(part_SD * weights_S[:, None], 0) / tl.sum(weights_S, 0)
    tl.store(out_ptr + cell * D + dims_D, out_D.to(out_ptr.dtype.element_ty), mask=dims_D < D)
