"""Picks tokens from logits on the GPU: the likeliest of each row, and the tokens that a sequence emits.

What else picks tokens there is named here too (`tempering.kernels_for`). Each function equals the plain torch of
`sampling.tempering` and `sampling.verify`, which define it; only the order of sums and the last bit of logarithms may
differ. A row's result does not depend on the other rows.

A vocabulary is too long for one program, and rows are few. So `_best_part` takes the best of each part of a row, as a
key that orders by value and then by lowest index, and `_best_of_parts` takes the best key of each row.

`penalize` changes logits in one pass; torch needs a dozen over tensors of their size.

Shape letters: T slots, B sequences, N of them with penalties, S = K+1 rows of logits a sequence, K draft tokens,
R = B * S, V vocabulary, C parts of a row, U tokens that a drafter can name.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftwise.engine.kernels.cuda.device_functions import LOWEST, row_bits, to_index, to_key, to_uniform
from draftwise.engine.kernels.cuda.drawing import draw_rows, sample_rows
from draftwise.engine.kernels.cuda.floors import find_floors
from draftwise.engine.kernels.cuda.kernel_launch import launch_next, pdl, wait
from draftwise.engine.kernels.cuda.ranking import MOST_RANKED, rank
from draftwise.engine.kernels.cuda.rejection import reject
from draftwise.engine.kernels.sampling_constants import Lane

__all__ = [
    "MOST_RANKED", "argmax_rows", "draw_rows", "emit", "find_floors", "penalize", "rank", "reject", "sample_rows",
]  # fmt: skip

_BLOCK = 1024
"""Columns that a program looks at together."""
_MAX_PARTS = 128
_PROGRAMS = 1056
"""Programs of a launch, about as many as run at a time: 8 of 4 warps on each of 132 multiprocessors."""
_ACCEPT = tl.constexpr(int(Lane.ACCEPT))
_PENALTY_BLOCK = 1024
"""Columns that a program looks at."""


def argmax_rows(logits_RV: Tensor, ids_U: Tensor | None = None) -> Tensor:
    """Return the likeliest token of each row, see `tempering.argmax`."""
    keys_RC = _find_best(logits_RV)
    return _decode_best(keys_RC, ids_U).view(logits_RV.shape[:-1])


def emit(
    next_BS: Tensor,
    draft_BK: Tensor,
    lengths_B: Tensor,
    accept_BK: Tensor | None,
    rates_K: Tensor | None,
    seeds_B: Tensor,
    positions_B: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the emitted tokens [B, S], -1 after them, and how many draft tokens are accepted [B], see `verify`.

    Draft tokens are accepted as `accept_BK` (bool) says, else at random with these rates (float64), else where they are
    the next token.
    """
    num_seqs, num_rows = next_BS.shape
    # Drafts that come from the host lie next to their lengths in one tensor.
    draft_BK = draft_BK if draft_BK.stride(1) == 1 else draft_BK.contiguous()
    seeds_B, positions_B = seeds_B.contiguous(), positions_B.contiguous()
    tokens_BS = torch.empty_like(next_BS)
    accepted_B = next_BS.new_empty(num_seqs)
    _emit_sequence[(num_seqs,)](
        *(next_BS, draft_BK, lengths_B, accept_BK, rates_K, seeds_B, positions_B, tokens_BS, accepted_B),
        *(draft_BK.stride(0), lengths_B.stride(0), num_rows),
        S_PADDED=triton.next_power_of_2(num_rows),
        GIVEN=accept_BK is not None,
        SYNTHETIC=rates_K is not None,
        PDL=pdl(),
        num_warps=1,
        launch_pdl=pdl(),
    )
    return tokens_BS, accepted_B


