"""Finds on the GPU, without sorting, the least logit that min_p, top-k and top-p leave of each row.

The k-th largest logit is the largest value T with count(x >= T) >= k, and the least one of a nucleus the largest T with
mass(x >= T) >= p. Both are found from their bits, two a pass, the highest first: a pass counts or weighs the logits
above three candidates. Half precision has fewer bits to find. Rows are divided into parts of one size, however many
rows there are, so that sums are always rounded alike; the next pass adds up the parts of the one before.

A row takes two searches only if it asks for top-k and top-p; the second is then among what the first left.

Shape letters: B sequences, S rows of logits a sequence, R = B * S, V vocabulary, C parts of a row, P passes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftwise.engine.kernels.constants import MIN_TEMPERATURE
from draftwise.engine.kernels.cuda.launch import interpreted, launch_next, pdl, wait
from draftwise.engine.kernels.cuda.maths import log

__all__ = ["find_floors"]

_PART_SIZE = 4096
_BLOCK = 1024
"""Columns that a program looks at together."""
_NUM_BITS = {torch.bfloat16: 16, torch.float16: 20, torch.float32: 32}
"""Leading bits of a float32 in which two values of the type can differ (1 + 8 + 10 for float16, made even)."""
_MIN_TEMPERATURE = tl.constexpr(MIN_TEMPERATURE)
_LOWEST_KEY = tl.constexpr(0x007FFFFF)
"""The key of -inf; those below it are of no number."""
_LOWEST = tl.constexpr(torch.finfo(torch.float32).min)
_LOG2_E = tl.constexpr(1.4426950408889634)


def find_floors(logits_BSV: Tensor, temperature_B: Tensor, top_k_B: Tensor, top_p_B: Tensor, min_p_B: Tensor) -> Tensor:
    """Return [B, S] the least logit over temperature that may be drawn, see `tempering.find_floors`.

    Sums of probabilities are rounded differently there, so a token at the very edge of top_p may differ.
    """
    num_rows, vocab_size = logits_BSV.shape[1:]
    rows_RV = logits_BSV.reshape(-1, vocab_size)
    count, parts = len(rows_RV), triton.cdiv(vocab_size, _PART_SIZE)
    num_bits = _NUM_BITS[logits_BSV.dtype]
    floor_BS = torch.empty(logits_BSV.shape[:2], dtype=torch.float32, device=logits_BSV.device)
    most_RC = floor_BS.new_empty(count, parts)
    sums_PRC4 = floor_BS.new_empty(num_bits, count, parts, 4)
    keys_PR = torch.empty(num_bits, count, dtype=torch.long, device=logits_BSV.device)
    settings = [each.contiguous() for each in (temperature_B, top_k_B, top_p_B, min_p_B)]
    found = (*settings, most_RC, sums_PRC4, keys_PR, vocab_size, num_rows, count, parts)
    options = {"PASSES": num_bits // 2, "C_PADDED": triton.next_power_of_2(parts), "EXACT": not interpreted()}
    launch = {"PDL": pdl(), "launch_pdl": pdl(), "num_warps": 4}
    division = {"PART_SIZE": _PART_SIZE, "BLOCK": _BLOCK}
    grid, stride = (count, parts), rows_RV.stride(0)
    _find_most[grid](rows_RV, stride, most_RC, vocab_size, parts, **division, **launch)
    for index in range(num_bits):
        _weigh_part[grid](rows_RV, stride, index, *found, **options, **division, **launch)
    _find_floor[(count,)](floor_BS, *found, **options, **launch)
    return floor_BS


@triton.jit
def _find_most(logits, row_stride, most, V, C, PART_SIZE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Write the largest logit of one part of one row."""
    wait(PDL)
    launch_next(PDL)
    row, part = tl.program_id(0), tl.program_id(1)
    logits += row.to(tl.int64) * row_stride
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    for first in tl.static_range(0, PART_SIZE, BLOCK):
        largest = tl.maximum(largest, _load(logits, part * PART_SIZE + first + tl.arange(0, BLOCK), V))
    tl.store(most + row * C + part, tl.max(largest, 0))


