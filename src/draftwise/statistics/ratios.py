"""From paired readings to ratios of candidate over baseline, how sure they are, and whether they stayed the same.

Readings of one prompt vary together, and so do those of one paired block: the design says which do, and the spread of
every number that follows counts with it.

Intervals take paired blocks for independent. They are not where one of two servers was slow for a good part of the
run: every prompt then has its share of slow blocks, so that prompts agree with each other on a ratio that is half of
one state and half of another.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from draftwise.core import Interval
from draftwise.statistics.estimate import (
    CONFIDENCE,
    RatioEstimate,
    Spread,
    fisher_tail,
    student_quantile,
    to_ratio,
    upper_student_quantile,
)

__all__ = [
    "Array",
    "Design",
    "Integers",
    "RatioChange",
    "find_change",
    "find_spread",
    "find_variance_share",
    "goodput_change",
    "prompt_ratio",
    "ratio_of_totals",
    "server_ratio",
    "total_ratio",
]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
_FAR = 3.0
"""Robust standard deviations from a prompt's median to which readings further away are moved."""
_MOST_PER_BLOCK = 2.0
"""Degrees of freedom per paired block: where three or four blocks happen to agree, that proves little, and without
this limit 95 % intervals of three blocks cover 92 %."""


@dataclass(frozen=True, kw_only=True)
class Design:
    """For each of N requests that both arms were sent: its prompt and its paired block.

    A paired block is a part of a workload that candidate and baseline answer one right after the other: (repetition,
    block). With one request in flight it holds a single prompt; under load it holds many, and whatever the machine
    does in that minute is common to all of them (shared variance).
    """

    prompt_N: Integers
    """Prompts, numbered from 0 without gaps."""
    block_N: Integers
    """Paired blocks, likewise."""
    prompts: tuple[Hashable, ...] = ()
    """Names of the prompts, by which they are known again under another load."""

    @classmethod
    def of(cls, requests: Sequence[tuple[Hashable, Hashable]]) -> Design:
        """Return the design of requests given as (prompt, paired block), both by any names."""
        prompts = _number([prompt for prompt, _ in requests])
        blocks = _number([block for _, block in requests])
        return cls(
            prompt_N=np.array([prompts[prompt] for prompt, _ in requests], dtype=np.int64),
            block_N=np.array([blocks[block] for _, block in requests], dtype=np.int64),
            prompts=tuple(prompts),
        )

    def only(self, kept_N: NDArray[np.bool_]) -> Design:
        """Return the design of some of the requests."""
        kept = np.unique(self.prompt_N[kept_N])
        return Design(
            prompt_N=_dense(self.prompt_N[kept_N]),
            block_N=_dense(self.block_N[kept_N]),
            prompts=tuple(self.prompts[number] for number in kept) if self.prompts else (),
        )

    @cached_property
    def num_prompts(self) -> int:
        """Different prompts."""
        return _count(self.prompt_N)

    @cached_property
    def num_blocks(self) -> int:
        """Paired blocks."""
        return _count(self.block_N)

    @cached_property
    def cell_N(self) -> Integers:
        """Return [N] the prompt within its block: attempts at one prompt in one turn are one cell."""
        return _dense(self.prompt_N * max(1, self.num_blocks) + self.block_N)


