"""Computes ratios of candidate over baseline from paired readings: how sure they are, and whether they drifted.

Readings of one prompt vary together, and so do those of one paired block and of one cluster of prompts (a conversation,
a tenant): the design says which do, and the spread of every number that follows counts with it.

Prompts are a sample of a log, drawn in a spread order, and the log is a sample of traffic: intervals are for traffic
like the log. What the order of the log explains was drawn evenly, and is no error; what is left is seen between prompts
that are neighbors in the log.

Intervals take paired blocks for independent. They are not where one of two servers was slow for a good part of the
run: `draftwise.statistics.pace` looks for that.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from draftwise.core import Interval
from draftwise.statistics.estimate import (
    CONFIDENCE,
    RatioEstimate,
    Spread,
    student_quantile,
    upper_student_quantile,
)

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
_FEWEST_NEIGHBOURS = 12
"""Prompts from which neighbors in the log tell the variance; fewer of them are too few differences."""
FEWEST_CLUSTERS = 6
"""Clusters below which nothing is known of others: they count as parts of the log, which were all drawn from."""
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
    places_P: Array | None = None
    """Places of the prompts in the order of the log; None where that is not known."""
    clusters_P: Integers | None = None
    """Numbers of the clusters that prompts belong to; None without any."""
    population: int = 0
    """Prompts of the log that they were drawn from; 0: not known."""
    routes_P: Integers | None = None
    """Numbers of the routes that places are sorted by; None where that is not known."""

    @classmethod
    def of(
        cls,
        requests: Sequence[tuple[Hashable, Hashable]],
        *,
        places: Mapping[Hashable, float] | None = None,
        clusters: Mapping[Hashable, Hashable] | None = None,
        population: int = 0,
        routes: Mapping[Hashable, Hashable] | None = None,
    ) -> Design:
        """Return the design of requests given as (prompt, paired block), both by any names.

        Args:
            places: each prompt's in the order of the log.
            clusters: each prompt's.
            population: prompts of the log.
            routes: each prompt's; places are sorted by them first.
        """
        prompts = _number([prompt for prompt, _ in requests])
        blocks = _number([block for _, block in requests])

        def find_groups(groups: Mapping[Hashable, Hashable] | None) -> Integers | None:
            if groups is None:
                return None
            numbers = _number([groups[prompt] for prompt in prompts])
            return np.array([numbers[groups[prompt]] for prompt in prompts], dtype=np.int64)

        return cls(
            prompt_N=np.array([prompts[prompt] for prompt, _ in requests], dtype=np.int64),
            block_N=np.array([blocks[block] for _, block in requests], dtype=np.int64),
            prompts=tuple(prompts),
            places_P=None if places is None else np.array([places[prompt] for prompt in prompts], dtype=np.float64),
            clusters_P=find_groups(clusters),
            population=population,
            routes_P=find_groups(routes),
        )

    def only(self, kept_N: NDArray[np.bool_]) -> Design:
        """Return the design of some of the requests."""
        kept = np.unique(self.prompt_N[kept_N])
        return Design(
            prompt_N=_dense(self.prompt_N[kept_N]),
            block_N=_dense(self.block_N[kept_N]),
            prompts=tuple(self.prompts[number] for number in kept) if self.prompts else (),
            places_P=None if self.places_P is None else self.places_P[kept],
            clusters_P=None if self.clusters_P is None else _dense(self.clusters_P[kept]),
            population=self.population,
            routes_P=None if self.routes_P is None else _dense(self.routes_P[kept]),
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

    Readings are compared within their paired block, which cancels drift of the machine. A prompt's ratio is the
    (geometric) mean over its readings.

    Args:
        candidate_N: readings, NaN if missing; only positive ones count.
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
    design, logs_N = design.only(kept_N), logs_N[kept_N]
    num_P = np.bincount(design.prompt_N)
    logs_P = np.bincount(design.prompt_N, weights=logs_N) / num_P
    log = float(logs_P.mean())
    influence_N = (logs_N - log) / (len(num_P) * num_P[design.prompt_N])
    by_prompt = dict(zip(design.prompts, logs_P.tolist(), strict=False))
    return RatioEstimate(log=log, spread=find_spread(influence_N, design), log_by_prompt=by_prompt)


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


def weigh(estimates: Sequence[RatioEstimate], weights: Sequence[float]) -> RatioEstimate | None:
    """Return the weighted (geometric) mean of ratios of parts that were measured on their own; None for none.

    Args:
        estimates: one for each part.
        weights: positive; their sum does not matter.
    """
    if not estimates:
        return None
    shares = [each / sum(weights) for each in weights]
    variances = [share**2 * each.spread.variance for share, each in zip(shares, estimates, strict=True)]
    variance = sum(variances)
    degrees = 1.0
    if 0 < variance < math.inf:
        parts = (part**2 / each.spread.degrees for part, each in zip(variances, estimates, strict=True))
        degrees = max(1.0, variance**2 / sum(parts))
    spread = Spread(
        variance=variance,
        degrees=degrees,
        lasting=sum(share**2 * each.spread.lasting for share, each in zip(shares, estimates, strict=True)),
        num_prompts=sum(each.spread.num_prompts for each in estimates),
        num_blocks=sum(each.spread.num_blocks for each in estimates),
    )
    log = sum(share * each.log for share, each in zip(shares, estimates, strict=True))
    by_prompt = {name: each for part in estimates for name, each in part.log_by_prompt.items()}
    return RatioEstimate(log=log, spread=spread, log_by_prompt=by_prompt)


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
    two blocks are one degree, which makes every interval very wide: wait for the third. Where blocks hold a single
    prompt, prompts are all there is to resample: their variance is seen between neighbors in the log (`_Neighbors`).
    Clusters count where they make the variance larger. Simulated in `benchmarks/cpu/statistics_simulation.py` and
    `benchmarks/cpu/decision_simulation.py`: 95 % intervals cover 93-97 %, and more (up to 99 %) where few prompts or
    blocks differ by nothing but noise.
    """
    prompts, blocks, cells = (
        _Part(influence_N, group_N) for group_N in (design.prompt_N, design.block_N, design.cell_N)
    )
    variance, degrees = _combine(prompts, blocks, cells, _Neighbors(influence_N, design))
    if design.clusters_P is not None:
        clusters = _Part(influence_N, design.clusters_P[design.prompt_N])
        if FEWEST_CLUSTERS <= clusters.count < prompts.count and clusters.variance > variance:
            variance, degrees = clusters.variance, clusters.degrees
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


