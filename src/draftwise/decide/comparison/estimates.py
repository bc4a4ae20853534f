"""The ratios of a cell as estimates that know how sure they are: what verdicts, early stopping and crossovers share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from draftwise.core import ClosedLoop, Interval, Run, Timing
from draftwise.decide.comparison.cache_effect import has_cache_effect
from draftwise.decide.comparison.cell import Cell, PairedRequest
from draftwise.decide.comparison.throughput import measure_output
from draftwise.decide.thresholds import Thresholds
from draftwise.statistics import (
    Array,
    Design,
    Estimate,
    InterimAnalyses,
    LoadPoint,
    prompt_ratio,
    server_ratio,
    total_ratio,
)

__all__ = ["Estimates", "Ratios", "SweepKey", "estimate_cell", "estimate_ratios", "gather_load_points"]

SweepKey = tuple[str, str, float, str]
"""Workload, candidate, temperature and axis of load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """The requests of a cell and their ratios of candidate over baseline, None where an arm has no such reading."""

    paired: Sequence[PairedRequest]
    design: Design
    """Which of these requests have a variance in common."""
    speedup: Estimate
    """Output tokens per second of a request."""
    total: Estimate
    """All output tokens over all request seconds."""
    ttft: Estimate | None
    tpot: Estimate | None
    throughput: Estimate | None
    """Output tokens per second of the server; None with one request in flight."""
    deciding: Estimate
    """The one that `Comparison.decided_by` names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """What a cell is known to be, and how often it was looked at with the intention to stop."""

    whole: Cell
    cell: Cell
    """What the numbers rest on: of a server with a cross-request cache, the first repetition alone."""
    repeated: Cell | None
    """Then, the later repetitions."""
    ratios: Ratios
    warm_speedup: float | None
    """Of the later repetitions."""
    analyses: InterimAnalyses
    done: int
    """Repetitions that were measured."""

    @property
    def level(self) -> float:
        """Two-sided p-value below which the current analysis is significant."""
        return self.analyses.level(self.done)

    def interval(self, estimate: Estimate) -> Interval:
        """Return the interval of an estimate that holds whenever the run stopped."""
        return self.analyses.interval(estimate, self.done)

    def find_interval(self, estimate: Estimate | None) -> Interval | None:
        """Return the same where there is an estimate."""
        return None if estimate is None else self.interval(estimate)


def estimate_cell(run: Run, whole: Cell, thresholds: Thresholds) -> Estimates:
    """Return the estimates of a cell."""
    cell, repeated = _split_repetitions(whole, thresholds)
    if repeated is not None:
        analyses, done = InterimAnalyses.single(1), 1
    else:
        plan = InterimAnalyses.planned if run.plan.adaptive else InterimAnalyses.single
        analyses, done = plan(run.plan.repeats), len(cell.repetitions)
    return Estimates(
        whole=whole,
        cell=cell,
        repeated=repeated,
        ratios=estimate_ratios(cell),
        warm_speedup=estimate_ratios(repeated).speedup.value if repeated is not None and repeated.units else None,
        analyses=analyses,
        done=done,
    )


def _split_repetitions(cell: Cell, thresholds: Thresholds) -> tuple[Cell, Cell | None]:
    """Return the part of a cell that its numbers rest on, and the rest where the candidate gains from repetition.

    Both arms lose their later repetitions then: the first one is slower for all, as servers and caches are cold.
    """
    if not has_cache_effect(cell, thresholds):
        return cell, None
    first, *later = cell.repetitions
    new = cell.keep_repetitions([first])
    return (new, cell.keep_repetitions(later)) if new.units else (cell, None)


def estimate_ratios(cell: Cell) -> Ratios:
    """Return the ratios of a cell that has a prompt answered by both arms."""
    paired = cell.pair_requests()
    design = Design.of([(each.unit, each.block) for each in paired])

    def ratio(reading: Callable[[Timing], float | None]) -> Estimate | None:
        return prompt_ratio(*_read(paired, reading), design)

    speedup = ratio(lambda timing: timing.tokens_per_s)
    tokens, seconds = _read(paired, lambda timing: timing.num_tokens), _read(paired, lambda timing: timing.e2e_s)
    total = total_ratio(tokens[0], seconds[0], tokens[1], seconds[1], design)
    assert speedup is not None, "a cell has a prompt that both arms answered"
    assert total is not None, "what has a speed-up has tokens and seconds"
    throughput = _estimate_throughput(cell, speedup, total)
    closed = isinstance(cell.condition.load, ClosedLoop)
    return Ratios(
        paired=paired,
        design=design,
        speedup=speedup,
        total=total,
        ttft=ratio(lambda timing: timing.ttft_s),
        tpot=ratio(lambda timing: timing.tpot_s),
        throughput=throughput,
        deciding=throughput if closed and throughput is not None else speedup,
    )


def _read(paired: Sequence[PairedRequest], reading: Callable[[Timing], float | None]) -> tuple[Array, Array]:
    """Return [N] a reading of every request on the candidate and on the baseline, NaN where it failed or has none."""

    def value(timing: Timing, error: str | None) -> float:
        found = None if error is not None else reading(timing)
        return float("nan") if found is None else found

    candidate = [value(each.candidate.timing, each.candidate.error) for each in paired]
    baseline = [value(each.baseline.timing, each.baseline.error) for each in paired]
    return np.array(candidate, dtype=np.float64), np.array(baseline, dtype=np.float64)


def _estimate_throughput(cell: Cell, speedup: Estimate, total: Estimate) -> Estimate | None:
    """Return the ratio of the servers' output tokens per second, as sure as other prompts would leave it.

    The value is counted on the servers, turn by turn. How sure it is cannot be seen from a few turns of one and the
    same prompts; in a full closed loop it equals all tokens over all request seconds (Little's law: the requests in
    flight are given), whose uncertainty over prompts and paired blocks is known.
    """
    if cell.condition.concurrency == 1:
        return None
    sides = [
        (ours.per_s, theirs.per_s)
        for candidate, baseline in cell.pair_turns()
        if (ours := measure_output(cell.answers_by_turn[candidate.turn])) is not None
        and (theirs := measure_output(cell.answers_by_turn[baseline.turn])) is not None
        and ours.tokens
        and theirs.tokens
    ]
    if not sides:
        return None
    counted_T = np.array(sides, dtype=np.float64)
    server = server_ratio(counted_T[:, 0], counted_T[:, 1])
    wider = max(total.spread, server.spread, key=lambda each: each.variance)
    spread = replace(total.spread, variance=wider.variance, degrees=wider.degrees)
    return replace(server, spread=spread, log_by_prompt=speedup.log_by_prompt)


def gather_load_points(estimates: Iterable[Estimates]) -> Mapping[SweepKey, list[LoadPoint]]:
    """Return the deciding ratio of every measured load, lightest first, by sweep; pooled rows included."""
    points: dict[SweepKey, list[LoadPoint]] = {}
    for each in estimates:
        if (place := each.cell.condition.place) is not None:
            axis, load = place
            sweep = (each.cell.workload, each.cell.candidate, each.cell.condition.temperature, axis)
            points.setdefault(sweep, []).append(LoadPoint(load=load, estimate=each.ratios.deciding))
    return {sweep: sorted(line, key=lambda point: point.load) for sweep, line in points.items()}