def prompt_ratio(candidate_N: Array, baseline_N: Array, design: Design) -> RatioEstimate | None:
    """Return the geometric mean over prompts of candidate / baseline.

    Readings are compared within their paired block first, which cancels drift of the machine; several attempts at a
    prompt in one turn count as one. A prompt's ratio is the (geometric) mean over its blocks. Readings more than
    3 robust standard deviations away from the prompt's median are first moved to that distance (one step of Huber's
    M-estimator, 1964). That resists a stalled request as well as a median does, is less noisy, and under load has the
    known variance of a mean, where the bootstrap of a median of few repetitions is up to a third too wide.

    Args:
        candidate_N: readings, NaN where there is none; only positive ones count.
        baseline_N: the same requests' readings of the baseline.
        design: prompt and paired block of each request.

    Returns:
        None when no request was answered by both.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs_N = np.log(candidate_N) - np.log(baseline_N)
    kept_N = np.isfinite(logs_N)
    if not kept_N.any():
        return None
    design = design.only(kept_N)
    logs_C, cells = _mean_over_copies(logs_N[kept_N], design)
    logs_C = _winsorise(logs_C, cells.prompt_N)
    num_C = np.bincount(cells.prompt_N)
    logs_P = np.bincount(cells.prompt_N, weights=logs_C) / num_C
    log = float(logs_P.mean())
    influence_C = (logs_C - log) / (len(num_C) * num_C[cells.prompt_N])
    by_prompt = dict(zip(design.prompts, logs_P.tolist(), strict=False))
    return RatioEstimate(log=log, spread=find_spread(influence_C, cells), log_by_prompt=by_prompt)


def total_ratio(
    candidate_tokens_N: Array, candidate_s_N: Array, baseline_tokens_N: Array, baseline_s_N: Array, design: Design
) -> RatioEstimate | None:
    """Return the ratio of all tokens over all seconds, candidate over baseline: long answers weigh more, stalls count.

    Requests with a NaN are left out; None when that leaves nothing.
    """
    parts = [candidate_tokens_N, candidate_s_N, baseline_tokens_N, baseline_s_N]
    kept_N = np.isfinite(np.sum(parts, axis=0))
    if not kept_N.any():
        return None
    signs = (1, -1, -1, 1)
    sums = [float(part[kept_N].sum()) for part in parts]
    log = sum(sign * float(np.log(total)) for sign, total in zip(signs, sums, strict=True))
    influences = (sign * part[kept_N] / total for sign, part, total in zip(signs, parts, sums, strict=True))
    return RatioEstimate(log=log, spread=find_spread(np.sum(list(influences), axis=0), design.only(kept_N)))


def server_ratio(candidate_T: Array, baseline_T: Array) -> RatioEstimate:
    """Return the geometric mean over paired blocks of a server's throughput, candidate / baseline, for these prompts.

    One number per turn cannot tell what other prompts would have done: its error is that for this workload only.
    """
    logs_T = np.log(candidate_T / baseline_T)
    block_T = np.arange(len(logs_T))
    influence_T = (logs_T - logs_T.mean()) / len(logs_T)
    return RatioEstimate(
        log=float(logs_T.mean()), spread=find_spread(influence_T, Design(prompt_N=block_T, block_N=block_T))
    )


def goodput_change(
    candidate_N: Array, baseline_N: Array, design: Design, *, confidence: float = CONFIDENCE
) -> Interval | None:
    """Return by how much the share of requests within the SLO changes, candidate minus baseline, from -1 to 1.

    One made-up prompt of which half got better and half got worse keeps the interval from vanishing when every
    request keeps its promise (Agresti and Min, "Simple improved confidence intervals for comparing matched
    proportions", Statistics in Medicine 2005).

    Args:
        candidate_N: 1 within the SLO, 0 outside, NaN for not asked.
        baseline_N: likewise.
        design: prompt and paired block of each request.
    """
    change_N = candidate_N - baseline_N
    kept_N = np.isfinite(change_N)
    if not kept_N.any():
        return None
    change_N = change_N[kept_N]
    found = find_spread((change_N - change_N.mean()) / len(change_N), design.only(kept_N))
    error = math.sqrt(found.variance * found.num_prompts**2 + 1) / (found.num_prompts + 2)
    reach = student_quantile((1 + confidence) / 2, found.degrees) * error
    value = float(change_N.mean())
    return Interval(value=value, low=max(-1.0, value - reach), high=min(1.0, value + reach))


def find_spread(influence_N: Array, design: Design) -> Spread:
    """Return the spread of an estimate to which each request adds its influence; all influences sum to 0.

    What is resampled in a bootstrap over prompts and paired blocks (Owen, "The pigeonhole bootstrap", Annals of
    Applied Statistics 2007; for benchmarks Kalibera and Jones, "Rigorous benchmarking in reasonable time", ISMM
    2013, and Hoefler and Belli, "Scientific benchmarking of parallel computing systems", SC 2015) has, for sums,
    a closed form: the variance over prompts, plus that over blocks, minus that over prompts within blocks, which
    both contain (Cameron, Gelbach and Miller, "Robust inference with multiway clustering", JBES 2011). The
    pigeonhole bootstrap counts this last part three times: up to 1.7 times too wide where readings differ by
    noise alone, as in A/A runs. Every number here is made such a sum by its influence function: by how much each
    reading shifts it.

    Degrees of freedom are Satterthwaite's (1946), from those of the parts, with a limit by the number of blocks;
    two blocks are one degree, which makes every interval very wide: wait for the third. Simulated in
    `benchmarks/cpu/statistics_simulation.py`: 95 % intervals cover 93-97 %, and more (up to 99 %) where few
    prompts or blocks differ by nothing but noise.
    """
    prompts, blocks, cells = (
        _Part(influence_N, group_N) for group_N in (design.prompt_N, design.block_N, design.cell_N)
    )
    variance, degrees = _combine(prompts, blocks, cells)
    lasting = prompts.variance - cells.variance if min(prompts.count, cells.count) > 1 else variance
    return Spread(
        variance=variance,
        degrees=degrees,
        lasting=min(variance, max(0.0, lasting)),
        num_prompts=prompts.count,
        num_blocks=blocks.count,
    )


class _Part:
    """The variance of a sum over independent groups of readings."""

    def __init__(self, influence_N: Array, group_N: Integers) -> None:
        sums_G = np.bincount(group_N, weights=influence_N)
        self.count = len(sums_G)
        self.degrees = max(1, self.count - 1)
        self.variance = math.inf if self.count < 2 else float(np.sum(sums_G**2)) * self.count / (self.count - 1)


def _combine(prompts: _Part, blocks: _Part, cells: _Part) -> tuple[float, float]:
    """Return the variance over prompts and blocks, and its degrees of freedom."""
    if blocks.count == cells.count:  # each block holds one prompt: prompts are all there is to resample
        return prompts.variance, prompts.degrees
    if prompts.count == cells.count:  # a single repetition: each prompt is in one block only
        return blocks.variance, blocks.degrees
    if min(prompts.count, blocks.count) < 2:
        return math.inf, 1
    variance = max(prompts.variance + blocks.variance - cells.variance, prompts.variance, blocks.variance)
    if blocks.count == 2 or variance == 0:
        return variance, 1
    degrees = variance**2 / sum(part.variance**2 / part.degrees for part in (prompts, blocks))
    return variance, min(degrees, _MOST_PER_BLOCK * blocks.degrees)


def _mean_over_copies(values_N: Array, design: Design) -> tuple[Array, Design]:
    """Return [C] the mean of each prompt within each block, and the design of these."""
    cell_N = design.cell_N
    _, first_C = np.unique(cell_N, return_index=True)
    means_C = np.bincount(cell_N, weights=values_N) / np.bincount(cell_N)
    return means_C, Design(prompt_N=design.prompt_N[first_C], block_N=design.block_N[first_C])


def _winsorise(logs_C: Array, prompt_C: Integers) -> Array:
    """Return [C] the readings, none further from its prompt's median than 3 robust standard deviations."""
    table_PK = _by_prompt(logs_C, prompt_C)
    steps = np.abs(table_PK[:, :, None] - table_PK[:, None, :])[:, *np.triu_indices(table_PK.shape[1], k=1)]
    steps = steps[np.isfinite(steps)]
    if not len(steps):
        return logs_C
    reach = _FAR * float(np.median(steps)) / (0.6745 * np.sqrt(2))
    middle_C = _medians(table_PK)[prompt_C]
    return np.asarray(np.clip(logs_C, middle_C - reach, middle_C + reach))


def _by_prompt(values_C: Array, prompt_C: Integers) -> Array:
    """Return [P, K] each prompt's values in a row, NaN after the last one."""
    order_C = np.argsort(prompt_C, kind="stable")
    num_P = np.bincount(prompt_C)
    starts_P = np.cumsum(num_P) - num_P
    place_C = np.arange(len(values_C)) - starts_P[prompt_C[order_C]]
    table_PK = np.full((len(num_P), int(num_P.max())), np.nan)
    table_PK[prompt_C[order_C], place_C] = values_C[order_C]
    return table_PK


def _medians(table_PK: Array) -> Array:
    """Return [P] medians of rows that end in NaN (numpy's nanmedian takes longer than all the rest)."""
    ordered_PK = np.sort(table_PK, axis=1)
    num_P = np.isfinite(table_PK).sum(axis=1)
    rows_P = np.arange(len(table_PK))
    return np.asarray((ordered_PK[rows_P, (num_P - 1) // 2] + ordered_PK[rows_P, num_P // 2]) / 2)


def _number(names: Sequence[Hashable]) -> dict[Hashable, int]:
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def _dense(labels_N: Integers) -> Integers:
    return np.asarray(np.unique(labels_N, return_inverse=True)[1], dtype=np.int64)


def _count(numbers_N: Integers) -> int:
    return int(numbers_N.max()) + 1 if len(numbers_N) else 0


def ratio_of_totals(tops: Array, bottoms: Array, *, confidence: float = CONFIDENCE) -> Interval:
    """Return sum(tops) / sum(bottoms) with its interval over requests; unbounded where there is a single one.

    By the delta method on the logarithm, with Student's t: as wide as the bootstrap over requests within 0.3 % where
    there are many, and not too narrow where there are few.

    Args:
        tops: [R] of each request, not negative.
        bottoms: [R] likewise; their sum is positive.
    """
    ratio = float(tops.sum() / bottoms.sum())
    num = len(tops)
    if num < 2 or ratio == 0:
        return Interval(value=ratio, low=0.0, high=math.inf)
    errors = _errors(tops, bottoms)
    spread = math.sqrt(float((errors**2).sum()) * num / (num - 1)) / float(tops.sum())
    reach = upper_student_quantile((1 - confidence) / 2, num - 1) * spread
    return Interval(value=ratio, low=ratio * math.exp(-reach), high=ratio * math.exp(min(reach, 700.0)))


def find_variance_share(tops: Array, bottoms: Array, *, largest: int) -> float:
    """Return the share of the ratio's variance that its `largest` requests hold; 0 where there is no variance."""
    squares = np.sort(_errors(tops, bottoms) ** 2)[::-1]
    total = float(squares.sum())
    return float(squares[:largest].sum()) / total if total > 0 else 0.0


def _errors(tops: Array, bottoms: Array) -> Array:
    errors: Array = tops - tops.sum() / bottoms.sum() * bottoms
    return errors


_MOST_STRETCHES = 6
_FEWEST_BLOCKS = 3
"""Of a stretch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioChange:
    """A ratio that differed between stretches of a run by more than paired blocks within a stretch explain."""

    lowest: float
    """Of the stretches' ratios."""
    highest: float


def find_change(logs_N: Array, design: Design) -> RatioChange | None:
    """Return how a ratio changed in the course of a run; None where it did not, or where too few blocks could tell.

    One-way analysis of variance (Fisher 1925) between stretches of equally many blocks. What prompts gain differently
    is taken out before, as far as they came more than once.

    Args:
        logs_N: logarithms of the ratios of requests, NaN for none.
        design: of these requests, its blocks numbered in the order of time.
    """
    kept_N = np.isfinite(logs_N)
    if not kept_N.any():
        return None
    logs_N, design = logs_N[kept_N], design.only(kept_N)
    logs_B, spent = _mean_of_blocks(logs_N, design)
    count = min(_MOST_STRETCHES, len(logs_B) // _FEWEST_BLOCKS)
    if count < 2:
        return None
    parts = np.array_split(logs_B, count)
    means_S = np.array([part.mean() for part in parts])
    sizes_S = np.array([len(part) for part in parts])
    degrees = max(1.0, len(logs_B) - count - spent)
    between = float(sizes_S @ (means_S - logs_B.mean()) ** 2) / (count - 1)
    within = sum(float(((part - part.mean()) ** 2).sum()) for part in parts) / degrees
    if not between or (within and fisher_tail(between / within, count - 1, degrees) > 1 - CONFIDENCE):
        return None
    # Prompts that were asked in slow stretches only would hide how slow these were.
    measured = [float(part.mean()) for part in np.array_split(_mean(logs_N, design.block_N), count)]
    return RatioChange(lowest=to_ratio(min(measured)), highest=to_ratio(max(measured)))


def _mean_of_blocks(logs_N: Array, design: Design) -> tuple[Array, float]:
    """Return [B] the means of blocks as if all prompts gained the same, and the degrees of freedom that this takes.

    As they are, and none, where prompts came once.
    """
    spent = 0.0
    if np.bincount(design.prompt_N).min() > 1:
        logs_N = logs_N - _mean(logs_N, design.prompt_N)[design.prompt_N] + logs_N.mean()
        spent = (design.num_prompts - 1) * design.num_blocks / len(logs_N)
    return _mean(logs_N, design.block_N), spent


def _mean(values_N: Array, group_N: Integers) -> Array:
    return np.asarray(np.bincount(group_N, weights=values_N) / np.bincount(group_N))