class _Neighbors:
    """The variance of a sum over prompts that were drawn in a spread order over a log.

    Half the mean square of the differences between neighbors (von Neumann, Annals of Mathematical Statistics 1941) is
    the variance without what the order of the log explains, routes and drift alike; that part was drawn evenly. The
    log's own mix of routes is a sample as well, of as many prompts as the log has; so is all of it where routes are not
    known. Traffic like the log changes in its course as the log does.
    """

    def __init__(self, influence_N: Array, design: Design) -> None:
        scores_P = np.bincount(design.prompt_N, weights=influence_N)
        self._scores_P, count = scores_P * len(scores_P), len(scores_P)
        self.is_known = design.places_P is not None and count >= _FEWEST_NEIGHBOURS
        if design.places_P is not None and self.is_known:
            steps = np.diff(self._scores_P[np.argsort(design.places_P, kind="stable")])
            near = float((steps**2).sum()) / (2 * (count - 1))
            squares, alike = float((self._scores_P**2).sum()), near
            if design.routes_P is not None and (num_routes := _count(design.routes_P)) < count:
                sums_R = np.bincount(design.routes_P, weights=self._scores_P)
                alike = (squares - float((sums_R**2 / np.bincount(design.routes_P)).sum())) / (count - num_routes)
            of_mix = max(0.0, squares / (count - 1) - alike)
            self.variance = near / count + of_mix / max(count, design.population)
            self.degrees = 2 * (count - 1) / 3


def _combine(prompts: _Part, blocks: _Part, cells: _Part, drawn: _Neighbors) -> tuple[float, float]:
    """Return the variance over prompts and blocks, and its degrees of freedom."""
    if blocks.count == cells.count:  # each block holds one prompt: prompts are all there is to resample
        return (drawn.variance, drawn.degrees) if drawn.is_known else (prompts.variance, prompts.degrees)
    if prompts.count == cells.count:  # a single repetition: each prompt is in one block only
        return blocks.variance, blocks.degrees
    if min(prompts.count, blocks.count) < 2:
        return math.inf, 1
    variance = max(prompts.variance + blocks.variance - cells.variance, prompts.variance, blocks.variance)
    if blocks.count == 2 or variance == 0:
        return variance, 1
    degrees = variance**2 / sum(part.variance**2 / part.degrees for part in (prompts, blocks))
    return variance, min(degrees, _MOST_PER_BLOCK * blocks.degrees)


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
