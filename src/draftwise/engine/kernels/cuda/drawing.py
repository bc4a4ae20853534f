"""Draws tokens from logits on the GPU, with counter-based noise that is never stored.

In two draws, as `sampling.tempering.draw`, which defines it: one program for each group of a row adds up what its
tokens weigh; then one for each row draws a group, and a token of it. A group is always summed up in the same order,
however many rows there are, so that a row's token does not depend on the others.

Shape letters: B sequences, S = K+1 rows of logits a sequence, R = B * S, V vocabulary, G groups of a row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftwise.engine.kernels.constants import GROUP, GROUPS, MIN_TEMPERATURE
from draftwise.engine.kernels.cuda.keys import LOWEST, to_index, to_key
from draftwise.engine.kernels.cuda.launch import interpreted, launch_next, pdl, wait
from draftwise.engine.kernels.cuda.maths import log
from draftwise.engine.kernels.cuda.noise import row_bits, to_gumbel, token_bits

__all__ = ["draw_rows", "group_noise", "temper"]

_MIN_TEMPERATURE, _GROUPS = tl.constexpr(MIN_TEMPERATURE), tl.constexpr(GROUPS)


def draw_rows(
    logits_BSV: Tensor,
    temperature_B: Tensor | None,
    *,
    seeds_B: Tensor,
    positions_B: Tensor,
    lane: int,
    floor_BS: Tensor | None = None,
) -> Tensor:
    """Return a token of each row drawn from softmax(logits / temperature), see `tempering.draw`."""
    num_seqs, num_rows, vocab_size = logits_BSV.shape
    rows_RV = logits_BSV.reshape(-1, vocab_size)
    count, num_groups = len(rows_RV), triton.cdiv(vocab_size, GROUP)
    keys_RG = torch.empty(count, num_groups, dtype=torch.long, device=logits_BSV.device)
    tokens_BS = keys_RG.new_empty(num_seqs, num_rows)
    settings = [each if each is None else each.contiguous() for each in (seeds_B, positions_B, temperature_B, floor_BS)]
    given = (rows_RV, rows_RV.stride(0), vocab_size, num_rows, *settings, keys_RG)
    form = {
        "LANE": lane,
        "GROUP": GROUP,
        "TEMPERED": temperature_B is not None,
        "CUTS": floor_BS is not None,
        "EXACT": not interpreted(),
        "PDL": pdl(),
        "launch_pdl": pdl(),
    }
    _weigh_group[(count, num_groups)](*given, num_warps=4, **form)
    _draw_of_group[(count,)](
        *given, tokens_BS, num_groups, G_PADDED=triton.next_power_of_2(num_groups), num_warps=8, **form
    )
    return tokens_BS


@triton.jit
def _weigh_group(
    logits,
    row_stride,
    V,
    S,
    seeds,
    positions,
    temperatures,
    floors,
    keys,
    LANE: tl.constexpr,
    GROUP: tl.constexpr,
    TEMPERED: tl.constexpr,
    CUTS: tl.constexpr,
    EXACT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Write the key of one group of one row: of its weight and noise, of its largest logit where the row is greedy."""
    wait(PDL)
    launch_next(PDL)
    row, group = tl.program_id(0), tl.program_id(1)
    temperature = tl.full([], 1.0, tl.float32)
    if TEMPERED:
        temperature = tl.load(temperatures + row // S)
    index = group * GROUP + tl.arange(0, GROUP)
    value = temper(logits + row.to(tl.int64) * row_stride, index, V, temperature, floors, row, CUTS)
    score = tl.max(value, 0)
    if (temperature != 0) & (score > float("-inf")):
        bits = row_bits(tl.load(seeds + row // S), tl.load(positions + row // S) + row % S, LANE)
        # (The last bits of exponentials do not matter to their sum.)
        score += log(tl.sum(tl.exp(value - score), 0), EXACT) + group_noise(bits, group, EXACT)
    tl.store(keys + row * tl.num_programs(1) + group, to_key(score, group))


@triton.jit(do_not_specialize=["G"])
def _draw_of_group(
    logits,
    row_stride,
    V,
    S,
    seeds,
    positions,
    temperatures,
    floors,
    keys,
    tokens,
    G,
    LANE: tl.constexpr,
    GROUP: tl.constexpr,
    G_PADDED: tl.constexpr,
    TEMPERED: tl.constexpr,
    CUTS: tl.constexpr,
    EXACT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Write the token of one row: the best one of its best group."""
    wait(PDL)
    launch_next(PDL)
    row, lane = tl.program_id(0), tl.arange(0, G_PADDED)
    temperature = tl.full([], 1.0, tl.float32)
    if TEMPERED:
        temperature = tl.load(temperatures + row // S)
    group = to_index(tl.max(tl.load(keys + row * G + lane, mask=lane < G, other=LOWEST), 0)).to(tl.int32)
    index = group * GROUP + tl.arange(0, GROUP)
    value = temper(logits + row.to(tl.int64) * row_stride, index, V, temperature, floors, row, CUTS)
    if temperature != 0:
        bits = row_bits(tl.load(seeds + row // S), tl.load(positions + row // S) + row % S, LANE)
        value += to_gumbel(token_bits(bits, index), EXACT)
    tl.store(tokens + row, to_index(tl.max(to_key(value, index), 0)))


@triton.jit
def temper(logits, index, V, temperature, floors, row, CUTS: tl.constexpr):
    """Return logits of one row over temperature (0: as they are), -inf below the floor and beyond the row."""
    value = tl.load(logits + index, mask=index < V, other=float("-inf")).to(tl.float32)
    value = tl.div_rn(value, tl.where(temperature == 0, 1.0, tl.maximum(temperature, _MIN_TEMPERATURE)))
    if CUTS:
        value = tl.where(value < tl.load(floors + row), float("-inf"), value)
    return value


@triton.jit
def group_noise(bits, group, EXACT: tl.constexpr):
    """Return the noise of groups, from a row's bits."""
    return to_gumbel(token_bits(bits, group.to(tl.int64) + _GROUPS), EXACT)
