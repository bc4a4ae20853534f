"""Rejection sampling of drafts with probabilities on the GPU, without storing the target's distribution.

One kernel sums up groups of each row for the softmax; the next what is left of each group in max(p - q, 0); the last
draws from that, or from p in case nothing is left, and compares p and q of the draft's token. Draws are those of
`sampling.tempering.draw`: a group, then a token of it.

Shape letters: B sequences, S = K+1 rows of logits a sequence, K draft tokens, R = B * S, V vocabulary, G groups of
a row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftwise.engine.kernels.cuda.device_functions import (
    exp,
    log,
    row_bits,
    to_gumbel,
    to_index,
    to_key,
    to_uniform,
    token_bits,
)
from draftwise.engine.kernels.cuda.drawing import group_noise, temper
from draftwise.engine.kernels.cuda.kernel_launch import interpreted, launch_next, pdl, wait
from draftwise.engine.kernels.sampling_constants import GROUP, Lane

_TOKEN, _ACCEPT = tl.constexpr(int(Lane.TOKEN)), tl.constexpr(int(Lane.ACCEPT))


def reject(
    logits_BSV: Tensor,
    temperature_B: Tensor,
    floor_BS: Tensor | None,
    tokens_BK: Tensor,
    probs_BKV: Tensor,
    lengths_B: Tensor,
    seeds_B: Tensor,
    positions_B: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return which draft tokens are accepted [B, K], and of each row the token that replaces a rejected one [B, S].

    See `sampling.verify`; rows at temperature 0 have all probability on their likeliest token.

    Args:
        floor_BS: least logit over temperature that may be drawn.
        probs_BKV: float32, what the draft tokens were drawn from.
    """
    num_seqs, num_rows, vocab_size = logits_BSV.shape
    rows_RV, probs_BKV = logits_BSV.reshape(-1, vocab_size), probs_BKV.contiguous()
    count, num_groups = len(rows_RV), triton.cdiv(vocab_size, GROUP)
    sums_RG2 = torch.empty(count, num_groups, 2, dtype=torch.float32, device=logits_BSV.device)
    left_RG = sums_RG2.new_empty(count, num_groups)
    next_BS = torch.empty(num_seqs, num_rows, dtype=torch.long, device=logits_BSV.device)
    accept_BK = torch.empty(num_seqs, num_rows - 1, dtype=torch.bool, device=logits_BSV.device)
    settings = [each if each is None else each.contiguous() for each in (temperature_B, floor_BS)]
    given = (rows_RV, *settings, rows_RV.stride(0), vocab_size, num_rows, num_groups, sums_RG2)
    drafted = (probs_BKV, lengths_B.contiguous(), left_RG)
    judged = (tokens_BK.contiguous(), seeds_B.contiguous(), positions_B.contiguous(), next_BS, accept_BK)
    form = {"GROUP": GROUP, "CUTS": floor_BS is not None, "EXACT": not interpreted(), "PDL": pdl(), "launch_pdl": pdl()}
    width = {"G_PADDED": triton.next_power_of_2(num_groups)}
    _sum_group[(count, num_groups)](*given, num_warps=4, **form)
    _sum_left[(count, num_groups)](*given, *drafted, num_warps=4, **width, **form)
    _judge_row[(count,)](*given, *drafted, *judged, num_warps=8, **width, **form)
    return accept_BK, next_BS


