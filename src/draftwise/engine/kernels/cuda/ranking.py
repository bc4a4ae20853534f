"""Log-probabilities of a chosen token and of the likeliest ones, in one pass over the logits.

A program looks at a block of a row: what its exponentials add up to, how many logits reach the chosen one, and which
are its largest. A second kernel joins the blocks of each row.

Shape letters: R rows, V vocabulary, C blocks of a row, N columns of a block, T = 1 + k: the chosen token and the k
likeliest, K room for k.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftwise.engine.kernels.cuda.keys import LOWEST, to_index, to_key, to_score
from draftwise.engine.kernels.cuda.launch import interpreted, launch_next, pdl, wait
from draftwise.engine.kernels.cuda.maths import log

__all__ = ["MOST_RANKED", "rank"]

MOST_RANKED = 32
"""Tokens that can be asked for; a block gives each of them a turn."""
_FEW = 8
_BLOCK = 4096
_LOG2_E = tl.constexpr(1.4426950408889634)


def rank(logits_RV: Tensor, token_ids_R: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids_RT, logprobs_RT and ranks_R, see `sampling.logprobs.Ranked`; of equal tokens the first comes first.

    Args:
        logits_RV: any float type; -inf where a token cannot be.
        token_ids_R: int64, chosen tokens, not negative.
        k: at most `MOST_RANKED`, and no more than V.
    """
    num_rows, vocab_size = logits_RV.shape
    blocks, room = triton.cdiv(vocab_size, _BLOCK), _FEW if k <= _FEW else MOST_RANKED
    device = logits_RV.device
    sums_RC3 = torch.empty(num_rows, blocks, 3, dtype=torch.float32, device=device)
    best_RCK = torch.empty(num_rows, blocks, room, dtype=torch.int64, device=device)
    ids_RT = torch.empty(num_rows, 1 + k, dtype=torch.long, device=device)
    logprobs_RT = torch.empty(num_rows, 1 + k, dtype=torch.float32, device=device)
    ranks_R = torch.empty(num_rows, dtype=torch.long, device=device)
    parts = logits_RV, logits_RV.stride(0), token_ids_R, sums_RC3, best_RCK
    form = {"ROOM": room, "PDL": pdl(), "launch_pdl": pdl()}
    _rank_block[(num_rows, blocks)](*parts, vocab_size, k, BLOCK=_BLOCK, num_warps=8, **form)
    _join_blocks[(num_rows,)](
        *parts,
        ids_RT,
        logprobs_RT,
        ranks_R,
        blocks,
        k,
        BLOCKS=triton.next_power_of_2(blocks),
        EXACT=not interpreted(),
        num_warps=4,
        **form,
    )
    return ids_RT, logprobs_RT, ranks_R


@triton.jit(do_not_specialize=["V", "k"])
def _rank_block(
    logits,
    row_stride,
    chosen_ids,
    sums,
    best,
    V,
    k,
    BLOCK: tl.constexpr,
    ROOM: tl.constexpr,
    PDL: tl.constexpr,
):
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
    place = row * tl.num_programs(1) + part
    tl.store(sums + place * 3, largest)
    tl.store(sums + place * 3 + 1, total)
    tl.store(sums + place * 3 + 2, tl.sum(((value_N >= chosen) & (index_N < V)).to(tl.int32), 0).to(tl.float32))
    key_N = tl.where(index_N < V, to_key(value_N, index_N), LOWEST)
    for i in range(k):
        key = tl.max(key_N, 0)
        tl.store(best + place * ROOM + i, key)
        key_N = tl.where(key_N == key, LOWEST, key_N)


@triton.jit(do_not_specialize=["blocks", "k"])
def _join_blocks(
    logits,
    row_stride,
    chosen_ids,
    sums,
    best,
    ids,
    logprobs,
    ranks,
    blocks,
    k,
    BLOCKS: tl.constexpr,
    EXACT: tl.constexpr,
    ROOM: tl.constexpr,
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
    index_M = tl.arange(0, BLOCKS * ROOM)
    exists_M = (index_M // ROOM < blocks) & (index_M % ROOM < k)
    key_M = tl.load(best + row * blocks * ROOM + index_M, mask=exists_M, other=LOWEST)
    for i in range(k):
        key = tl.max(key_M, 0)
        tl.store(ids + 1 + i, to_index(key))
        tl.store(logprobs + 1 + i, to_score(key) - largest - total)
        key_M = tl.where(key_M == key, LOWEST, key_M)