@triton.jit(do_not_specialize=["index", "R"])
def _weigh_part(
    logits,
    row_stride,
    index,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    most,
    sums,
    keys,
    V,
    S,
    R,
    C,
    PASSES: tl.constexpr,
    C_PADDED: tl.constexpr,
    EXACT: tl.constexpr,
    PART_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Do one part of one row in pass `index`, 0..2 * PASSES - 1: the weights above three candidates, and of all."""
    wait(PDL)
    launch_next(PDL)
    row, part = tl.program_id(0), tl.program_id(1)
    scale, counts, weighs, top_k, top_p, min_p = _load_settings(temperatures, top_ks, top_ps, min_ps, row // S, V)
    second = index >= PASSES
    if tl.where(second, counts & weighs, counts | weighs):
        largest = _largest(most, row, C, C_PADDED)
        # Where logits are counted, all but those of -inf weigh 1.
        rate, bar = tl.full([], 0, tl.float32), tl.full([], _LOWEST, tl.float32)
        if second | (counts == 0):
            rate = _LOG2_E / scale
            bar = tl.maximum(bar, _min_p_floor(largest, scale, min_p, EXACT) * scale)
        if second:
            bar = tl.maximum(bar, _search_end(sums, keys, PASSES - 1, row, R, C, top_k, True, PASSES, C_PADDED))
        key = tl.full([], 0, tl.int64)
        if index % PASSES != 0:
            counted = counts & (index < PASSES)
            key = _after(sums, keys, index - 1, row, R, C, tl.where(counted, top_k, top_p), counted, PASSES, C_PADDED)
        if part == 0:
            tl.store(keys + index * R + row, key)
        step = tl.full([], 1, tl.int64) << (30 - 2 * (index % PASSES))
        low, middle, high = _from_key(key + step), _from_key(key + 2 * step), _from_key(key + 3 * step)
        above_low = tl.zeros([BLOCK], tl.float32)
        above_middle, above_high, total = above_low, above_low, above_low
        logits += row.to(tl.int64) * row_stride
        for first in tl.static_range(0, PART_SIZE, BLOCK):
            value = _load(logits, part * PART_SIZE + first + tl.arange(0, BLOCK), V)
            heavy = value >= bar
            weight = tl.where(heavy, tl.exp2((tl.where(heavy, value, largest) - largest) * rate), 0.0)
            above_low += tl.where(value >= low, weight, 0.0)
            above_middle += tl.where(value >= middle, weight, 0.0)
            above_high += tl.where(value >= high, weight, 0.0)
            total += weight
        place = sums + ((index * R + row) * C + part) * 4
        tl.store(place, tl.sum(above_low, 0))
        tl.store(place + 1, tl.sum(above_middle, 0))
        tl.store(place + 2, tl.sum(above_high, 0))
        tl.store(place + 3, tl.sum(total, 0))


@triton.jit(do_not_specialize=["R"])
def _find_floor(
    floors,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    most,
    sums,
    keys,
    V,
    S,
    R,
    C,
    PASSES: tl.constexpr,
    C_PADDED: tl.constexpr,
    EXACT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Write the floor of one row."""
    wait(PDL)
    launch_next(PDL)
    row = tl.program_id(0)
    scale, counts, weighs, top_k, top_p, min_p = _load_settings(temperatures, top_ks, top_ps, min_ps, row // S, V)
    largest = _largest(most, row, C, C_PADDED)
    floor = _min_p_floor(largest, scale, min_p, EXACT)
    if counts | weighs:
        target = tl.where(counts, top_k, top_p)
        least = _search_end(sums, keys, PASSES - 1, row, R, C, target, counts, PASSES, C_PADDED)
        floor = tl.maximum(floor, tl.div_rn(tl.minimum(least, largest), scale))
    if counts & weighs:
        least = _search_end(sums, keys, 2 * PASSES - 1, row, R, C, top_p, False, PASSES, C_PADDED)
        floor = tl.maximum(floor, tl.div_rn(tl.minimum(least, largest), scale))
    tl.store(floors + row, floor)


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
def _largest(most, row, C, C_PADDED: tl.constexpr):
    """Return the largest logit of a row."""
    part = tl.arange(0, C_PADDED)
    return tl.max(tl.load(most + row * C + part, mask=part < C, other=float("-inf")), 0)


@triton.jit
def _min_p_floor(largest, scale, min_p, EXACT: tl.constexpr):
    """Return the least logit over temperature that min_p leaves."""
    floor = tl.full([], float("-inf"), tl.float32)
    if min_p > 0:
        floor = tl.div_rn(largest, scale) + log(min_p, EXACT)
    return floor


@triton.jit
def _after(sums, keys, index, row, R, C, target, counted, PASSES: tl.constexpr, C_PADDED: tl.constexpr):
    """Return the key that pass `index` has found: it has so many of the candidates above it as reach the target.

    Args:
        target: a count, or a share of the total weight.
        counted: which of the two.
    """
    part, which = tl.arange(0, C_PADDED), tl.arange(0, 4)
    place = sums + ((index * R + row) * C + part[None, :]) * 4 + which[:, None]
    sums_4 = tl.sum(tl.load(place, mask=part[None, :] < C, other=0.0), 1)
    total = tl.sum(tl.where(which == 3, sums_4, 0.0), 0)
    wanted = tl.where(counted, target, target * total)
    reached = tl.sum(((sums_4 >= wanted) & (which < 3)).to(tl.int64), 0)
    return tl.load(keys + index * R + row) + (reached << (30 - 2 * (index % PASSES)))


@triton.jit
def _search_end(sums, keys, index, row, R, C, target, counted, PASSES: tl.constexpr, C_PADDED: tl.constexpr):
    """Return the value that a search has found with pass `index`, its last."""
    key = _after(sums, keys, index, row, R, C, target, counted, PASSES, C_PADDED)
    # Of a negative number the bits that were not searched are ones: keys count its magnitude downwards.
    unsearched: tl.constexpr = 2 ** (32 - 2 * PASSES) - 1
    return _from_key(tl.where(key < 2**31, key | unsearched, key))


@triton.jit
def _load(logits, index, V):
    """Return logits as float32; what lies beyond the row is below every candidate, and weighs nothing."""
    return tl.load(logits + index, mask=index < V, other=float("-inf")).to(tl.float32)


@triton.jit
def _from_key(key):
    """Return the float32 of a key: keys, 0..2^32-1, are ordered as the numbers are."""
    key = tl.maximum(key, _LOWEST_KEY)
    bits = tl.where(key >= 2**31, key - 2**31, 2**32 - 1 - key)
    return bits.to(tl.uint32).to(tl.float32, bitcast=True)
