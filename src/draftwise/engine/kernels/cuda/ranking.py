"""Log-probabilities of a chosen token and of the likeliest ones, in one pass over the logits and a look at few blocks.

A program sums up a block of a row: its largest logit, its exponentials, how many logits reach the chosen one. The k
likeliest tokens lie in the k blocks with the largest logits: a program for each of these finds its likeliest. A third
kernel joins the blocks of each row.

Shape letters: R rows, V vocabulary, C blocks of a row, N columns of a block, T = 1 + k: the chosen token and the k
likeliest, K room for k.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftwise.engine.kernels.cuda.device_functions import LOWEST, log, to_index, to_key, to_score
from draftwise.engine.kernels.cuda.kernel_launch import interpreted, launch_next, pdl, wait

MOST_RANKED = 32
"""Tokens that can be asked for; each has a turn in a block."""
_FEW, _BLOCK_OF_FEW, _BLOCK = 8, 2048, 1024
"""Most tokens to rank in larger blocks (fewer to sum up, longer to look through), and both block sizes."""
_LOG2_E = tl.constexpr(1.4426950408889634)


def rank(logits_RV: Tensor, token_ids_R: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids_RT, logprobs_RT and ranks_R, see `logprobs.TokenRanks`; of equal tokens the first comes first.

    Args:
        logits_RV: any float type; -inf where a token cannot be.
        token_ids_R: int64, chosen tokens, not negative.
        k: at most `MOST_RANKED`, and no more than V.
    """
    num_rows, vocab_size = logits_RV.shape
    room, block = (_FEW, _BLOCK_OF_FEW) if k <= _FEW else (MOST_RANKED, _BLOCK)
    blocks = triton.cdiv(vocab_size, block)
    device = logits_RV.device
    sums_RC3 = torch.empty(num_rows, blocks, 3, dtype=torch.float32, device=device)
    best_RKK = torch.empty(num_rows, room, room, dtype=torch.int64, device=device)
    ids_RT = torch.empty(num_rows, 1 + k, dtype=torch.long, device=device)
    logprobs_RT = torch.empty(num_rows, 1 + k, dtype=torch.float32, device=device)
    ranks_R = torch.empty(num_rows, dtype=torch.long, device=device)
    rows = logits_RV, logits_RV.stride(0)
    form = {"PDL": pdl(), "launch_pdl": pdl(), "num_warps": 4}
    width = {"ROOM": room, "BLOCKS": triton.next_power_of_2(blocks)}
    _sum_block[(num_rows, blocks)](*rows, vocab_size, token_ids_R, sums_RC3, BLOCK=block, **form)
    if k:
        found = sums_RC3, blocks, best_RKK, k
        _find_likeliest[(num_rows, min(k, blocks))](*rows, vocab_size, *found, BLOCK=block, **width, **form)
    results = ids_RT, logprobs_RT, ranks_R
    exact = not interpreted()
    _join_blocks[(num_rows,)](*rows, token_ids_R, sums_RC3, blocks, best_RKK, k, *results, EXACT=exact, **width, **form)
    return ids_RT, logprobs_RT, ranks_R


@triton.jit(do_not_specialize=["V"])
def _sum_block(logits, row_stride, V, chosen_ids, sums, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Look at one block of one row."""
    wait(PDL)
    launch_next(PDL)
    row, part = tl.program_id(0), tl.program_id(1)
    logits += row.to(tl.int64) * row_stride
    chosen = tl.load(logits + tl.load(chosen_ids + row)).to(tl.float32)
    index_N = part * BLOCK + tl.arange(0, BLOCK)
    value_N = tl.load(logits + index_N, mask=index_N < V, other=float("-inf")).to(tl.float32)
    largest = tl.max(value_N, 0)
    total = tl.sum(tl.exp2((value_N - tl.where(largest == float("-inf"), 0.0, largest)) * _LOG2_E), 0)
    sums += (row * tl.num_programs(1) + part) * 3
    tl.store(sums, largest)
    tl.store(sums + 1, total)
    tl.store(sums + 2, tl.sum(((value_N >= chosen) & (index_N < V)).to(tl.int32), 0).to(tl.float32))


@triton.jit(do_not_specialize=["V", "blocks", "k"])
def _find_likeliest(
    logits,
    row_stride,
    V,
    sums,
    blocks,
    best,
    k,
    BLOCK: tl.constexpr,
    ROOM: tl.constexpr,
    BLOCKS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Write the likeliest tokens of one of the k blocks of a row that have the largest logits: of the i-th, k - i."""
    wait(PDL)
    launch_next(PDL)
    row, place = tl.program_id(0), tl.program_id(1)
    part_C = tl.arange(0, BLOCKS)
    largest_C = tl.load(sums + (row * blocks + part_C) * 3, mask=part_C < blocks, other=0.0)
    key_C = tl.where(part_C < blocks, to_key(largest_C, part_C), LOWEST)
    before = 0
    while before < place:
        key_C = tl.where(key_C == tl.max(key_C, 0), LOWEST, key_C)
        before += 1
    part = to_index(tl.max(key_C, 0)).to(tl.int32)
    index_N = part * BLOCK + tl.arange(0, BLOCK)
    value_N = tl.load(logits + row.to(tl.int64) * row_stride + index_N, mask=index_N < V, other=0.0).to(tl.float32)
    key_N = tl.where(index_N < V, to_key(value_N, index_N), LOWEST)
    best += (row * ROOM + place) * ROOM
    i = 0
    while i < k - place:
        key = tl.max(key_N, 0)
        tl.store(best + i, key)
        key_N = tl.where(key_N == key, LOWEST, key_N)
        i += 1


@triton.jit(do_not_specialize=["blocks", "k"])
def _join_blocks(
    logits,
    row_stride,
    chosen_ids,
    sums,
    blocks,
    best,
    k,
    ids,
    logprobs,
    ranks,
    EXACT: tl.constexpr,
    ROOM: tl.constexpr,
    BLOCKS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Write what is asked of one row."""
    wait(PDL)
    launch_next(PDL)
    row = tl.program_id(0)
    part_C = tl.arange(0, BLOCKS)
    there_C = part_C < blocks
    sums += (row * blocks + part_C) * 3
    largest_C = tl.load(sums, mask=there_C, other=float("-inf"))
    largest = tl.max(largest_C, 0)
    shares_C = tl.load(sums + 1, mask=there_C, other=0.0) * tl.exp2((largest_C - largest) * _LOG2_E)
    total = log(tl.sum(shares_C, 0), EXACT)
    tl.store(ranks + row, tl.sum(tl.load(sums + 2, mask=there_C, other=0.0), 0).to(tl.int64))
    chosen_id = tl.load(chosen_ids + row)
    chosen = tl.load(logits + row.to(tl.int64) * row_stride + chosen_id).to(tl.float32)
    ids += row * (k + 1)
    logprobs += row * (k + 1)
    tl.store(ids, chosen_id)
    tl.store(logprobs, chosen - largest - total)
    index_M = tl.arange(0, ROOM * ROOM)
    exists_M = (index_M // ROOM < blocks) & (index_M // ROOM + index_M % ROOM < k)
    key_M = tl.load(best + row * ROOM * ROOM + index_M, mask=exists_M, other=LOWEST)
    for i in range(k):
        key = tl.max(key_M, 0)
        tl.store(ids + 1 + i, to_index(key))
        tl.store(logprobs + 1 + i, to_score(key) - largest - total)
        key_M = tl.where(key_M == key, LOWEST, key_M)
