"""Triton kernels of paged attention: one for any number of query tokens a sequence, and one that joins its splits.

A tile is M rows of one sequence and one key-value head: the queries of the A / G heads that share its keys are
folded into its rows, row r being query r // SHARE of head r % SHARE. A split is a share of a tile's keys. The host
knows neither lengths nor positions, so the grid has room for the most splits and those without keys end at once.

Shape letters: N query tokens, B sequences, P pages of a sequence, A query heads, G key-value heads, D head
dimension (padded to a power of two in a tile), M rows of a tile, K keys of a block, S splits, R rows that are
joined at a time.
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
def _splits(blocks, most, fewest):
    """Return how many splits share the blocks: at most `most`, each of at least `fewest` blocks."""
    return tl.minimum(most, (blocks + fewest - 1) // fewest)


@triton.jit
def _pages(table, block, num_pages, K: tl.constexpr, PAGE: tl.constexpr):
    """Return the page of each key of a block; the table's last for keys behind it."""
    return tl.load(table + tl.minimum((block * K + tl.arange(0, K)) // PAGE, num_pages - 1))


@triton.jit
def _keys(
    state,
    q_MD,
    pages_ptr,
    table,
    num_pages,
    seen_M,
    blocks,
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
    """Take every `blocks[2]`-th block from `blocks[0]` up to `blocks[1]` into the state and return that.

    The state is the running maximum, sums and output, and the pages of the first block. Sums stay spread over the K
    columns: adding them up once, at the end, saves a reduction a block. The pages of a block are looked up one block
    ahead, so that the pipelined loads of its keys do not wait for them.
    """
    max_M, sum_MK, out_MD, pages_K = state
    dims_D = tl.arange(0, q_MD.shape[1])
    for block in tl.range(blocks[0], blocks[1], blocks[2], num_stages=STAGES):
        keys_K = block * K + tl.arange(0, K)
        at_K = pages_K.to(tl.int64) * page_stride + (keys_K % PAGE) * (2 * GROUPS * D)
        at_KD = pages_ptr + at_K[:, None] + dims_D[None, :]
        if MASKED:
            # Nobody knows what lies behind the end, and zero times that may still be no number.
            there_KD = (keys_K < end)[:, None] & (dims_D[None, :] < D)
            k_KD = tl.load(at_KD, mask=there_KD, other=0.0)
            v_KD = tl.load(at_KD + GROUPS * D, mask=there_KD, other=0.0)
        elif q_MD.shape[1] == D:
            k_KD = tl.load(at_KD)
            v_KD = tl.load(at_KD + GROUPS * D)
        else:
            k_KD = tl.load(at_KD, mask=dims_D[None, :] < D, other=0.0)
            v_KD = tl.load(at_KD + GROUPS * D, mask=dims_D[None, :] < D, other=0.0)
        pages_K = _pages(table, block + blocks[2], num_pages, K, PAGE)
        scores_MK = tl.dot(q_MD, tl.trans(k_KD.to(q_MD.dtype)), input_precision="ieee")
        if MASKED:
            scores_MK = tl.where(keys_K[None, :] <= seen_M[:, None], scores_MK, float("-inf"))
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


@triton.jit
def _join(
    parts_ptr,
    logs_ptr,
    out_ptr,
    row_R,
    head_R,
    exists_R,
    num_splits,
    num_rows,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    DIMS: tl.constexpr,
    S: tl.constexpr,
    R: tl.constexpr,
):
    """Add up the splits' outputs of R rows, always in the same order, and write the result."""
    splits_S = tl.arange(0, S)
    dims_D = tl.arange(0, DIMS)
    cell_R = row_R * HEADS + head_R
    cells = num_rows * HEADS
    logs_SR = tl.load(
        logs_ptr + splits_S[:, None] * cells + cell_R[None, :],
        mask=(splits_S[:, None] < num_splits) & exists_R[None, :],
        other=float("-inf"),
        cache_modifier=".cg",
    )
    max_R = tl.max(logs_SR, 0)
    max_R = tl.where(max_R == float("-inf"), 0.0, max_R)
    total_R = max_R + tl.log2(tl.maximum(tl.sum(tl.exp2(logs_SR - max_R[None, :]), 0), 1e-30))
    out_RD = tl.zeros((R, DIMS), tl.float32)
    for first in range(0, num_splits, 4):
        for ahead in tl.static_range(4):
            split = first + ahead
            there_R = exists_R & (split < num_splits)
            log_R = tl.load(logs_ptr + split * cells + cell_R, mask=there_R, other=float("-inf"), cache_modifier=".cg")
            part_RD = tl.load(
                parts_ptr + (split * cells + cell_R)[:, None] * D + dims_D[None, :],
                mask=there_R[:, None] & (dims_D[None, :] < D),
                other=0.0,
                cache_modifier=".cg",
            )
            out_RD += tl.exp2(log_R - total_R)[:, None] * part_RD
    tl.store(
        out_ptr + cell_R[:, None] * D + dims_D[None, :],
        out_RD.to(out_ptr.dtype.element_ty),
        mask=exists_R[:, None] & (dims_D[None, :] < D),
    )


@triton.jit(do_not_specialize=["num_rows", "width", "table_stride", "num_pages", "most", "fewest"])
def attend(
    q_ptr,  # [N, A, D], rows `q_stride` apart
    pages_ptr,  # [pages, PAGE, 2, G, D], pages `page_stride` apart
    table_ptr,  # [B, P], rows `table_stride` apart
    first_row_ptr,
    starts_ptr,
    lengths_ptr,
    out_ptr,  # [N, A, D]
    parts_ptr,  # [S, N, A, D]: the output of each split by itself
    logs_ptr,  # [S, N, A]: the logarithm to base 2 of the sum of its weights
    arrived_ptr,  # how many splits of a tile are done; 0 before and after
    scale,  # of scores, times log2(e); positive
    num_rows,
    width,
    q_stride,
    page_stride,
    table_stride,
    num_pages,  # P
    most,  # splits
    fewest,  # blocks a split
    PAGE: tl.constexpr,
    GROUPS: tl.constexpr,
    SHARE: tl.constexpr,
    D: tl.constexpr,
    DIMS: tl.constexpr,
    M: tl.constexpr,
    K: tl.constexpr,
    STAGES: tl.constexpr,
    S: tl.constexpr,
    CAUSAL: tl.constexpr,
    UNIFORM: tl.constexpr,
    UNMASKED_FIRST: tl.constexpr,
    JOIN: tl.constexpr,
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
    pages_K = _pages(table, split, num_pages, K, PAGE)
    start = tl.load(starts_ptr + seq).to(tl.int32)
    length = tl.load(lengths_ptr + seq).to(tl.int32)
    first_row = tl.load(first_row_ptr + seq)
    end, blocks = _blocks(start, length, tile, SHARE, M, K, CAUSAL)
    num_splits = _splits(blocks, most, fewest) if S > 1 else tl.minimum(blocks, 1)
    if split >= tl.maximum(num_splits, 1):
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
    max_M = tl.full((M,), float("-inf"), tl.float32)
    state = (max_M, tl.zeros((M, K), tl.float32), tl.zeros((M, DIMS), tl.float32), pages_K)
    kv_ptr = pages_ptr + group * D
    first = split
    step = tl.maximum(num_splits, 1)
    if UNMASKED_FIRST:
        # Every row sees the keys that the first one sees.
        whole = tl.maximum(tl.min(seen_M, 0) + 1, 0) // K
        state = _keys(
            state, q_MD, kv_ptr, table, num_pages, seen_M, (first, whole, step), end, scale, page_stride,
            STAGES, False, PAGE, GROUPS, D, K,
        )  # fmt: skip
        first += tl.maximum(whole - first + step - 1, 0) // step * step
    max_M, sum_MK, out_MD, _ = _keys(
        state, q_MD, kv_ptr, table, num_pages, seen_M, (first, blocks, step), end, scale, page_stride,
        STAGES, True, PAGE, GROUPS, D, K,
    )  # fmt: skip
    sum_M = tl.sum(sum_MK, 1)
    some_M = tl.where(sum_M == 0.0, 1.0, sum_M)
    out_MD = out_MD / some_M[:, None]
    exists_M = query_M < (width if UNIFORM else length)
    cell_M = row_M * (GROUPS * SHARE) + head_M
    here_MD = exists_M[:, None] & (dims_D[None, :] < D)
    at_MD = cell_M[:, None] * D + dims_D[None, :]
    if S == 1 or num_splits <= 1:
        tl.store(out_ptr + at_MD, out_MD.to(out_ptr.dtype.element_ty), mask=here_MD)
        return
    cells = num_rows.to(tl.int64) * (GROUPS * SHARE)
    tl.store(parts_ptr + split * cells * D + at_MD, out_MD, mask=here_MD)
    logs_M = tl.where(sum_M == 0.0, float("-inf"), max_M + tl.log2(some_M))
    tl.store(logs_ptr + split * cells + cell_M, logs_M, mask=exists_M)
    if JOIN:
        arrived = arrived_ptr + seq * tl.num_programs(0) + tl.program_id(0)
        tl.debug_barrier()  # the one thread that counts publishes what all have written
        before = tl.atomic_add(arrived, 1, sem="acq_rel", scope="gpu")
        if before == num_splits - 1:
            tl.store(arrived, 0)
            _join(
                parts_ptr, logs_ptr, out_ptr, row_M, head_M, exists_M, num_splits, num_rows.to(tl.int64),
                GROUPS * SHARE, D, DIMS, S, M,
            )  # fmt: skip


@triton.jit(do_not_specialize=["num_rows", "width", "most", "fewest"])
def join(
    first_row_ptr,
    starts_ptr,
    lengths_ptr,
    out_ptr,
    parts_ptr,
    logs_ptr,
    num_rows,
    width,
    most,
    fewest,
    GROUPS: tl.constexpr,
    SHARE: tl.constexpr,
    D: tl.constexpr,
    DIMS: tl.constexpr,
    M: tl.constexpr,
    K: tl.constexpr,
    S: tl.constexpr,
    CAUSAL: tl.constexpr,
    UNIFORM: tl.constexpr,
    R: tl.constexpr,
    PDL: tl.constexpr,
):
    """Join the splits of R rows of one tile; grid (G * tiles * M / R, B)."""
    group = tl.program_id(0) % GROUPS
    part = tl.program_id(0) // GROUPS
    seq = tl.program_id(1)
    wait(PDL)
    launch_next(PDL)
    start = tl.load(starts_ptr + seq).to(tl.int32)
    length = tl.load(lengths_ptr + seq).to(tl.int32)
    first_row = tl.load(first_row_ptr + seq)
    _, blocks = _blocks(start, length, part * R // M, SHARE, M, K, CAUSAL)
    num_splits = _splits(blocks, most, fewest)
    if num_splits <= 1:
        return
    rows_R = part * R + tl.arange(0, R)
    query_R = rows_R // SHARE
    exists_R = query_R < (width if UNIFORM else length)
    _join(
        parts_ptr, logs_ptr, out_ptr, first_row + query_R, group * SHARE + rows_R % SHARE, exists_R,
        num_splits, num_rows.to(tl.int64), GROUPS * SHARE, D, DIMS, S, R,
    )  # fmt: skip
