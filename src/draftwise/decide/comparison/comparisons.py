"""Turns the raw readings of a run into comparisons: the one place where numbers are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite

from draftwise.core import Comparison, Finding, Interval, Run, Severity, Verdict
from draftwise.decide.comparison.cell import ALL, Cell, cells
from draftwise.decide.comparison.estimates import Numbers, SweepKey, counted, gather, looks_of, numbers
from draftwise.decide.comparison.goodput import change_of_goodput, goodput
from draftwise.decide.comparison.mixture import name_losers
from draftwise.decide.comparison.tails import ratios_of_percentiles, share_slower, tail_ratio
from draftwise.decide.comparison.verdict import judge
from draftwise.decide.thresholds import Thresholds
from draftwise.decide.validity import check_cell, check_outputs
from draftwise.statistics import (
    Estimate,
    LoadPoint,
    Looks,
    Outcome,
    adjust_family,
    detectable_ratio,
    passes_needed,
    prompts_needed,
    settle,
)

__all__ = ["compare", "compare_along_loads"]


def compare(run: Run, of_run: Sequence[Finding], thresholds: Thresholds) -> tuple[Comparison, ...]:
    """Return one comparison per workload, condition and candidate, pooled rows last.

    Errors `of_run` block every adoption. Which ratio decides under which load, and why, is told in `verdict`.
    All intervals hold at whichever look the run stopped; p-values are corrected for the looks and for the number of
    comparisons in the run.
    """
    return compare_along_loads(run, of_run, thresholds)[0]


def compare_along_loads(
    run: Run, of_run: Sequence[Finding], thresholds: Thresholds
) -> tuple[tuple[Comparison, ...], Mapping[SweepKey, list[LoadPoint]]]:
    """Return the comparisons, and the ratios that decide them as points on the axes of load."""
    cases = [_Case.of(run, cell, thresholds) for cell in cells(run)]
    drafts = [_describe(run, case, thresholds) for case in cases]
    adjusted, sizes = _adjust([draft for draft, _ in drafts])
    comparisons = (
        _conclude(
            replace(draft, adjusted_p=p), case, [*findings, *_of_members(draft, drafts), *of_run], thresholds, size
        )
        for case, (draft, findings), p, size in zip(cases, drafts, adjusted, sizes, strict=True)
    )
    return tuple(comparisons), gather((case.cell, case.found) for case in cases)


def _of_members(draft: Comparison, drafts: Sequence[tuple[Comparison, list[Finding]]]) -> Iterator[Finding]:
    """Yield what was found about the rows that a pooled row pools: what blocks a part blocks the whole."""
    if draft.workload == ALL:
        for member, findings in drafts:
            if member.workload != ALL and (member.condition, member.candidate) == (draft.condition, draft.candidate):
                yield from findings


def _adjust(drafts: Sequence[Comparison]) -> tuple[list[float | None], list[int]]:
    """Return the p-values corrected for the other comparisons, and the number of these.

    Pooled rows are a family of their own: they repeat what the others say, and would only make them weaker.
    """
    adjusted: list[float | None] = [None] * len(drafts)
    sizes = [1] * len(drafts)
    for pooled in (False, True):
        places = [place for place, draft in enumerate(drafts) if (draft.workload == ALL) is pooled]
        for place, p in zip(places, adjust_family([drafts[place].p_value for place in places]), strict=True):
            adjusted[place], sizes[place] = p, len(places)
    return adjusted, sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A cell on the way to its verdict."""

    whole: Cell
    cell: Cell
    """What the numbers rest on: of a server that remembers, the first pass alone."""
    known: Cell | None
    """Then, the later passes."""
    found: Numbers
    looks: Looks
    done: int

    @classmethod
    def of(cls, run: Run, whole: Cell, thresholds: Thresholds) -> _Case:
        cell, known = counted(whole, thresholds)
        looks, done = looks_of(run, cell, remembers=known is not None)
        return cls(whole=whole, cell=cell, known=known, found=numbers(cell), looks=looks, done=done)

    @property
    def level(self) -> float:
        return self.looks.level(self.done)

    @property
    def warm_speedup(self) -> float | None:
        return numbers(self.known).speedup.value if self.known is not None and self.known.units else None

    def needed(self, count: Callable[..., int | None], margin: float) -> int | None:
        """Return how many prompts or passes would settle it; None where nothing varies, so that all is settled."""
        if self.found.deciding.spread.variance == 0:
            return None
        return count(self.found.deciding, margin=margin, alpha=self.level)

    def interval(self, estimate: Estimate | None) -> Interval | None:
        return None if estimate is None else self.looks.interval(estimate, self.done)


