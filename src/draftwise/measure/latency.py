"""Latency distributions of one arm on one workload, by the usual definitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np

from draftwise.core import Answer, Comparison, Run, Timing
from draftwise.measure.thresholds import Thresholds

__all__ = ["QUANTILES", "Latencies", "latencies", "tpots_ms"]

QUANTILES = (50, 90, 95, 99)

_READINGS: dict[str, Callable[[Timing], tuple[float | None, ...]]] = {
    "ttft": lambda timing: (timing.ttft_s,),
    "tpot": lambda timing: (timing.tpot_s,),
    "itl": lambda timing: timing.itl_s,
    "e2e": lambda timing: (timing.e2e_s,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Percentiles in milliseconds over all requests of the passes that the comparison rests on."""

    workload: str
    arm: str
    num_requests: int
    percentiles_ms: Mapping[str, tuple[float, ...]]
    """`ttft`, `tpot` (vLLM's: without the first token), `itl` (between chunks), `e2e`; in the order of QUANTILES."""
    tokens_per_s: float
    """All output tokens over all request seconds: of one stream."""
    goodput: float | None
    """Share of the requests within the operator's SLO; None without one."""


def latencies(run: Run, comparisons: tuple[Comparison, ...], thresholds: Thresholds) -> list[Latencies]:
    """Return the latencies of every arm on every workload that it answered."""
    rows = []
    for workload in run.plan.workloads:
        for arm in run.plan.arms:
            timings = [answer.timing for answer in _answers(run, comparisons, workload.name, arm.name)]
            if timings:
                rows.append(_row(workload.name, arm.name, timings, thresholds))
    return rows


def tpots_ms(run: Run, comparisons: tuple[Comparison, ...], workload: str, arm: str) -> list[float]:
    """Return the time per output token of every request, in milliseconds, ascending."""
    timings = (answer.timing for answer in _answers(run, comparisons, workload, arm))
    return sorted(1e3 * timing.tpot_s for timing in timings if timing.tpot_s is not None)


def _answers(run: Run, comparisons: tuple[Comparison, ...], workload: str, arm: str) -> list[Answer]:
    """Return an arm's good answers, of the passes that its comparison rests on (plain: of all)."""
    passes = {(each.workload, each.candidate): each.passes for each in comparisons}
    wanted = passes.get((workload, arm))
    return [
        answer
        for answer in run.answers
        if (answer.workload, answer.arm) == (workload, arm)
        and answer.error is None
        and (wanted is None or answer.repeat in wanted)
    ]


def _row(workload: str, arm: str, timings: list[Timing], thresholds: Thresholds) -> Latencies:
    def percentiles(read: Callable[[Timing], tuple[float | None, ...]]) -> tuple[float, ...]:
        values = [1e3 * value for value in chain.from_iterable(map(read, timings)) if value is not None]
        return tuple(float(each) for each in np.percentile(values, QUANTILES)) if values else ()

    return Latencies(
        workload=workload,
        arm=arm,
        num_requests=len(timings),
        percentiles_ms={name: percentiles(read) for name, read in _READINGS.items()},
        tokens_per_s=sum(timing.num_tokens for timing in timings) / sum(timing.e2e_s for timing in timings),
        goodput=_goodput(timings, thresholds),
    )


def _goodput(timings: list[Timing], thresholds: Thresholds) -> float | None:
    limits = (thresholds.slo_ttft_s, thresholds.slo_tpot_s)
    if limits == (None, None):
        return None

    def within(value: float | None, limit: float | None) -> bool:
        return limit is None or value is None or value <= limit

    return sum(within(t.ttft_s, limits[0]) and within(t.tpot_s, limits[1]) for t in timings) / len(timings)
