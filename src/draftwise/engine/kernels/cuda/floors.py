"""Finds on the GPU, without sorting, the least logit that min_p, top-k and top-p leave of each row.

The k-th largest logit is the largest value T with count(x >= T) >= k, and the least one of a nucleus the largest T with
mass(x >= T) >= p. Both are found from their bits, two a pass, the highest first: a pass counts or weighs the logits
above three candidates. Half precision has fewer bits to find. One program does all passes of a row; sums are rounded
alike however many rows there are.

For a small top_k two passes are over the whole row. The first keeps the largest logit of each of N lanes (columns that
are equal modulo N). The k-th largest of those is at most the k-th largest logit, and not far from it. The second pass
copies the logits from there on, of each lane up to four, and the searches are among the copies. A row is searched as a
whole if one of its lanes has more.

A row takes two searches only if it asks for top-k and top-p; the second is then among what the first left.

Shape letters: B sequences, S rows of logits a sequence, R = B * S, V vocabulary, N lanes: columns that are looked at
together.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftwise.engine.kernels.cuda.device_functions import log
from draftwise.engine.kernels.cuda.kernel_launch import interpreted, launch_next, pdl, wait
from draftwise.engine.kernels.sampling_constants import MIN_TEMPERATURE

_BLOCK, _BLOCKS, _WARPS = 4096, 4, 32
"""Columns that are loaded at once (8 bytes a thread of half precision), how often before they are looked at."""
_SLOTS = tl.constexpr(4)
"""Copies of a lane's logits."""
_MOST_COPIED = 256.0
"""Largest top_k to copy: beyond it a lane often has more logits than slots."""
_NUM_BITS = {torch.bfloat16: 16, torch.float16: 20, torch.float32: 32}
"""Leading bits of a float32 in which two values of the type can differ (1 + 8 + 10 for float16, made even)."""
_MIN_TEMPERATURE = tl.constexpr(MIN_TEMPERATURE)
_LOWEST_KEY = tl.constexpr(0x007FFFFF)
"""The key of -inf; those below it are of no number."""
_LOWEST = tl.constexpr(torch.finfo(torch.float32).min)
_LOG2_E = tl.constexpr(1.4426950408889634)


def find_floors(
    logits_BSV: Tensor,
    temperature_B: Tensor,
    top_k_B: Tensor,
    top_p_B: Tensor,
    min_p_B: Tensor,
    *,
    nucleus: bool = True,
    pending_BS: Tensor | None = None,
) -> Tensor:
    """Return [B, S] the least logit over temperature that may be drawn, see `tempering.find_floors`.

    Sums of probabilities are rounded differently there, so a token at the very edge of top_p may differ.

    Args:
        logits_BSV: any float type but float64.
        temperature_B: see `Tempering`, like the next three.
        nucleus: whether top-p counts.
        pending_BS: int32; rows at 0 get no floor. None: all get one.
    """
    num_rows, vocab_size = logits_BSV.shape[1:]
    rows_RV = logits_BSV.reshape(-1, vocab_size)
    floor_BS = torch.empty(logits_BSV.shape[:2], dtype=torch.float32, device=logits_BSV.device)
    copies_RN = torch.empty(len(rows_RV), _SLOTS.value * _BLOCK, dtype=logits_BSV.dtype, device=logits_BSV.device)
    _find_floor[(len(rows_RV),)](
        floor_BS,
        copies_RN,
        rows_RV,
        rows_RV.stride(0),
        *(each.contiguous() for each in (temperature_B, top_k_B, top_p_B, min_p_B)),
        vocab_size,
        num_rows,
        pending_BS,
        NUCLEUS=nucleus,
        SKIPS=pending_BS is not None,
        PASSES=_NUM_BITS[logits_BSV.dtype] // 2,
        BLOCK=_BLOCK,
        BLOCKS=_BLOCKS,
        MOST=_MOST_COPIED,
        EXACT=not interpreted(),
        PDL=pdl(),
        launch_pdl=pdl(),
        num_warps=_WARPS,
    )
    return floor_BS