def _describe(run: Run, case: _Case, thresholds: Thresholds) -> tuple[Comparison, list[Finding]]:
    """Return a comparison without its verdict, and what was found about it."""
    cell, found, margin = case.cell, case.found, thresholds.margin
    speedup, ttft = case.looks.interval(found.speedup, case.done), case.interval(found.ttft)
    equal, of_outputs = check_outputs(run, case.whole, thresholds.tie_gap_of(_dtype(run)))
    findings = [*check_cell(run, cell, speedup, ttft, thresholds), *of_outputs, *_memory(case)]
    detectable = detectable_ratio(found.deciding, margin=margin, alpha=case.level)
    comparison = Comparison(
        workload=cell.workload,
        candidate=cell.candidate,
        condition=cell.condition,
        num_prompts=len(cell.units),
        passes=cell.passes(cell.candidate),
        speedup=speedup,
        total=case.looks.interval(found.total, case.done),
        ttft=ttft,
        tpot=case.interval(found.tpot),
        tail=tail_ratio(found.shared),
        share_slower=share_slower(found.speedup, margin),
        counters=cell.counters(cell.candidate),
        equal_outputs=equal,
        warm_speedup=case.warm_speedup,
        verdict=Verdict.INCONCLUSIVE,
        reason="",
        # Those of a pooled row count for its verdict, and are told once, with the rows that it pools.
        findings=() if cell.workload == ALL else tuple(findings),
        throughput=case.interval(found.throughput),
        percentiles=ratios_of_percentiles(found.shared, found.design, 1 - case.level),
        goodput=goodput(found.shared, thresholds),
        goodput_change=change_of_goodput(found.shared, found.design, thresholds, 1 - case.level),
        p_value=case.looks.adjust(found.deciding.p_value(), case.done),
        detectable=detectable if isfinite(detectable) else None,
        prompts_needed=case.needed(prompts_needed, margin),
    )
    return comparison, findings


def _conclude(
    draft: Comparison, case: _Case, findings: Sequence[Finding], thresholds: Thresholds, family: int
) -> Comparison:
    """Return the comparison with its verdict, as one of a family of so many."""
    found, margin = case.found, thresholds.margin
    verdict, reason = judge(
        draft,
        findings,
        thresholds,
        promise=change_of_goodput(found.shared, found.design, thresholds, 1 - case.level / family),
        passes_needed=case.needed(partial(passes_needed, passes=len(draft.passes)), margin),
        losers=name_losers(case.cell, found.speedup),
    )
    outcome = settle(found.deciding, case.looks, case.done, margin=margin, family=family)
    stands = verdict is not Verdict.INCONCLUSIVE or outcome is Outcome.EQUAL
    return replace(draft, verdict=verdict, reason=reason, settled=outcome is not None and stands)


def _dtype(run: Run) -> str | None:
    dtype = run.context.model.dtype
    return dtype if isinstance(dtype, str) else None


def _memory(case: _Case) -> Iterator[Finding]:
    if case.known is None:
        return
    new, old = (each.counters(each.candidate).tokens_per_step or 0 for each in (case.cell, case.known))
    warm = case.warm_speedup
    yield Finding(
        code="repeated-prompts-warm-cache",
        severity=Severity.INFO,
        message=f"it remembers answers: {old:.2f} tokens per step when prompts come back, {new:.2f} the first time. "
        "Its numbers rest on the first pass alone"
        + ("." if warm is None else f"; with every prompt known it would be {warm:.2f}x."),
    )
