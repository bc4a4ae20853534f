"""Ratios of candidate over baseline: of the typical prompt, of all tokens per second, of a server's throughput."""

from __future__ import annotations

import math

import numpy as np

from draftwise.core import Interval
from draftwise.statistics.clusters import Spread
from draftwise.statistics.design import Array, Design, Integers
from draftwise.statistics.estimate import CONFIDENCE, Estimate
from draftwise.statistics.student import student_quantile

__all__ = ["goodput_change", "prompt_ratio", "server_ratio", "total_ratio"]

_FAR = 3.0
"""Robust standard deviations from a prompt's median to which readings further away are moved."""


def prompt_ratio(candidate_N: Array, baseline_N: Array, design: Design) -> Estimate | None:
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
    return Estimate(log=log, spread=Spread.of(influence_C, cells), log_by_prompt=by_prompt)


def total_ratio(
    candidate_tokens_N: Array, candidate_s_N: Array, baseline_tokens_N: Array, baseline_s_N: Array, design: Design
) -> Estimate | None:
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
    return Estimate(log=log, spread=Spread.of(np.sum(list(influences), axis=0), design.only(kept_N)))


def server_ratio(candidate_T: Array, baseline_T: Array) -> Estimate:
    """Return the geometric mean over paired blocks of a server's throughput, candidate / baseline, for these prompts.

    One number per turn cannot tell what other prompts would have done: its error is that for this workload only.
    """
    logs_T = np.log(candidate_T / baseline_T)
    block_T = np.arange(len(logs_T))
    influence_T = (logs_T - logs_T.mean()) / len(logs_T)
    return Estimate(log=float(logs_T.mean()), spread=Spread.of(influence_T, Design(prompt_N=block_T, block_N=block_T)))


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
    found = Spread.of((change_N - change_N.mean()) / len(change_N), design.only(kept_N))
    error = math.sqrt(found.variance * found.num_prompts**2 + 1) / (found.num_prompts + 2)
    reach = student_quantile((1 + confidence) / 2, found.degrees) * error
    value = float(change_N.mean())
    return Interval(value=value, low=max(-1.0, value - reach), high=min(1.0, value + reach))


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
