"""Turns the raw readings of a run into comparisons: the one place where numbers are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, isfinite
from statistics import median

import numpy as np

from draftwise.core import Answer, Comparison, Finding, Interval, Run, Severity, Timing, Verdict
from draftwise.measure.acceptance import tokens_per_step
from draftwise.measure.cell import ALL, Cell, Shared, cells
from draftwise.measure.estimates import Numbers, counted, looks_of, numbers, requests_of
from draftwise.measure.guards import check_cell, check_outputs
from draftwise.measure.latency import keeps_promise
from draftwise.measure.mixture import find_split, group_ratios
from draftwise.measure.statistics import (
    Design,
    Estimate,
    Looks,
    Outcome,
    Samples,
    adjust_family,
    detectable_ratio,
    goodput_change,
    percentile_ratios,
    prompts_needed,
    settle,
)
from draftwise.measure.thresholds import Thresholds
from draftwise.measure.verdict import judge

__all__ = ["compare"]

_DISTRIBUTIONS: Mapping[str, Callable[[Timing], Sequence[float | None]]] = {
    "ttft": lambda timing: (timing.ttft_s,),
    "tpot": lambda timing: (timing.tpot_s,),
    "itl": lambda timing: timing.itl_s,
    "e2e": lambda timing: (timing.e2e_s,),
}


def compare(run: Run, of_run: Sequence[Finding], thresholds: Thresholds) -> tuple[Comparison, ...]:
    """Return one comparison per workload, condition and candidate, pooled rows last.

    Errors `of_run` block every adoption. Which ratio decides under which load, and why, is told in `measure.verdict`.
    All intervals hold at whichever look the run stopped; p-values are corrected for the looks, and over all
    comparisons of the run (pooled rows are not counted: they repeat what the others say).
    """
    drafts = [_draft(run, cell, thresholds) for cell in cells(run)]
    family = [None if draft.cell.workload == ALL else draft.comparison.p_value for draft in drafts]
    size = sum(p is not None for p in family)
    return tuple(
        _conclude(replace(draft.comparison, adjusted_p=adjusted), draft, of_run, thresholds, max(1, size))
        for draft, adjusted in zip(drafts, adjust_family(family), strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """A comparison without its verdict, and what the verdict needs beside it."""

    comparison: Comparison
    cell: Cell
    found: Numbers
    looks: Looks
    done: int
    shared: Sequence[Shared]
    design: Design
    findings: Sequence[Finding]
    """Those of a pooled row count for its verdict, and are told once, with the rows that it pools."""


def _draft(run: Run, whole: Cell, thresholds: Thresholds) -> _Draft:
    cell, known = counted(whole, thresholds)
    looks, done = looks_of(run, cell, remembers=known is not None)
    found, (shared, design) = numbers(cell), requests_of(cell)

    def interval(estimate: Estimate | None) -> Interval | None:
        return None if estimate is None else looks.interval(estimate, done)

    speedup, ttft = looks.interval(found.speedup, done), interval(found.ttft)
    equal, of_outputs = check_outputs(run, whole, thresholds.tie_gap_of(_dtype(run)))
    findings = [*check_cell(run, cell, speedup, ttft, thresholds), *of_outputs]
    warm = None if known is None or not known.units else numbers(known).speedup.value
    if known is not None:
        findings.append(_memory_finding(cell, known, warm))
    level = looks.level(done)
    detectable = detectable_ratio(found.deciding, margin=thresholds.margin, alpha=level)
    comparison = Comparison(
        workload=cell.workload,
        candidate=cell.candidate,
        condition=cell.condition,
        num_prompts=len(cell.units),
        passes=cell.passes(cell.candidate),
        speedup=speedup,
        total=looks.interval(found.total, done),
        ttft=ttft,
        tpot=interval(found.tpot),
        tail=_tail(shared),
        share_slower=_share_slower(found.speedup, thresholds.margin),
        counters=cell.counters(cell.candidate),
        equal_outputs=equal,
        warm_speedup=warm,
        verdict=Verdict.INCONCLUSIVE,
        reason="",
        findings=() if cell.workload == ALL else tuple(findings),
        throughput=interval(found.throughput),
        percentiles=_percentiles(shared, design, 1 - level),
        goodput=_goodput(shared, thresholds),
        goodput_change=_goodput_change(shared, design, thresholds, 1 - level),
        p_value=looks.adjust(found.deciding.p_value(), done),
        detectable=detectable if isfinite(detectable) else None,
        prompts_needed=prompts_needed(found.deciding, margin=thresholds.margin, alpha=level),
    )
    return _Draft(
        comparison=comparison,
        cell=cell,
        found=found,
        looks=looks,
        done=done,
        shared=shared,
        design=design,
        findings=findings,
    )


def _conclude(
    comparison: Comparison, draft: _Draft, of_run: Sequence[Finding], thresholds: Thresholds, family: int
) -> Comparison:
    level = draft.looks.level(draft.done)
    promise = _goodput_change(draft.shared, draft.design, thresholds, 1 - level / family)
    findings, losers = [*draft.findings, *of_run], _losers(draft)
    verdict, reason = judge(comparison, findings, thresholds, promise=promise, losers=losers)
    outcome = settle(draft.found.deciding, draft.looks, draft.done, margin=thresholds.margin, family=family)
    stands = verdict is not Verdict.INCONCLUSIVE or outcome is Outcome.EQUAL
    return replace(comparison, verdict=verdict, reason=reason, settled=outcome is not None and stands)


def _tail(shared: Sequence[Shared]) -> float | None:
    """Return the ratio of P99 over prompts of the time per token; of a prompt it is the median over its askings."""
    sides: list[list[float]] = []
    for answers in ([each.candidate for each in shared], [each.plain for each in shared]):
        by_prompt: dict[tuple[str, str], list[float]] = {}
        for each, answer in zip(shared, answers, strict=True):
            if answer.error is None and (tpot := answer.timing.tpot_s) is not None:
                by_prompt.setdefault(each.unit, []).append(tpot)
        sides.append([median(values) for values in by_prompt.values()])
    if not all(sides) or min(sides[1]) <= 0:
        return None
    return float(np.quantile(sides[0], 0.99) / np.quantile(sides[1], 0.99))


def _share_slower(speedup: Estimate, margin: float) -> float:
    ratios = [exp(log) for log in speedup.log_by_prompt.values()]
    return sum(ratio < 1 - margin for ratio in ratios) / len(ratios)


def _percentiles(shared: Sequence[Shared], design: Design, confidence: float) -> dict[str, dict[int, Interval]]:
    found = {}
    for name, reading in _DISTRIBUTIONS.items():
        candidate, plain = (
            Samples([_readings(answer, reading) for answer in side])
            for side in ([each.candidate for each in shared], [each.plain for each in shared])
        )
        if ratios := percentile_ratios(candidate, plain, design, confidence=confidence):
            found[name] = ratios
    return found


def _readings(answer: Answer, reading: Callable[[Timing], Sequence[float | None]]) -> list[float]:
    return [] if answer.error is not None else [value for value in reading(answer.timing) if value is not None]


def _kept(shared: Sequence[Shared], thresholds: Thresholds) -> tuple[list[float], list[float]]:
    """Return [N] whether the candidate and plain kept the promise, as 1 or 0."""
    candidate = [float(keeps_promise(each.candidate, thresholds)) for each in shared]
    plain = [float(keeps_promise(each.plain, thresholds)) for each in shared]
    return candidate, plain


def _goodput(shared: Sequence[Shared], thresholds: Thresholds) -> tuple[float, float] | None:
    if not thresholds.has_slo:
        return None
    candidate, plain = _kept(shared, thresholds)
    return sum(plain) / len(plain), sum(candidate) / len(candidate)


def _goodput_change(
    shared: Sequence[Shared], design: Design, thresholds: Thresholds, confidence: float
) -> Interval | None:
    if not thresholds.has_slo:
        return None
    candidate, plain = _kept(shared, thresholds)
    return goodput_change(np.array(candidate), np.array(plain), design, confidence=confidence)


def _dtype(run: Run) -> str | None:
    dtype = run.context.get("model", {}).get("dtype")
    return dtype if isinstance(dtype, str) else None


def _losers(draft: _Draft) -> str:
    """Return which prompts the candidate slows down, in words; empty where nothing tells them apart."""
    cell, logs = draft.cell, draft.found.speedup.log_by_prompt
    units = [unit for unit in cell.units if unit in logs]
    ratios = [exp(logs[unit]) for unit in units]
    if len(cell.workloads) > 1:
        groups = group_ratios(ratios, [workload for workload, _ in units])
        if len(groups) > 1 and next(iter(groups.values()))[0] < 1:
            return ", ".join(f"{name} {ratio:.2f}x" for name, (ratio, _) in groups.items())
    split = find_split(ratios, dict(_traits(cell, units)))
    return "" if split is None else split.words


def _traits(cell: Cell, units: Sequence[tuple[str, str]]) -> Iterator[tuple[str, Sequence[float]]]:
    """Yield what is known of each prompt, by name."""
    reads: Mapping[str, tuple[str, Callable[[Answer], float | None]]] = {
        "tokens per step": (cell.candidate, tokens_per_step),
        "prompt tokens": (cell.plain, lambda answer: answer.num_prompt_tokens),
        "output tokens": (cell.plain, lambda answer: answer.timing.num_tokens),
    }
    for name, (arm, reading) in reads.items():
        yield name, [_mean([reading(answer) for answer in cell.outputs(arm, unit)]) for unit in units]


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else float("nan")


def _memory_finding(first: Cell, later: Cell, warm: float | None) -> Finding:
    new, old = (each.counters(each.candidate).tokens_per_step or 0 for each in (first, later))
    return Finding(
        code="repeated-prompts-warm-cache",
        severity=Severity.INFO,
        message=f"it remembers answers: {old:.2f} tokens per step when prompts come back, {new:.2f} the first time. "
        "Its numbers rest on the first pass alone"
        + ("." if warm is None else f"; with every prompt known it would be {warm:.2f}x."),
    )