@triton.jit
def _find_floor(
    floors,
    copies,
    logits,
    row_stride,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    V,
    S,
    pending,
    NUCLEUS: tl.constexpr,
    SKIPS: tl.constexpr,
    PASSES: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    MOST: tl.constexpr,
    EXACT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Write the floor of one row."""
    wait(PDL)
    launch_next(PDL)
    row = tl.program_id(0)
    logits += row.to(tl.int64) * row_stride
    copies += row.to(tl.int64) * (_SLOTS * BLOCK)
    scale, counts, weighs, top_k, top_p, min_p = _load_settings(temperatures, top_ks, top_ps, min_ps, row // S, V)
    floor = tl.full([], float("-inf"), tl.float32)
    weighs &= NUCLEUS
    wanted = counts | weighs | (min_p > 0)
    if SKIPS:
        wanted &= tl.load(pending + row) != 0
    if wanted:
        largest_N = _find_largest(logits, V, BLOCK, BLOCKS)
        largest = tl.max(largest_N, 0)
        if min_p > 0:
            floor = tl.div_rn(largest, scale) + log(min_p, EXACT)
        likely, bar = floor * scale, tl.full([], _LOWEST, tl.float32)
        source, width = logits, V
        if counts:  # all logits but those of -inf
            if top_k <= MOST:
                tl.store(copies + tl.arange(0, BLOCK), largest_N)
                tl.debug_barrier()
                reached = _search(copies, largest, 0.0, bar, top_k, True, BLOCK, PASSES, BLOCK, BLOCKS)
                tl.debug_barrier()
                slots = _copy(copies, logits, reached, V, BLOCK, BLOCKS)
                tl.debug_barrier()
                if slots <= _SLOTS:
                    source, width = copies, slots * BLOCK
            bar = _search(source, largest, 0.0, bar, top_k, True, width, PASSES, BLOCK, BLOCKS)
            floor = tl.maximum(floor, tl.div_rn(tl.minimum(bar, largest), scale))
        if weighs:
            bar = tl.maximum(bar, likely)
            least = _search(source, largest, _LOG2_E / scale, bar, top_p, False, width, PASSES, BLOCK, BLOCKS)
            floor = tl.maximum(floor, tl.div_rn(tl.minimum(least, largest), scale))
    tl.store(floors + row, floor)


@triton.jit
def _find_largest(logits, V, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    """Return [N] the largest logit of each lane of a row."""
    largest_N = tl.full([BLOCK], float("-inf"), tl.float32)
    whole = V // (BLOCK * BLOCKS) * (BLOCK * BLOCKS)
    for first in range(0, whole, BLOCK * BLOCKS):
        for i in tl.static_range(BLOCKS):
            largest_N = tl.maximum(largest_N, _load(logits, first + i * BLOCK, V, BLOCK, False))
    for first in range(whole, V, BLOCK):
        largest_N = tl.maximum(largest_N, _load(logits, first, V, BLOCK, True))
    return largest_N


@triton.jit
def _copy(copies, logits, reached, V, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    """Copy the logits from `reached` on, of each lane the last four; return the most of one lane."""
    none_N = tl.full([BLOCK], float("-inf"), tl.float32)
    found = (none_N, none_N, none_N, none_N, tl.zeros([BLOCK], tl.int32))
    whole = V // (BLOCK * BLOCKS) * (BLOCK * BLOCKS)
    for first in range(0, whole, BLOCK * BLOCKS):
        for i in tl.static_range(BLOCKS):
            found = _push(found, _load(logits, first + i * BLOCK, V, BLOCK, False), reached)
    for first in range(whole, V, BLOCK):
        found = _push(found, _load(logits, first, V, BLOCK, True), reached)
    last_N, second_N, third_N, fourth_N, number_N = found
    copies += tl.arange(0, BLOCK)
    tl.store(copies, last_N)
    tl.store(copies + BLOCK, second_N)
    tl.store(copies + 2 * BLOCK, third_N)
    tl.store(copies + 3 * BLOCK, fourth_N)
    return tl.max(number_N, 0)


@triton.jit
def _push(found, value_N, reached):
    """Return each lane's last four logits from `reached` on and their number, with those of a block."""
    last_N, second_N, third_N, fourth_N, number_N = found
    pushed_N = value_N >= reached
    fourth_N, third_N = tl.where(pushed_N, third_N, fourth_N), tl.where(pushed_N, second_N, third_N)
    second_N, last_N = tl.where(pushed_N, last_N, second_N), tl.where(pushed_N, value_N, last_N)
    return last_N, second_N, third_N, fourth_N, number_N + pushed_N.to(tl.int32)


@triton.jit
def _search(
    logits,
    largest,
    rate,
    bar,
    target,
    COUNTED: tl.constexpr,
    V,
    PASSES: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Return the largest value that as many of the logits from `bar` on reach as the target says.

    Args:
        rate: weights are 2 ** ((logit - largest) * rate).
        target: a count where COUNTED, else a share of the total weight.
    """
    key = tl.full([], 0, tl.int64)
    whole = V // (BLOCK * BLOCKS) * (BLOCK * BLOCKS)
    for index in range(PASSES):
        step = tl.full([], 1, tl.int64) << (30 - 2 * index)
        low = tl.maximum(_from_key(key + step), bar)
        middle = tl.maximum(_from_key(key + 2 * step), bar)
        high = tl.maximum(_from_key(key + 3 * step), bar)
        no_N = tl.zeros([BLOCK], tl.int32 if COUNTED else tl.float32)
        sums = (no_N, no_N, no_N, no_N)
        for first in range(0, whole, BLOCK * BLOCKS):
            for i in tl.static_range(BLOCKS):
                value_N = _load(logits, first + i * BLOCK, V, BLOCK, False)
                sums = _add(sums, value_N, largest, rate, bar, low, middle, high, COUNTED)
        for first in range(whole, V, BLOCK):
            value_N = _load(logits, first, V, BLOCK, True)
            sums = _add(sums, value_N, largest, rate, bar, low, middle, high, COUNTED)
        above_low_N, above_middle_N, above_high_N, total_N = sums
        wanted = target if COUNTED else target * tl.sum(total_N, 0)
        reached = (tl.sum(above_low_N, 0) >= wanted).to(tl.int64)
        reached += (tl.sum(above_middle_N, 0) >= wanted).to(tl.int64) + (tl.sum(above_high_N, 0) >= wanted)
        key += reached * step
    # Of a negative number the bits that were not searched are ones: keys count its magnitude downwards.
    unsearched: tl.constexpr = 2 ** (32 - 2 * PASSES) - 1
    return _from_key(tl.where(key < 2**31, key | unsearched, key))


@triton.jit
def _add(sums, value_N, largest, rate, bar, low, middle, high, COUNTED: tl.constexpr):
    """Return the numbers or weights of the logits above three candidates, and of all, with those of a block."""
    above_low_N, above_middle_N, above_high_N, total_N = sums
    if COUNTED:
        above_low_N += (value_N >= low).to(tl.int32)
        above_middle_N += (value_N >= middle).to(tl.int32)
        above_high_N += (value_N >= high).to(tl.int32)
    else:
        weight_N = tl.exp2((value_N - largest) * rate)
        above_low_N += tl.where(value_N >= low, weight_N, 0.0)
        above_middle_N += tl.where(value_N >= middle, weight_N, 0.0)
        above_high_N += tl.where(value_N >= high, weight_N, 0.0)
        total_N += tl.where(value_N >= bar, weight_N, 0.0)
    return above_low_N, above_middle_N, above_high_N, total_N


@triton.jit
def _load_settings(temperatures, top_ks, top_ps, min_ps, seq, V):
    """Return a sequence's temperature, whether it counts (top_k) and weighs (top_p), top_k, top_p and min_p."""
    temperature, top_k = tl.load(temperatures + seq), tl.load(top_ks + seq)
    top_p, min_p = tl.load(top_ps + seq), tl.load(min_ps + seq)
    sampled = temperature != 0
    scale = tl.maximum(temperature, _MIN_TEMPERATURE)
    min_p = tl.where(sampled, min_p, 0.0)
    return scale, sampled & (top_k > 0) & (top_k < V), sampled & (top_p < 1), top_k.to(tl.float32), top_p, min_p


@triton.jit
def _load(logits, first, V, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    """Return logits as float32; what lies beyond the row is below every candidate, and weighs nothing."""
    index_N = first + tl.arange(0, BLOCK)
    if MASKED:
        return tl.load(logits + index_N, mask=index_N < V, other=float("-inf")).to(tl.float32)
    return tl.load(logits + index_N).to(tl.float32)


@triton.jit
def _from_key(key):
    """Return the float32 of a key: keys, 0..2^32-1, are ordered as the numbers are."""
    key = tl.maximum(key, _LOWEST_KEY)
    bits = tl.where(key >= 2**31, key - 2**31, 2**32 - 1 - key)
    return bits.to(tl.uint32).to(tl.float32, bitcast=True)