def _find_best(logits: Tensor) -> Tensor:
    """Return the best key of each part of each row [R, C]."""
    vocab_size = logits.shape[-1]
    rows_RV = logits.reshape(-1, vocab_size)
    count = len(rows_RV)
    parts = min(_MAX_PARTS, max(_PROGRAMS // max(count, 1), 1), triton.cdiv(vocab_size, _BLOCK))
    part_size = triton.cdiv(triton.cdiv(vocab_size, parts), _BLOCK) * _BLOCK
    parts = triton.cdiv(vocab_size, part_size)
    keys_RC = torch.empty(count, parts, dtype=torch.long, device=logits.device)
    _best_part[(count, parts)](
        *(rows_RV, keys_RC, rows_RV.stride(0), vocab_size, part_size),
        BLOCK=_BLOCK,
        PDL=pdl(),
        num_warps=4,
        launch_pdl=pdl(),
    )
    return keys_RC


def _decode_best(keys_RC: Tensor, ids_U: Tensor | None) -> Tensor:
    """Return the token of each row's best key."""
    count, parts = keys_RC.shape
    tokens_R = keys_RC.new_empty(count)
    _best_of_parts[(count,)](
        *(keys_RC, ids_U, tokens_R, parts),
        MAX_PARTS=_MAX_PARTS,
        MAPPED=ids_U is not None,
        PDL=pdl(),
        num_warps=1,
        launch_pdl=pdl(),
    )
    return tokens_R


@triton.jit
def _best_part(logits, keys, row_stride, V, part_size, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Write the key of the best token of one part of one row."""
    wait(PDL)
    launch_next(PDL)
    row, part = tl.program_id(0), tl.program_id(1)
    lane = tl.arange(0, BLOCK)
    first = tl.multiple_of(part * part_size, BLOCK)
    end = tl.minimum((part + 1) * part_size, V)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    where = first + lane
    while first < end:  # not `range`: Triton's interpreter needs numpy < 2.4 for bounds that are not constexpr
        index = tl.multiple_of(first, BLOCK) + lane
        value = tl.load(logits + row.to(tl.int64) * row_stride + index, mask=index < V, other=float("-inf"))
        value = value.to(tl.float32)
        better = value > best
        best = tl.where(better, value, best)
        where = tl.where(better, index, where)
        first += BLOCK
    tl.store(keys + row * tl.num_programs(1) + part, tl.max(to_key(best, where), 0))


@triton.jit(do_not_specialize=["C"])
def _best_of_parts(keys, ids, tokens, C, MAX_PARTS: tl.constexpr, MAPPED: tl.constexpr, PDL: tl.constexpr):
    """Write the token of one row's best key."""
    wait(PDL)
    launch_next(PDL)
    row, part = tl.program_id(0), tl.arange(0, MAX_PARTS)
    token = to_index(tl.max(tl.load(keys + row * C + part, mask=part < C, other=LOWEST), 0))
    if MAPPED:
        token = tl.load(ids + token)
    tl.store(tokens + row, token)


@triton.jit
def _emit_sequence(
    next_tokens,
    draft,
    lengths,
    accepts,
    rates,
    seeds,
    positions,
    tokens,
    accepted,
    draft_stride,
    length_stride,
    S,
    S_PADDED: tl.constexpr,
    GIVEN: tl.constexpr,
    SYNTHETIC: tl.constexpr,
    PDL: tl.constexpr,
):
    """Write what one sequence emits: the draft tokens before the first rejected one, and the token that replaces it."""
    wait(PDL)
    launch_next(PDL)
    seq, row = tl.program_id(0), tl.arange(0, S_PADDED)
    length = tl.load(lengths + seq * length_stride)
    drafted = row < S - 1
    following = tl.load(next_tokens + seq * S + row, mask=row < S, other=0)
    drafted_token = tl.load(draft + seq * draft_stride + row, mask=drafted, other=-1)
    if GIVEN:
        accept = tl.load(accepts + seq * (S - 1) + row, mask=drafted, other=0) != 0
    elif SYNTHETIC:
        bits = row_bits(tl.load(seeds + seq), tl.load(positions + seq) + row, _ACCEPT)
        accept = to_uniform(bits) < tl.load(rates + row, mask=drafted, other=0.0)
    else:
        accept = drafted_token == following
    first_rejected = tl.min(tl.where(accept & (row < length) & drafted, S_PADDED, row), 0)
    emitted = tl.where(row < first_rejected, drafted_token, tl.where(row == first_rejected, following, -1))
    tl.store(tokens + seq * S + row, emitted, mask=row < S)
    tl.store(accepted + seq, first_rejected.to(tl.int64))


def penalize(
    logits_BSV: Tensor,
    draft_BK: Tensor,
    member_B: Tensor,
    slots_N: Tensor,
    settings_N3: Tensor,
    in_prompt_TV: Tensor,
    num_output_TV: Tensor,
) -> Tensor:
    """Return the float32 logits after penalties, see `logits.Penalties`.

    Args:
        logits_BSV: any float type.
        draft_BK: int64.
        member_B: int64, which of the N a sequence is; -1: none. Sequences past its end have no penalties.
        slots_N: int64, where their tokens are counted.
        settings_N3: float32: repetition, frequency, presence.
        in_prompt_TV: bool.
        num_output_TV: int32.
    """
    num_seqs, num_rows, vocab_size = logits_BSV.shape
    changed_BSV = torch.empty(logits_BSV.shape, dtype=torch.float32, device=logits_BSV.device)
    _penalize[(num_seqs * num_rows, triton.cdiv(vocab_size, _PENALTY_BLOCK))](
        *(logits_BSV.contiguous(), changed_BSV, draft_BK, member_B, slots_N, settings_N3.contiguous()),
        *(in_prompt_TV.view(torch.uint8), num_output_TV, draft_BK.stride(0), draft_BK.stride(1)),
        *(len(member_B), num_rows, vocab_size),
        BLOCK=_PENALTY_BLOCK,
        PDL=pdl(),
        num_warps=4,
        launch_pdl=pdl(),
    )
    return changed_BSV


@triton.jit(do_not_specialize=["B"])
def _penalize(
    logits,
    changed,
    drafts,
    members,
    slots,
    settings,
    in_prompt,
    num_output,
    draft_stride,
    token_stride,
    B,
    S,
    V,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Write one part of one row."""
    wait(PDL)
    launch_next(PDL)
    sequence, row = tl.program_id(0) // S, tl.program_id(0) % S
    index = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = index < V
    place = tl.program_id(0).to(tl.int64) * V + index
    value = tl.load(logits + place, mask=inside, other=0.0).to(tl.float32)
    member = tl.load(members + sequence, mask=sequence < B, other=-1)
    if member >= 0:
        slot = tl.load(slots + member)
        count = tl.load(num_output + slot * V + index, mask=inside, other=0)
        for before in range(row):
            count += (tl.load(drafts + sequence * draft_stride + before * token_stride) == index).to(tl.int32)
        seen = (tl.load(in_prompt + slot * V + index, mask=inside, other=0) != 0) | (count > 0)
        repetition = tl.load(settings + member * 3)
        scaled = tl.where(value > 0, value / repetition, value * repetition)
        value = tl.where(seen, scaled, value)
        value -= tl.load(settings + member * 3 + 1) * count.to(tl.float32)
        value -= tl.load(settings + member * 3 + 2) * (count > 0).to(tl.float32)
    tl.store(changed + place, value, mask=inside)
