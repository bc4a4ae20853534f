"""The ratios of a cell as estimates that know how sure they are: what verdicts, early stopping and crossovers share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from draftwise.core import ClosedLoop, Run, Timing
from draftwise.decide.comparison.axis import place_on_axis
from draftwise.decide.comparison.cell import Cell, Shared, cells
from draftwise.decide.comparison.throughput import count_tokens
from draftwise.decide.thresholds import Thresholds, thresholds_of
from draftwise.decide.validity import has_memory
from draftwise.statistics import (
    Array,
    Design,
    Estimate,
    LoadPoint,
    Looks,
    prompt_ratio,
    server_ratio,
    total_ratio,
)

__all__ = ["Numbers", "SweepKey", "counted", "gather", "load_points", "looks_of", "numbers"]

SweepKey = tuple[str, str, float, str]
"""Workload, candidate, temperature and axis of load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The requests of a cell and their ratios of candidate over plain, None where an arm has no such reading."""

    shared: Sequence[Shared]
    design: Design
    """Which of these requests share their luck."""
    speedup: Estimate
    """Output tokens per second of a request."""
    total: Estimate
    """All output tokens over all request seconds."""
    ttft: Estimate | None
    tpot: Estimate | None
    throughput: Estimate | None
    """Output tokens per second of the server; None with one request in flight."""
    deciding: Estimate
    """The one that `verdict.deciding` names."""


def counted(cell: Cell, thresholds: Thresholds) -> tuple[Cell, Cell | None]:
    """Return the part of a cell that its numbers rest on, and the rest where the server remembers.

    Both arms lose their later passes then: the first one is slower for all of them, as servers and caches are cold.
    """
    if not has_memory(cell, thresholds):
        return cell, None
    first, *later = cell.passes(cell.candidate)
    new = cell.only([first])
    return (new, cell.only(later)) if new.units else (cell, None)


def looks_of(run: Run, cell: Cell, *, remembers: bool) -> tuple[Looks, int]:
    """Return after which passes a cell was looked at with the intention to stop, and how many it had."""
    if remembers:
        return Looks.single(1), 1
    looks = Looks.planned(run.plan.repeats) if run.plan.adaptive else Looks.single(run.plan.repeats)
    return looks, len(cell.passes(cell.candidate))


def _read(shared: Sequence[Shared], reading: Callable[[Timing], float | None]) -> tuple[Array, Array]:
    """Return [N] a reading of every request on the candidate and on plain, NaN where it failed or has none."""

    def value(timing: Timing, error: str | None) -> float:
        found = None if error is not None else reading(timing)
        return float("nan") if found is None else found

    candidate = [value(each.candidate.timing, each.candidate.error) for each in shared]
    plain = [value(each.plain.timing, each.plain.error) for each in shared]
    return np.array(candidate, dtype=np.float64), np.array(plain, dtype=np.float64)


def numbers(cell: Cell) -> Numbers:
    """Return the ratios of a cell that has a prompt answered by both arms."""
    shared = cell.shared()
    design = Design.of([(each.unit, each.turns) for each in shared])

    def ratio(reading: Callable[[Timing], float | None]) -> Estimate | None:
        return prompt_ratio(*_read(shared, reading), design)

    speedup = ratio(lambda timing: timing.tokens_per_s)
    tokens, seconds = _read(shared, lambda timing: timing.num_tokens), _read(shared, lambda timing: timing.e2e_s)
    total = total_ratio(tokens[0], seconds[0], tokens[1], seconds[1], design)
    assert speedup is not None, "a cell has a prompt that both arms answered"
    assert total is not None, "what has a speed-up has tokens and seconds"
    throughput = _throughput(cell, speedup, total)
    closed = isinstance(cell.condition.load, ClosedLoop)
    return Numbers(
        shared=shared,
        design=design,
        speedup=speedup,
        total=total,
        ttft=ratio(lambda timing: timing.ttft_s),
        tpot=ratio(lambda timing: timing.tpot_s),
        throughput=throughput,
        deciding=throughput if closed and throughput is not None else speedup,
    )


def _throughput(cell: Cell, speedup: Estimate, total: Estimate) -> Estimate | None:
    """Return the ratio of the servers' output tokens per second, as sure as other prompts would leave it.

    The value is counted on the servers, turn by turn. How sure it is cannot be seen from a few turns of one and the
    same prompts; in a full closed loop it equals all tokens over all request seconds (Little's law: the requests in
    flight are given), whose uncertainty over prompts and turns is known.
    """
    if cell.condition.concurrency == 1:
        return None
    sides = [
        (ours.per_s, theirs.per_s)
        for candidate, plain in cell.pairs()
        if (ours := count_tokens(cell.turns[candidate.turn])) is not None
        and (theirs := count_tokens(cell.turns[plain.turn])) is not None
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


def load_points(run: Run) -> Mapping[SweepKey, list[LoadPoint]]:
    """Return the deciding ratio of every measured load, lightest first, by sweep; pooled rows included."""
    thresholds = thresholds_of(run)
    return gather((cell, numbers(counted(cell, thresholds)[0])) for cell in cells(run))


def gather(found: Iterable[tuple[Cell, Numbers]]) -> Mapping[SweepKey, list[LoadPoint]]:
    """Return cells with their ratios as points on the axes of their loads."""
    points: dict[SweepKey, list[LoadPoint]] = {}
    for cell, each in found:
        if (place := place_on_axis(cell.condition)) is not None:
            axis, load = place
            sweep = (cell.workload, cell.candidate, cell.condition.temperature, axis)
            points.setdefault(sweep, []).append(LoadPoint(load=load, estimate=each.deciding))
    return {sweep: sorted(line, key=lambda point: point.load) for sweep, line in points.items()}
