"""Draws tokens from logits on the GPU, with counter-based noise that is never stored.

`draw_rows` takes two draws, as `sampling.tempering.draw`, which defines it: one program for each group of a row adds up
what its tokens weigh; then one for each row draws a group, and a token of it. A group is always summed up in the same
order, however many rows there are, so that a row's token does not depend on the others.

`sample_rows` draws from nuclei too, as `tempering.sample`: all attempts of a row at once, and one more look at the
logits weighs what is likelier than each. Rows of which no attempt is in the nucleus go on; for the others the last
three kernels have nothing to do.

Shape letters: B sequences, S = K+1 rows of logits a sequence, R = B * S, V vocabulary, G groups of a row, A attempts,
C parts of a row, N columns that are looked at together.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftwise.engine.kernels.cuda.device_functions import log, row_bits, to_gumbel, to_index, to_key, token_bits
from draftwise.engine.kernels.cuda.floors import find_floors
from draftwise.engine.kernels.cuda.kernel_launch import interpreted, launch_next, pdl, wait
from draftwise.engine.kernels.sampling_constants import ATTEMPT, ATTEMPTS, GROUP, GROUPS, MIN_TEMPERATURE

_BLOCK, _BLOCKS = 1024, 16
"""Columns that are compared with each attempt at once, and how often before they are summed up."""
_FOR_PENDING = 8
"""Programs of a row that is seldom pending: to begin one only to end it takes time too."""
_LOG2_E = tl.constexpr(1.4426950408889634)
_MIN_TEMPERATURE = tl.constexpr(MIN_TEMPERATURE)
_GROUPS, _ATTEMPT, _ATTEMPTS = tl.constexpr(GROUPS), tl.constexpr(ATTEMPT), tl.constexpr(ATTEMPTS)


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
    draws = _Draws(logits_BSV, temperature_B, seeds_B, positions_B, lane)
    tokens_BS = draws.empty(torch.long)
    weights_RG = draws.weigh(floor_BS)
    draws.draw(weights_RG, floor_BS, tokens_BS)
    return tokens_BS


def sample_rows(
    logits_BSV: Tensor,
    temperature_B: Tensor,
    top_k_B: Tensor,
    top_p_B: Tensor,
    min_p_B: Tensor,
    *,
    seeds_B: Tensor,
    positions_B: Tensor,
    lane: int,
) -> Tensor:
    """Return a token of each row drawn from what temperature, top-k, top-p and min_p leave, see `tempering.sample`."""
    settings = temperature_B, top_k_B, top_p_B.contiguous(), min_p_B
    draws = _Draws(logits_BSV, temperature_B, seeds_B, positions_B, lane)
    tokens_BS, pending_BS = draws.empty(torch.long), draws.empty(torch.int32)
    tokens_RA, drawn_RA = draws.empty(torch.long, ATTEMPTS), draws.empty(torch.float32, ATTEMPTS)
    bound_BS = find_floors(logits_BSV, *settings, nucleus=False)
    weights_RG = draws.weigh(bound_BS)
    draws.draw(weights_RG, bound_BS, tokens_RA, drawn_RA=drawn_RA, top_p_B=settings[2])
    draws.choose(weights_RG, tokens_RA, drawn_RA, settings[2], tokens_BS, pending_BS)
    floor_BS = find_floors(logits_BSV, *settings, pending_BS=pending_BS)
    weights_RG = draws.weigh(floor_BS, pending_BS)
    draws.draw(weights_RG, floor_BS, tokens_BS, pending_BS=pending_BS, first=ATTEMPTS)
    return tokens_BS


class _Draws:
    """The kernels' launches over the rows of some logits; all tensors that they take are contiguous but the logits."""

    def __init__(
        self, logits_BSV: Tensor, temperature_B: Tensor | None, seeds_B: Tensor, positions_B: Tensor, lane: int
    ) -> None:
        self._shape, vocab_size = logits_BSV.shape[:2], logits_BSV.shape[2]
        rows_RV = logits_BSV.reshape(-1, vocab_size)
        self._num_rows, self._num_groups = len(rows_RV), triton.cdiv(vocab_size, GROUP)
        self._num_parts = triton.cdiv(vocab_size, _BLOCK * _BLOCKS)
        temperature_B = temperature_B if temperature_B is None else temperature_B.contiguous()
        self._rows = rows_RV, rows_RV.stride(0), vocab_size, self._shape[1], temperature_B
        self._noise = seeds_B.contiguous(), positions_B.contiguous()
        self._lane = int(lane)
        self._form = {"TEMPERED": temperature_B is not None, "PDL": pdl(), "launch_pdl": pdl()}

    def empty(self, dtype: torch.dtype, *width: int) -> Tensor:
        """Return room for something of each row."""
        return torch.empty(*self._shape, *width, dtype=dtype, device=self._rows[0].device)

    def weigh(self, floor_BS: Tensor | None, pending_BS: Tensor | None = None) -> Tensor:
        """Return [R, G] the logarithm of what each group weighs; of greedy rows its largest logit."""
        weights_RG = self.empty(torch.float32, self._num_groups)
        programs = self._num_groups if pending_BS is None else min(self._num_groups, _FOR_PENDING)
        _weigh_groups[(self._num_rows, programs)](
            *(*self._rows, floor_BS, pending_BS, weights_RG, self._num_groups),
            GROUP=GROUP,
            CUTS=floor_BS is not None,
            SKIPS=pending_BS is not None,
            EXACT=not interpreted(),
            num_warps=4,
            **self._form,
        )
        return weights_RG

    def draw(
        self,
        weights_RG: Tensor,
        floor_BS: Tensor | None,
        tokens_RA: Tensor,
        *,
        drawn_RA: Tensor | None = None,
        top_p_B: Tensor | None = None,
        pending_BS: Tensor | None = None,
        first: int = 0,
    ) -> None:
        """Write a token of each row; with `top_p_B` all attempts of rows with a nucleus, and their logits."""
        attempts = 1 if top_p_B is None else ATTEMPTS
        _draw_of_group[(self._num_rows, attempts)](
            *(*self._rows, floor_BS, pending_BS, weights_RG, self._num_groups, *self._noise, top_p_B),
            *(tokens_RA, drawn_RA),
            LANE=self._lane,
            FIRST=first,
            GROUP=GROUP,
            G_PADDED=triton.next_power_of_2(self._num_groups),
            CUTS=floor_BS is not None,
            SKIPS=pending_BS is not None,
            NUCLEUS=top_p_B is not None,
            EXACT=not interpreted(),
            num_warps=8,
            **self._form,
        )

    def choose(
        self,
        weights_RG: Tensor,
        tokens_RA: Tensor,
        drawn_RA: Tensor,
        top_p_B: Tensor,
        tokens_BS: Tensor,
        pending_BS: Tensor,
    ) -> None:
        """Write the first token of each row that is in its nucleus, and whether no such token exists."""
        sums_RCA = self.empty(torch.float32, self._num_parts, ATTEMPTS)
        judged = (weights_RG, self._num_groups, top_p_B, sums_RCA)
        form = {"G_PADDED": triton.next_power_of_2(self._num_groups), "num_warps": 4, **self._form}
        _weigh_above[(self._num_rows, self._num_parts)](
            *(*self._rows, *judged, drawn_RA), BLOCK=_BLOCK, BLOCKS=_BLOCKS, **form
        )
        _choose_attempt[(self._num_rows,)](
            *(*self._rows[3:], *judged, self._num_parts, tokens_RA, tokens_BS, pending_BS),
            C_PADDED=triton.next_power_of_2(self._num_parts),
            **form,
        )