@triton.jit
def _sum_group(
    logits,
    temperatures,
    floors,
    row_stride,
    V,
    S,
    G,
    sums,
    GROUP: tl.constexpr,
    CUTS: tl.constexpr,
    EXACT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Write the largest tempered logit of one group of one row, and the sum of the exponentials below it."""
    wait(PDL)
    launch_next(PDL)
    row, group = tl.program_id(0), tl.program_id(1)
    index = group * GROUP + tl.arange(0, GROUP)
    temperature = tl.load(temperatures + row // S)
    value = temper(logits + row.to(tl.int64) * row_stride, index, V, temperature, floors, row, CUTS)
    most = tl.max(value, 0)
    base = tl.where(most == float("-inf"), 0.0, most)
    tl.store(sums + (row * G + group) * 2, most)
    tl.store(sums + (row * G + group) * 2 + 1, tl.sum(exp(value - base, EXACT), 0))


@triton.jit
def _sum_left(
    logits,
    temperatures,
    floors,
    row_stride,
    V,
    S,
    G,
    sums,
    probs,
    lengths,
    left,
    GROUP: tl.constexpr,
    G_PADDED: tl.constexpr,
    CUTS: tl.constexpr,
    EXACT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Write what is left of p above q in one group of one row; nothing is written of greedy rows."""
    wait(PDL)
    launch_next(PDL)
    row, group = tl.program_id(0), tl.program_id(1)
    temperature = tl.load(temperatures + row // S)
    if temperature != 0:
        most, total = _softmax_of(sums, row, G, G_PADDED, EXACT)
        index = group * GROUP + tl.arange(0, GROUP)
        value = temper(logits + row.to(tl.int64) * row_stride, index, V, temperature, floors, row, CUTS)
        found = _find_left(exp(value - most, EXACT) / total, index, V, S, probs, lengths, row)
        tl.store(left + row * G + group, tl.sum(found, 0))


@triton.jit
def _judge_row(
    logits,
    temperatures,
    floors,
    row_stride,
    V,
    S,
    G,
    sums,
    probs,
    lengths,
    left,
    tokens,
    seeds,
    positions,
    next_tokens,
    accepts,
    GROUP: tl.constexpr,
    G_PADDED: tl.constexpr,
    CUTS: tl.constexpr,
    EXACT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Write of one row whether the draft's token is accepted, and what replaces it if it is the first rejected one."""
    wait(PDL)
    launch_next(PDL)
    row, group_G = tl.program_id(0), tl.arange(0, G_PADDED)
    seq, offset = row // S, row % S
    temperature = tl.load(temperatures + seq)
    seed, position = tl.load(seeds + seq), tl.load(positions + seq) + offset
    bits = row_bits(seed, position, _TOKEN)
    logits += row.to(tl.int64) * row_stride
    most, total = _softmax_of(sums, row, G, G_PADDED, EXACT)
    places_G = sums + (row * G + group_G) * 2
    score_G = tl.load(places_G, mask=group_G < G, other=float("-inf"))
    # Rounding can leave nothing where p equals q; a token that is rejected even so is replaced by a draw from p.
    left_G = tl.load(left + row * G + group_G, mask=group_G < G, other=0.0)
    left_G = tl.where(temperature == 0, 0.0, left_G)
    is_left = tl.max(left_G, 0) > 0
    if temperature != 0:
        weight_G = tl.load(places_G + 1, mask=group_G < G, other=0.0)
        score_G = tl.where(is_left, _log_of(left_G, EXACT), score_G + _log_of(weight_G, EXACT))
        score_G += group_noise(bits, group_G, EXACT)
    group = to_index(tl.max(to_key(score_G, group_G), 0)).to(tl.int32)
    index = group * GROUP + tl.arange(0, GROUP)
    score = temper(logits, index, V, temperature, floors, row, CUTS)
    if temperature != 0:
        found = _find_left(exp(score - most, EXACT) / total, index, V, S, probs, lengths, row)
        score = tl.where(is_left, _log_of(found, EXACT), score) + to_gumbel(token_bits(bits, index), EXACT)
    token = to_index(tl.max(to_key(score, index), 0))
    tl.store(next_tokens + row, token)
    if offset < S - 1:
        place = seq * (S - 1) + offset
        drafted_token = tl.load(tokens + place)
        accept = drafted_token == token
        if temperature != 0:
            p = exp(temper(logits, drafted_token, V, temperature, floors, row, CUTS) - most, EXACT) / total
            q = tl.load(probs + place.to(tl.int64) * V + drafted_token)
            accept = to_uniform(row_bits(seed, position, _ACCEPT)) * q.to(tl.float64) < p.to(tl.float64)
        tl.store(accepts + place, accept)


@triton.jit
def _find_left(p, index, V, S, probs, lengths, row):
    """Return max(p - q, 0) of tokens of one row."""
    seq, offset = row // S, row % S
    drafted = offset < tl.minimum(tl.load(lengths + seq), S - 1)  # past the draft's end q is 0
    probs += (seq * (S - 1) + tl.minimum(offset, S - 2)).to(tl.int64) * V
    return tl.maximum(p - tl.load(probs + index, mask=(index < V) & drafted, other=0.0), 0.0)


@triton.jit
def _log_of(value, EXACT: tl.constexpr):
    return tl.where(value > 0, log(tl.where(value > 0, value, 1.0), EXACT), float("-inf"))


@triton.jit
def _softmax_of(sums, row, G, G_PADDED: tl.constexpr, EXACT: tl.constexpr):
    """Return a row's largest tempered logit and the sum of the exponentials below it."""
    group_G = tl.arange(0, G_PADDED)
    places_G = sums + (row * G + group_G) * 2
    most_G = tl.load(places_G, mask=group_G < G, other=float("-inf"))
    most = tl.max(most_G, 0)
    return most, tl.sum(tl.load(places_G + 1, mask=group_G < G, other=0.0) * exp(most_G - most, EXACT), 0)
