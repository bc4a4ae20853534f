"""Runs a step of prompt lookup in one Triton kernel: appends tokens, finds the longest known suffix, drafts.

Shape letters: S slots, B sequences, W rows that a sequence can have at most, L columns of a slot, K draft tokens.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftwise.engine.kernels.cuda.kernel_launch import launch_next, pdl, wait

_PER_THREAD = 8
"""Positions that a thread compares at a time."""
_LONG = 16_384
"""Context from which the loop sets the time: twice the threads then make half as many turns."""


def append_and_look_up(
    tokens_SL: Tensor,
    slots_B: Tensor,
    starts_B: Tensor,
    lengths_B: Tensor,
    tokens_N: Tensor,
    limits_B: Tensor,
    *,
    k: int,
    shortest: int,
    longest: int,
) -> tuple[Tensor, Tensor]:
    """Write each sequence's new tokens and draft what followed the earliest occurrence of its longest known suffix.

    One program serves a sequence and reads as much of its slot as it has tokens.

    Args:
        tokens_SL: int32; position p of a sequence is column `longest + p`, before which no token stands; the last
            column is not used.
        slots_B: int64, row of each sequence.
        starts_B: int64, position of its first new token.
        lengths_B: int64, how many are new.
        tokens_N: int64 [B * W], the new tokens, W rows a sequence.
        limits_B: int64, draft tokens wanted at most.
        shortest: a suffix of fewer tokens does not count.
        longest: most tokens to compare of a suffix.

    Returns:
        int64 tokens_BK, 0 behind a draft's end, and int64 lengths_B.
    """
    num_seqs, columns = len(slots_B), tokens_SL.shape[1]
    drafts_BK = torch.empty(num_seqs, k, dtype=torch.long, device=tokens_SL.device)
    sizes_B = torch.empty_like(lengths_B)
    width = len(tokens_N) // num_seqs
    dependent = pdl()
    num_warps = 16 if columns < _LONG else 32
    _append_and_look_up[(num_seqs,)](
        tokens_SL,
        slots_B,
        starts_B,
        lengths_B,
        tokens_N,
        limits_B,
        drafts_BK,
        sizes_B,
        columns,
        columns - longest - 1,
        WIDTH=width,
        WIDTH_BLOCK=triton.next_power_of_2(width),
        K=k,
        K_BLOCK=triton.next_power_of_2(k),
        SHORTEST=shortest,
        LONGEST=longest,
        BLOCK=32 * num_warps * _PER_THREAD,
        PDL=dependent,
        num_warps=num_warps,
        launch_pdl=dependent,
    )
    return drafts_BK, sizes_B


@triton.jit
def _append_and_look_up(
    tokens,
    slots,
    starts,
    lengths,
    new,
    limits,
    drafts,
    sizes,
    columns,
    max_len,
    WIDTH: tl.constexpr,
    WIDTH_BLOCK: tl.constexpr,
    K: tl.constexpr,
    K_BLOCK: tl.constexpr,
    SHORTEST: tl.constexpr,
    LONGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    launch_next(PDL)
    wait(PDL)
    text = tokens + tl.load(slots + b) * columns + LONGEST  # of position 0
    start = tl.load(starts + b).to(tl.int32)
    length = tl.load(lengths + b).to(tl.int32)
    limit = tl.load(limits + b).to(tl.int32)
    rows = tl.arange(0, WIDTH_BLOCK)
    added = tl.load(new + b * WIDTH + rows, mask=rows < WIDTH, other=0)
    tl.store(text + start + rows, added.to(tl.int32), mask=(rows < length) & (start + rows < max_len))
    tl.debug_barrier()  # other threads read what this one wrote
    end = start + length
    budget = tl.minimum(tl.minimum(limit, K), max_len - end)
    begin = _continuation(text, tl.where(budget > 0, end, 0), SHORTEST, LONGEST, BLOCK)
    count = tl.maximum(tl.minimum(budget, end - begin), 0)
    steps = tl.arange(0, K_BLOCK)
    draft = tl.load(text + begin + steps, mask=steps < count, other=0)
    tl.store(drafts + b * K + steps, draft.to(tl.int64), mask=steps < K)
    tl.store(sizes + b, count.to(tl.int64))


@triton.jit
def _continuation(text, end, SHORTEST: tl.constexpr, LONGEST: tl.constexpr, BLOCK: tl.constexpr):
    """Return where the earliest occurrence of the longest known suffix of text[:end] ends; `end` without one."""
    lanes = tl.arange(0, BLOCK)
    best = tl.zeros([BLOCK], tl.int32)
    places = tl.zeros([BLOCK], tl.int32)
    first = 0
    while first < end - 1:
        positions = first + lanes
        equal = positions < end - 1
        size = tl.zeros([BLOCK], tl.int32)
        for back in tl.static_range(LONGEST):
            # The margin before position 0 equals no token, so that no comparison goes beyond it.
            token = tl.load(text + positions - back, mask=equal, other=-1)
            equal = equal & (token == tl.load(text + end - 1 - back))
            size += equal.to(tl.int32)
        places = tl.where(size > best, positions, places)
        best = tl.maximum(size, best)
        first += BLOCK
    longest = tl.max(best, axis=0)
    earliest = tl.min(tl.where(best == longest, places, end), axis=0)
    return tl.where(longest >= SHORTEST, earliest + 1, end)
