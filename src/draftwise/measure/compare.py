"""Turns the raw readings of a run into comparisons: the one place where numbers are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from draftwise.core import Comparison, Finding, Interval, Run, Severity, Timing
from draftwise.measure.cell import ALL, Cell, cells
from draftwise.measure.guards import check_cell, check_outputs, has_memory
from draftwise.measure.statistics import Array, mean_ratio, median_over_passes, pooled_ratio
from draftwise.measure.thresholds import Thresholds
from draftwise.measure.verdict import judge

__all__ = ["compare"]


def compare(run: Run, of_run: Sequence[Finding], thresholds: Thresholds) -> tuple[Comparison, ...]:
    """Return one comparison per workload and candidate, pooled rows last; errors `of_run` block every adoption."""
    return tuple(_compare(run, cell, of_run, thresholds) for cell in cells(run))


def _compare(run: Run, cell: Cell, of_run: Sequence[Finding], thresholds: Thresholds) -> Comparison:
    whole, memory = cell, has_memory(cell, thresholds)
    first, later = whole.passes(whole.candidate)[:1], whole.passes(whole.candidate)[1:]
    if memory:
        # Both arms: the first pass is slower for all of them, as servers and caches are still cold.
        cell = whole.only(first)
    speedup = _ratio(cell, lambda timing: timing.tokens_per_s)
    assert speedup is not None, "every answer without an error holds a token"
    ttft = _ratio(cell, lambda timing: timing.ttft_s)
    tail = _tail(cell)
    findings = list(check_cell(cell, speedup, ttft, thresholds))
    equal = None
    if run.plan.temperature == 0:
        equal, more = check_outputs(whole, run.divergences, thresholds.tie_gap_of(_dtype(run)))
        findings += more
    warm = None
    if memory:
        known = whole.only(later)
        warm = _ratio(known, lambda timing: timing.tokens_per_s)
        findings.append(_memory_finding(cell, known, warm))
    verdict, reason = judge(speedup, ttft, tail, [*findings, *of_run], thresholds)
    return Comparison(
        workload=cell.workload,
        candidate=cell.candidate,
        num_prompts=len(cell.units),
        passes=cell.passes(cell.candidate),
        speedup=speedup,
        total=_total(cell),
        ttft=ttft,
        tpot=_ratio(cell, lambda timing: timing.tpot_s),
        tail=tail,
        share_slower=_share_slower(cell, thresholds.margin),
        counters=cell.counters(cell.candidate),
        equal_outputs=equal,
        warm_speedup=None if warm is None else warm.value,
        verdict=verdict,
        reason=reason,
        findings=() if cell.workload == ALL else tuple(findings),
    )


def _medians(cell: Cell, read: Callable[[Timing], float | None]) -> tuple[Array, Array]:
    """Return [P] medians over passes of the candidate and of plain, for the prompts that have both."""
    candidate, plain = (median_over_passes(cell.readings(arm, read)) for arm in (cell.candidate, cell.plain))
    both = np.isfinite(candidate) & np.isfinite(plain)
    return candidate[both], plain[both]


def _ratio(cell: Cell, read: Callable[[Timing], float | None]) -> Interval | None:
    candidate, plain = _medians(cell, read)
    return mean_ratio(candidate, plain) if len(candidate) else None


def _total(cell: Cell) -> Interval:
    tokens = _medians(cell, lambda timing: float(timing.num_tokens))
    seconds = _medians(cell, lambda timing: timing.e2e_s)
    return pooled_ratio(tokens[0], seconds[0], tokens[1], seconds[1])


def _tail(cell: Cell) -> float | None:
    candidate, plain = _medians(cell, lambda timing: timing.tpot_s)
    if not len(candidate) or not np.all(plain > 0):
        return None
    return float(np.quantile(candidate, 0.99) / np.quantile(plain, 0.99))


def _share_slower(cell: Cell, margin: float) -> float:
    candidate, plain = _medians(cell, lambda timing: timing.tokens_per_s)
    return float(np.mean(candidate < plain * (1 - margin)))


def _dtype(run: Run) -> str | None:
    dtype = run.context.get("model", {}).get("dtype")
    return dtype if isinstance(dtype, str) else None


def _memory_finding(first: Cell, later: Cell, warm: Interval | None) -> Finding:
    new, old = (each.counters(each.candidate).tokens_per_step or 0 for each in (first, later))
    return Finding(
        code="repeated-prompts-warm-cache",
        severity=Severity.INFO,
        message=f"it remembers answers: {old:.2f} tokens per step when prompts come back, {new:.2f} the first time. "
        "Its numbers rest on the first pass alone"
        + (f"; with every prompt known it would be {warm.value:.2f}x." if warm else "."),
    )
