"""Finds on the GPU, without sorting, the least logit that min_p, top-k and top-p leave of each row.

The k-th largest logit is the largest value T with count(x >= T) >= k, and the least one of a nucleus the largest T with
mass(x >= T) >= p. Both are found from their bits, two a pass, the highest first: a pass counts or weighs the logits
above three candidates. Half precision has fewer bits to find, and one program a row reads the row from the L2 cache.

Shape letters: B sequences, S rows of logits a sequence, R = B * S, V vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftwise.engine.kernels.cuda.launch import interpreted, launch_next, pdl, wait
from draftwise.engine.sampling import MIN_TEMPERATURE

__all__ = ["find_floors"]

_BLOCK = 4096
_NUM_BITS = {torch.bfloat16: 16, torch.float16: 20, torch.float32: 32}
"""Leading bits of a float32 in which two values of the type can differ (1 + 8 + 10 for float16, made even)."""
_MIN_TEMPERATURE = tl.constexpr(MIN_TEMPERATURE)
_LOWEST = tl.constexpr(0x007FFFFF)
"""The key of -inf; those below it are of no number."""
_LOG2_E = tl.constexpr(1.4426950408889634)


def find_floors(logits_BSV: Tensor, temperature_B: Tensor, top_k_B: Tensor, top_p_B: Tensor, min_p_B: Tensor) -> Tensor:
    """Return [B, S] the least logit over temperature that may be drawn, see `engine.sampling.find_floors`.

    Sums of probabilities are rounded differently there, so a token at the very edge of top_p may differ.
    """
    num_rows, vocab_size = logits_BSV.shape[1:]
    rows_RV = logits_BSV.reshape(-1, vocab_size)
    floor_BS = torch.empty(logits_BSV.shape[:2], dtype=torch.float32, device=logits_BSV.device)
    settings = [each.contiguous() for each in (temperature_B, top_k_B, top_p_B, min_p_B)]
    _find_floor[(len(rows_RV),)](
        *(rows_RV, *settings, floor_BS, rows_RV.stride(0), vocab_size, num_rows),
        NUM_BITS=_NUM_BITS[logits_BSV.dtype],
        BLOCK=min(_BLOCK, triton.next_power_of_2(vocab_size)),
        EXACT_LOG=not interpreted(),
        PDL=pdl(),
        num_warps=16,
        launch_pdl=pdl(),
    )
    return floor_BS


@triton.jit
def _find_floor(
    logits,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    floors,
    row_stride,
    V,
    S,
    NUM_BITS: tl.constexpr,
    BLOCK: tl.constexpr,
    EXACT_LOG: tl.constexpr,
    PDL: tl.constexpr,
):
    """Write the floor of one row."""
    wait(PDL)
    launch_next(PDL)
    row = tl.program_id(0)
    seq = row // S
    temperature, top_k = tl.load(temperatures + seq), tl.load(top_ks + seq)
    top_p, min_p = tl.load(top_ps + seq), tl.load(min_ps + seq)
    logits += row.to(tl.int64) * row_stride
    floor, bar = float("-inf"), float("-inf")
    if temperature != 0:
        scale = tl.maximum(temperature, _MIN_TEMPERATURE)
        most = _maximum(logits, V, BLOCK)
        if min_p > 0:
            floor = tl.div_rn(most, scale) + _log(min_p, EXACT_LOG)
            bar = floor * scale
        if (top_k > 0) & (top_k < V):
            least = _search(logits, V, most, float("-inf"), 0.0, top_k.to(tl.float32), False, NUM_BITS, BLOCK)
            floor, bar = tl.maximum(floor, tl.div_rn(least, scale)), tl.maximum(bar, least)
        if top_p < 1:
            least = _search(logits, V, most, bar, _LOG2_E / scale, top_p, True, NUM_BITS, BLOCK)
            floor = tl.maximum(floor, tl.div_rn(least, scale))
    tl.store(floors + row, floor)


@triton.jit
def _maximum(logits, V, BLOCK: tl.constexpr):
    """Return the largest logit of a row."""
    lane = tl.arange(0, BLOCK)
    most = tl.full([BLOCK], float("-inf"), tl.float32)
    first = 0
    while first < V:
        most = tl.maximum(most, _load(logits, tl.multiple_of(first, BLOCK) + lane, V))
        first += BLOCK
    return tl.max(most, 0)


@triton.jit
def _search(logits, V, most, bar, rate, target, WEIGHS: tl.constexpr, NUM_BITS: tl.constexpr, BLOCK: tl.constexpr):
    """Return the largest value T of which the logits from T up reach the target.

    Args:
        most: the largest logit.
        bar: logits below it weigh nothing.
        rate: by which power of 2 a logit's weight falls when it is 1 lower.
        target: a count, or a share of the total weight.
        WEIGHS: weigh logits instead of counting them.
    """
    lane = tl.arange(0, BLOCK)
    key, shift = tl.full([], 0, tl.int64), tl.full([], 30, tl.int64)
    while shift >= 32 - NUM_BITS:
        step = tl.full([], 1, tl.int64) << shift
        low, middle, high = _from_key(key + step), _from_key(key + 2 * step), _from_key(key + 3 * step)
        above_low, above_middle, above_high, total = (
            tl.zeros([BLOCK], tl.float32),
            tl.zeros([BLOCK], tl.float32),
            tl.zeros([BLOCK], tl.float32),
            tl.zeros([BLOCK], tl.float32),
        )
        first = 0
        while first < V:
            value = _load(logits, tl.multiple_of(first, BLOCK) + lane, V)
            weight = tl.full([BLOCK], 1.0, tl.float32)
            if WEIGHS:
                weight = tl.where(value >= bar, tl.exp2((value - most) * rate), 0.0)
                total += weight
            above_low += tl.where(value >= low, weight, 0.0)
            above_middle += tl.where(value >= middle, weight, 0.0)
            above_high += tl.where(value >= high, weight, 0.0)
            first += BLOCK
        wanted = target * tl.sum(total, 0) if WEIGHS else target
        reached = (tl.sum(above_low, 0) >= wanted).to(tl.int64) + (tl.sum(above_middle, 0) >= wanted).to(tl.int64)
        key += step * (reached + (tl.sum(above_high, 0) >= wanted).to(tl.int64))
        shift -= 2
    # Of a negative number the bits that were not searched are ones: keys count its magnitude downwards.
    unsearched = (tl.full([], 1, tl.int64) << (32 - NUM_BITS)) - 1
    return tl.minimum(_from_key(tl.where(key < 2**31, key | unsearched, key)), most)


@triton.jit
def _load(logits, index, V):
    """Return logits as float32; what lies beyond the row is below every candidate, and weighs nothing."""
    return tl.load(logits + index, mask=index < V, other=float("-inf")).to(tl.float32)


@triton.jit
def _from_key(key):
    """Return the float32 of a key: keys, 0..2^32-1, are ordered as the numbers are."""
    key = tl.maximum(key, _LOWEST)
    bits = tl.where(key >= 2**31, key - 2**31, 2**32 - 1 - key)
    return bits.to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def _log(value, EXACT_LOG: tl.constexpr):
    if EXACT_LOG:
        return tl.extra.cuda.libdevice.log(value)
    return tl.log(value)
