"""Rejection sampling of drafts with probabilities on the GPU, without storing the target's distribution.

One kernel sums up parts of each row for the softmax; the next draws from the residual max(p - q, 0), and from p in case
nothing is left of it; the last compares p and q of the draft's token. Parts have one size, however many rows there are,
so that sums are always rounded alike.

Shape letters: B sequences, S = K+1 rows of logits a sequence, K draft tokens, R = B * S, V vocabulary, C parts of
a row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftwise.engine.kernels.constants import MIN_TEMPERATURE, Lane
from draftwise.engine.kernels.cuda.keys import LOWEST, to_index, to_key, to_score
from draftwise.engine.kernels.cuda.launch import interpreted, launch_next, pdl, wait
from draftwise.engine.kernels.cuda.maths import exp, log
from draftwise.engine.kernels.cuda.noise import row_bits, to_gumbel, to_uniform, token_bits

__all__ = ["reject"]

_PART_SIZE = 2048
_BLOCK = 1024
"""Columns that a program looks at together."""
_MIN_TEMPERATURE = tl.constexpr(MIN_TEMPERATURE)
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
    count, parts = len(rows_RV), triton.cdiv(vocab_size, _PART_SIZE)
    sums_RC2 = torch.empty(count, parts, 2, dtype=torch.float32, device=logits_BSV.device)
    keys_RC2 = torch.empty(count, parts, 2, dtype=torch.long, device=logits_BSV.device)
    next_BS = keys_RC2.new_empty(num_seqs, num_rows)
    accept_BK = torch.empty(num_seqs, num_rows - 1, dtype=torch.bool, device=logits_BSV.device)
    settings = [each if each is None else each.contiguous() for each in (temperature_B, floor_BS)]
    counters = (seeds_B.contiguous(), positions_B.contiguous())
    given = (rows_RV, *settings, rows_RV.stride(0), vocab_size, num_rows, parts, sums_RC2)
    options = {"CUTS": floor_BS is not None, "EXACT": not interpreted(), "PDL": pdl(), "launch_pdl": pdl()}
    division = {"PART_SIZE": _PART_SIZE, "BLOCK": _BLOCK, "num_warps": 4}
    width = {"C_PADDED": triton.next_power_of_2(parts)}
    _sum_part[(count, parts)](*given, **division, **options)
    _draw_part[(count, parts)](
        *given, probs_BKV, lengths_B.contiguous(), *counters, keys_RC2, **division, **width, **options
    )
    judged = (tokens_BK.contiguous(), probs_BKV, *counters, keys_RC2, next_BS, accept_BK)
    _judge_row[(count,)](*given, *judged, num_warps=1, **width, **options)
    return accept_BK, next_BS


@triton.jit
def _sum_part(
    logits,
    temperatures,
    floors,
    row_stride,
    V,
    S,
    C,
    sums,
    PART_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    CUTS: tl.constexpr,
    EXACT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Write the largest tempered logit of one part of one row, and the sum of the exponentials below it."""
    wait(PDL)
    launch_next(PDL)
    row, part = tl.program_id(0), tl.program_id(1)
    temperature = tl.load(temperatures + row // S)
    logits += row.to(tl.int64) * row_stride
    most = tl.full([], float("-inf"), tl.float32)
    total = tl.full([], 0, tl.float32)
    for first in tl.static_range(0, PART_SIZE, BLOCK):
        index = part * PART_SIZE + first + tl.arange(0, BLOCK)
        value = _temper(logits, index, V, temperature, floors, row, CUTS)
        larger = tl.maximum(most, tl.max(value, 0))
        base = tl.where(larger == float("-inf"), 0.0, larger)
        total = total * exp(most - base, EXACT) + tl.sum(exp(value - base, EXACT), 0)
        most = larger
    tl.store(sums + (row * C + part) * 2, most)
    tl.store(sums + (row * C + part) * 2 + 1, total)


@triton.jit
def _draw_part(
    logits,
    temperatures,
    floors,
    row_stride,
    V,
    S,
    C,
    sums,
    probs,
    lengths,
    seeds,
    positions,
    keys,
    PART_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    C_PADDED: tl.constexpr,
    CUTS: tl.constexpr,
    EXACT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Write the keys of the tokens of one part of one row that win in the residual and in p."""
    wait(PDL)
    launch_next(PDL)
    row, part = tl.program_id(0), tl.program_id(1)
    seq, offset = row // S, row % S
    temperature = tl.load(temperatures + seq)
    most, total = _softmax_of(sums, row, C, C_PADDED, EXACT)
    bits = row_bits(tl.load(seeds + seq), tl.load(positions + seq) + offset, _TOKEN)
    drafted = offset < tl.minimum(tl.load(lengths + seq), S - 1)  # past the draft's end q is 0
    logits += row.to(tl.int64) * row_stride
    probs += (seq * (S - 1) + tl.minimum(offset, S - 2)).to(tl.int64) * V
    lane = tl.arange(0, BLOCK)
    best, where = tl.full([BLOCK], float("-inf"), tl.float32), part * PART_SIZE + lane
    best_left, where_left = best, where
    for first in tl.static_range(0, PART_SIZE, BLOCK):
        index = part * PART_SIZE + first + lane
        score = _temper(logits, index, V, temperature, floors, row, CUTS)
        if temperature != 0:
            p = exp(score - most, EXACT) / total
            left = p - tl.load(probs + index, mask=(index < V) & drafted, other=0.0)
            noise = to_gumbel(token_bits(bits, index), EXACT)
            score += noise
            score_left = tl.where(left > 0, log(tl.where(left > 0, left, 1.0), EXACT) + noise, float("-inf"))
            where_left = tl.where(score_left > best_left, index, where_left)
            best_left = tl.maximum(best_left, score_left)
        where = tl.where(score > best, index, where)
        best = tl.maximum(best, score)
    tl.store(keys + (row * C + part) * 2, tl.max(to_key(best_left, where_left), 0))
    tl.store(keys + (row * C + part) * 2 + 1, tl.max(to_key(best, where), 0))


@triton.jit
def _judge_row(
    logits,
    temperatures,
    floors,
    row_stride,
    V,
    S,
    C,
    sums,
    tokens,
    probs,
    seeds,
    positions,
    keys,
    next_tokens,
    accepts,
    C_PADDED: tl.constexpr,
    CUTS: tl.constexpr,
    EXACT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Write of one row whether the draft's token is accepted, and what replaces it if it is the first rejected one."""
    wait(PDL)
    launch_next(PDL)
    row, part = tl.program_id(0), tl.arange(0, C_PADDED)
    seq, offset = row // S, row % S
    places = keys + (row * C + part) * 2
    left = tl.max(tl.load(places, mask=part < C, other=LOWEST), 0)
    best = tl.max(tl.load(places + 1, mask=part < C, other=LOWEST), 0)
    # Rounding can leave nothing where p equals q; a token that is rejected even so is replaced by a draw from p.
    token = to_index(tl.where(to_score(left) > float("-inf"), left, best))
    tl.store(next_tokens + row, token)
    if offset < S - 1:
        place = seq * (S - 1) + offset
        drafted_token = tl.load(tokens + place)
        accept = drafted_token == token
        temperature = tl.load(temperatures + seq)
        if temperature != 0:
            most, total = _softmax_of(sums, row, C, C_PADDED, EXACT)
            logit = _temper(logits + row.to(tl.int64) * row_stride, drafted_token, V, temperature, floors, row, CUTS)
            p = exp(logit - most, EXACT) / total
            number = to_uniform(row_bits(tl.load(seeds + seq), tl.load(positions + seq) + offset, _ACCEPT))
            q = tl.load(probs + place.to(tl.int64) * V + drafted_token)
            accept = number * q.to(tl.float64) < p.to(tl.float64)
        tl.store(accepts + place, accept)


@triton.jit
def _temper(logits, index, V, temperature, floors, row, CUTS: tl.constexpr):
    """Return logits over temperature, -inf below the floor and beyond the row."""
    value = tl.load(logits + index, mask=index < V, other=float("-inf")).to(tl.float32)
    value = tl.div_rn(value, tl.where(temperature == 0, 1.0, tl.maximum(temperature, _MIN_TEMPERATURE)))
    if CUTS:
        value = tl.where(value < tl.load(floors + row), float("-inf"), value)
    return value


@triton.jit
def _softmax_of(sums, row, C, C_PADDED: tl.constexpr, EXACT: tl.constexpr):
    """Return a row's largest tempered logit and the sum of the exponentials below it."""
    part = tl.arange(0, C_PADDED)
    places = sums + (row * C + part) * 2
    most_C = tl.load(places, mask=part < C, other=float("-inf"))
    most = tl.max(most_C, 0)
    return most, tl.sum(tl.load(places + 1, mask=part < C, other=0.0) * exp(most_C - most, EXACT), 0)