@triton.jit(do_not_specialize=["G"])
def _weigh_groups(
    logits,
    row_stride,
    V,
    S,
    temperatures,
    floors,
    pending,
    weights,
    G,
    GROUP: tl.constexpr,
    CUTS: tl.constexpr,
    SKIPS: tl.constexpr,
    TEMPERED: tl.constexpr,
    EXACT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Write what some groups of one row weigh."""
    wait(PDL)
    launch_next(PDL)
    row, group = tl.program_id(0), tl.program_id(1)
    if _is_wanted(pending, row, SKIPS):
        temperature = _temperature_of(temperatures, row, S, TEMPERED)
        while group < G:
            index = group * GROUP + tl.arange(0, GROUP)
            value = temper(logits + row.to(tl.int64) * row_stride, index, V, temperature, floors, row, CUTS)
            weight = tl.max(value, 0)
            if (temperature != 0) & (weight > float("-inf")):
                # (The last bits of exponentials do not matter to their sum.)
                weight += log(tl.sum(tl.exp(value - weight), 0), EXACT)
            tl.store(weights + row * G + group, weight)
            group += tl.num_programs(1)


@triton.jit(do_not_specialize=["G"])
def _draw_of_group(
    logits,
    row_stride,
    V,
    S,
    temperatures,
    floors,
    pending,
    weights,
    G,
    seeds,
    positions,
    top_ps,
    tokens,
    drawn,
    LANE: tl.constexpr,
    FIRST: tl.constexpr,
    GROUP: tl.constexpr,
    G_PADDED: tl.constexpr,
    CUTS: tl.constexpr,
    SKIPS: tl.constexpr,
    NUCLEUS: tl.constexpr,
    TEMPERED: tl.constexpr,
    EXACT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Write the token that one attempt draws of one row: the best one of the best group."""
    wait(PDL)
    launch_next(PDL)
    row, attempt = tl.program_id(0), FIRST + tl.program_id(1)
    temperature = _temperature_of(temperatures, row, S, TEMPERED)
    wanted = _is_wanted(pending, row, SKIPS)
    if NUCLEUS:
        wanted = (attempt == 0) | _has_nucleus(temperature, top_ps, row, S)
    if wanted:
        noise = attempt.to(tl.int64) * _ATTEMPT
        bits = row_bits(tl.load(seeds + row // S), tl.load(positions + row // S) + row % S, LANE)
        group_G = tl.arange(0, G_PADDED)
        weight_G = tl.load(weights + row * G + group_G, mask=group_G < G, other=float("-inf"))
        if temperature != 0:
            weight_G += group_noise(bits, group_G + noise, EXACT)
        group = to_index(tl.max(to_key(weight_G, group_G), 0)).to(tl.int32)
        index = group * GROUP + tl.arange(0, GROUP)
        score = temper(logits + row.to(tl.int64) * row_stride, index, V, temperature, floors, row, CUTS)
        if temperature != 0:
            score += to_gumbel(token_bits(bits, index + noise), EXACT)
        token = to_index(tl.max(to_key(score, index), 0))
        place = row * tl.num_programs(1) + tl.program_id(1)
        tl.store(tokens + place, token)
        if NUCLEUS:
            tl.store(drawn + place, tl.load(logits + row.to(tl.int64) * row_stride + token).to(tl.float32))


@triton.jit(do_not_specialize=["G"])
def _weigh_above(
    logits,
    row_stride,
    V,
    S,
    temperatures,
    weights,
    G,
    top_ps,
    sums,
    drawn,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    G_PADDED: tl.constexpr,
    TEMPERED: tl.constexpr,
    PDL: tl.constexpr,
):
    """Write, of one part of one row, what the tokens weigh that are likelier than each attempt's."""
    wait(PDL)
    launch_next(PDL)
    row, part = tl.program_id(0), tl.program_id(1)
    temperature = _temperature_of(temperatures, row, S, TEMPERED)
    if _has_nucleus(temperature, top_ps, row, S):
        most, _ = _total(weights, row, G, G_PADDED)
        rate = _LOG2_E / tl.maximum(temperature, _MIN_TEMPERATURE)
        logits += row.to(tl.int64) * row_stride
        drawn += row * _ATTEMPTS
        no_N = tl.zeros([BLOCK], tl.float32)
        above = (no_N, no_N, no_N, no_N)
        for block in tl.static_range(BLOCKS):
            index_N = (part * BLOCKS + block) * BLOCK + tl.arange(0, BLOCK)
            logit_N = tl.load(logits + index_N, mask=index_N < V, other=float("-inf")).to(tl.float32)
            weight_N = tl.exp2(logit_N * rate - most * _LOG2_E)
            above = _add_above(above, logit_N, weight_N, drawn)
        sums += (row * tl.num_programs(1) + part) * _ATTEMPTS
        for attempt in tl.static_range(_ATTEMPTS):
            tl.store(sums + attempt, tl.sum(above[attempt], 0))


@triton.jit
def _add_above(above, logit_N, weight_N, drawn):
    """Return what is likelier than each attempt's token, with what is of a block."""
    first_N, second_N, third_N, fourth_N = above
    first_N += tl.where(logit_N > tl.load(drawn), weight_N, 0.0)
    second_N += tl.where(logit_N > tl.load(drawn + 1), weight_N, 0.0)
    third_N += tl.where(logit_N > tl.load(drawn + 2), weight_N, 0.0)
    fourth_N += tl.where(logit_N > tl.load(drawn + 3), weight_N, 0.0)
    return first_N, second_N, third_N, fourth_N


@triton.jit(do_not_specialize=["G", "C"])
def _choose_attempt(
    S,
    temperatures,
    weights,
    G,
    top_ps,
    sums,
    C,
    attempts,
    tokens,
    pending,
    C_PADDED: tl.constexpr,
    G_PADDED: tl.constexpr,
    TEMPERED: tl.constexpr,
    PDL: tl.constexpr,
):
    """Write the token of the first attempt that is in the nucleus of one row; above such a token lies less than p."""
    wait(PDL)
    launch_next(PDL)
    row, part_C, attempt_A = tl.program_id(0), tl.arange(0, C_PADDED), tl.arange(0, _ATTEMPTS)
    first = tl.zeros([], tl.int32)
    if _has_nucleus(_temperature_of(temperatures, row, S, TEMPERED), top_ps, row, S):
        _, total = _total(weights, row, G, G_PADDED)
        places_CA = (row * C + part_C)[:, None] * _ATTEMPTS + attempt_A[None, :]
        above_A = tl.sum(tl.load(sums + places_CA, mask=part_C[:, None] < C, other=0.0), 0)
        first = tl.min(tl.where(above_A < tl.load(top_ps + row // S) * total, attempt_A, _ATTEMPTS), 0)
    tl.store(pending + row, (first == _ATTEMPTS).to(tl.int32))
    tl.store(tokens + row, tl.load(attempts + row * _ATTEMPTS + tl.minimum(first, _ATTEMPTS - 1)))


@triton.jit
def _total(weights, row, G, G_PADDED: tl.constexpr):
    """Return the largest weight of a group's (a logarithm), and what the row weighs in multiples of it."""
    group_G = tl.arange(0, G_PADDED)
    weight_G = tl.load(weights + row * G + group_G, mask=group_G < G, other=float("-inf"))
    most = tl.max(weight_G, 0)
    return most, tl.sum(tl.exp(weight_G - most), 0)


@triton.jit
def _is_wanted(pending, row, SKIPS: tl.constexpr):
    if SKIPS:
        return tl.load(pending + row) != 0
    return tl.full([], 1, tl.int1)


@triton.jit
def _temperature_of(temperatures, row, S, TEMPERED: tl.constexpr):
    if TEMPERED:
        return tl.load(temperatures + row // S)
    return tl.full([], 1.0, tl.float32)


@triton.jit
def _has_nucleus(temperature, top_ps, row, S):
    return (temperature != 0) & (tl.load(top_ps + row // S) < 1)


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
