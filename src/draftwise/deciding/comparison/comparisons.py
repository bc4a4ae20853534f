"""From the requests of a cell to the numbers of its comparison, still without a verdict."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from draftwise.core import Answer, ClosedLoop, Comparison, Interval, Run, Timing, Verdict
from draftwise.core.comparison import ALL
from draftwise.deciding.comparison.cell import Cell, PairedRequest, Unit, make_cells
from draftwise.deciding.comparison.latencies import LATENCIES, keeps_promise, measure_output
from draftwise.deciding.comparison.recall import Recall, divide_cell
from draftwise.deciding.disturbance import LostPair
from draftwise.deciding.thresholds import Thresholds
from draftwise.runs.turn_order import count_repetitions
from draftwise.statistics import (
    Array,
    Conclusion,
    Design,
    InterimAnalyses,
    PowerOutlook,
    RatioChange,
    RatioEstimate,
    adjust_family,
    find_change,
    find_outlook,
    goodput_change,
    percentile_ratios,
    prompt_ratio,
    server_ratio,
    settle,
    total_ratio,
)

__all__ = ["ComparisonNumbers", "Estimates", "PairLoss", "Ratios", "compare_cells", "estimate_cells", "estimate_ratios"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """The requests of a cell and their ratios of candidate over baseline, None where an arm has no such reading."""

    paired: Sequence[PairedRequest]
    design: Design
    """Which of these requests have a variance in common."""
    speedup: RatioEstimate
    """Output tokens per second of a request."""
    total: RatioEstimate
    """All output tokens over all request seconds."""
    ttft: RatioEstimate | None
    tpot: RatioEstimate | None
    throughput: RatioEstimate | None
    """Output tokens per second of the server; None with one request in flight."""
    deciding: RatioEstimate
    """The one that `Comparison.decided_by` names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """What a cell is known to be, and how often it was looked at with the intention to stop."""

    whole: Cell
    cell: Cell
    """What the numbers rest on: of a server that may remember answers, those to prompts that are new to it."""
    repeated: Cell | None
    """Then, what is left out of both arms."""
    recall: Recall
    """What is known of the candidate's use of earlier answers."""
    is_new: bool
    """Whether nothing that the numbers rest on can come from it."""
    ratios: Ratios
    warm_speedup: float | None
    """Of what is left out, where prompts were seen to gain from coming back."""
    analyses: InterimAnalyses
    done: int
    """Repetitions that were measured."""
    level: float
    """Two-sided p-value below which the current analysis is significant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairLoss:
    """Pairs of turns of a comparison that count for nothing, because something disturbed every attempt at them."""

    count: int
    of: int
    """With those that count."""
    reason: str
    """What disturbed the first of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonNumbers:
    """A comparison without its verdict, and what its numbers were made of."""

    comparison: Comparison
    estimates: Estimates
    outlook: PowerOutlook
    """Of the ratio that decides."""
    change: RatioChange | None = None
    """How the speed-up changed in the course of the run; None where it stayed the same."""
    lost: PairLoss | None = None
    """None where every pair counts."""
    faster: Mapping[str, int] = field(default_factory=dict)
    """Pairs that were set aside in which one of the two arms alone was far faster than usual, by that arm."""
    promise: Interval | None = None
    """Change of the share of requests within the SLO, sure enough for all comparisons of the run together."""
    conclusion: Conclusion | None = None
    """At which it may stop, as one of the comparisons of the run; None: go on."""


def compare_cells(run: Run, lost: Sequence[LostPair], thresholds: Thresholds) -> list[ComparisonNumbers]:
    """Return the numbers of every comparison of a run, pooled rows last.

    Args:
        run: with what counts.
        lost: what disturbances cost its candidates.
        thresholds: of the run.
    """
    found = [_compare(run, each, lost, thresholds) for each in estimate_cells(run, thresholds)]
    return _correct_for_number(found, thresholds)


def estimate_cells(run: Run, thresholds: Thresholds) -> tuple[Estimates, ...]:
    """Return the estimates of every workload, condition and candidate, pooled rows last."""
    return tuple(_estimate(run, cell, thresholds) for cell in make_cells(run))


def _estimate(run: Run, whole: Cell, thresholds: Thresholds) -> Estimates:
    memory = divide_cell(run, whole, thresholds)
    cell, repeated = memory.cell, memory.repeated
    is_helped = memory.recall is Recall.SHOWN and repeated is not None and repeated.units
    done = len(cell.repetitions)
    if run.plan.adaptive and repeated is None:
        planned = count_repetitions(run, cell.workloads, cell.condition, cell.candidate)
        analyses = InterimAnalyses.planned(max(done, planned))
    else:
        analyses = InterimAnalyses((run.plan.repeats if repeated is None else done,))
    return Estimates(
        whole=whole,
        cell=cell,
        repeated=repeated,
        recall=memory.recall,
        is_new=memory.is_new,
        ratios=estimate_ratios(cell),
        warm_speedup=estimate_ratios(repeated).speedup.value if repeated is not None and is_helped else None,
        analyses=analyses,
        done=done,
        level=analyses.level(done),
    )


def estimate_ratios(cell: Cell) -> Ratios:
    """Return the ratios of a cell that has a prompt answered by both arms."""
    paired = cell.paired
    design = Design.of([(each.unit, each.block) for each in paired])

    def ratio(reading: Callable[[Timing], float | None]) -> RatioEstimate | None:
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


def _estimate_throughput(cell: Cell, speedup: RatioEstimate, total: RatioEstimate) -> RatioEstimate | None:
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


def _compare(run: Run, estimates: Estimates, lost: Sequence[LostPair], thresholds: Thresholds) -> ComparisonNumbers:
    """Return the numbers of a comparison.

    All intervals hold at whichever interim analysis the run stopped; p-values are corrected for these analyses.
    """
    cell, ratios, confidence = estimates.cell, estimates.ratios, 1 - estimates.level
    outlook = find_outlook(ratios.deciding, estimates.done, margin=thresholds.margin, alpha=estimates.level)
    goodput, change = _estimate_goodput(ratios, thresholds, confidence)
    differences, num_units = estimates.whole.differences, len(estimates.whole.units)
    comparison = Comparison(
        workload=cell.workload,
        candidate=cell.candidate,
        condition=cell.condition,
        num_prompts=len(cell.units),
        repetitions=cell.repetitions,
        speedup=ratios.speedup.interval(confidence),
        total=ratios.total.interval(confidence),
        ttft=_find_interval(ratios.ttft, confidence),
        tpot=_find_interval(ratios.tpot, confidence),
        tail=_find_tail_ratio(ratios.paired),
        share_slower=_find_share_below(ratios.speedup, 1 - thresholds.margin),
        counters=cell.counters[cell.candidate],
        equal_outputs=None if differences is None else (num_units - len(differences), num_units),
        warm_speedup=estimates.warm_speedup,
        verdict=Verdict.INCONCLUSIVE,
        reason=None,
        throughput=_find_interval(ratios.throughput, confidence),
        percentiles=_estimate_percentiles(ratios, confidence),
        goodput=goodput,
        goodput_change=change,
        p_value=estimates.analyses.adjust(outlook.p_value, estimates.done),
        detectable=outlook.detectable if math.isfinite(outlook.detectable) else None,
        prompts_needed=outlook.prompts,
    )
    return ComparisonNumbers(
        comparison=comparison,
        estimates=estimates,
        outlook=outlook,
        change=_find_change(ratios.paired),
        lost=_sum_up(lost, run, estimates.whole),
        faster=_count_faster(run, estimates.whole),
    )


def _find_change(paired: Sequence[PairedRequest]) -> RatioChange | None:
    ordered = sorted(paired, key=lambda each: each.candidate.turn)
    candidate_N, baseline_N = _read(ordered, lambda timing: timing.tokens_per_s)
    design = Design.of([(each.unit, each.block) for each in ordered])
    with np.errstate(divide="ignore", invalid="ignore"):
        return find_change(np.log(candidate_N) - np.log(baseline_N), design)


def _sum_up(of_run: Sequence[LostPair], run: Run, cell: Cell) -> PairLoss | None:
    lost = [
        each
        for each in of_run
        if (each.candidate, each.block[1]) == (cell.candidate, cell.condition.label) and each.block[0] in cell.workloads
    ]
    if not lost:
        return None
    place = (cell.candidate, cell.condition.label)
    mine = (turn for turn in run.turns if (turn.arm, turn.condition) == place and turn.workload in cell.workloads)
    left = {turn.block_key for turn in mine}
    return PairLoss(count=len(lost), of=len(lost) + len(left), reason=lost[0].reason)


def _count_faster(run: Run, cell: Cell) -> Counter[str]:
    arms: dict[tuple[object, ...], set[str]] = {}
    for each in run.disturbances:
        is_mine = each.condition == cell.condition.label and each.workload in cell.workloads
        if is_mine and each.is_faster and each.arm in (cell.baseline, cell.candidate):
            arms.setdefault(each.attempt_key, set()).add(each.arm)
    return Counter(arm for each in arms.values() if len(each) == 1 for arm in each)


def _find_interval(estimate: RatioEstimate | None, confidence: float) -> Interval | None:
    return None if estimate is None else estimate.interval(confidence)


def _find_share_below(estimate: RatioEstimate, ratio: float) -> float:
    """Return the share of the prompts whose own ratio lies below a ratio."""
    logs = estimate.log_by_prompt.values()
    return sum(math.exp(log) < ratio for log in logs) / len(logs)


def _estimate_goodput(
    ratios: Ratios, thresholds: Thresholds, confidence: float
) -> tuple[tuple[float, float] | None, Interval | None]:
    """Return the shares of the requests within the SLO (baseline, candidate), and candidate minus baseline of them.

    None without an SLO.
    """
    if not thresholds.has_slo:
        return None, None
    candidate_N = np.array([float(keeps_promise(each.candidate, thresholds)) for each in ratios.paired])
    baseline_N = np.array([float(keeps_promise(each.baseline, thresholds)) for each in ratios.paired])
    change = goodput_change(candidate_N, baseline_N, ratios.design, confidence=confidence)
    return (float(baseline_N.mean()), float(candidate_N.mean())), change


def _estimate_percentiles(ratios: Ratios, confidence: float) -> dict[str, dict[int, Interval]]:
    """Return candidate over baseline of P50 to P99 over requests, by latency."""
    found = {}
    sides = [each.candidate for each in ratios.paired], [each.baseline for each in ratios.paired]
    for name, reading in LATENCIES.items():
        candidate, baseline = ([_read_latency(answer, reading) for answer in side] for side in sides)
        if percentiles := percentile_ratios(candidate, baseline, ratios.design, confidence=confidence):
            found[name] = percentiles
    return found


def _read_latency(answer: Answer, reading: Callable[[Timing], Sequence[float | None]]) -> list[float]:
    return [] if answer.error is not None else [value for value in reading(answer.timing) if value is not None]


def _find_tail_ratio(paired: Sequence[PairedRequest]) -> float | None:
    """Return the ratio of P99 over prompts of the time per token.

    A prompt's time is the median over its attempts: a single stalled attempt does not make a slow prompt.
    """
    candidate = _by_prompt((each.unit, each.candidate) for each in paired)
    baseline = _by_prompt((each.unit, each.baseline) for each in paired)
    if not candidate or not baseline or min(baseline) <= 0:
        return None
    return float(np.quantile(candidate, 0.99) / np.quantile(baseline, 0.99))


def _by_prompt(answers: Iterable[tuple[Unit, Answer]]) -> list[float]:
    times: dict[Unit, list[float]] = {}
    for unit, answer in answers:
        if answer.error is None and (tpot := answer.timing.tpot_s) is not None:
            times.setdefault(unit, []).append(tpot)
    return [median(values) for values in times.values()]


def _correct_for_number(found: Sequence[ComparisonNumbers], thresholds: Thresholds) -> list[ComparisonNumbers]:
    """Return the comparisons with what they say corrected for the others of the run.

    Pooled rows are a family of their own: they repeat what the others say, and would only make them weaker.
    """
    corrected = list(found)
    for pooled in (False, True):
        places = [place for place, each in enumerate(found) if (each.comparison.workload == ALL) is pooled]
        adjusted = adjust_family([found[place].comparison.p_value for place in places])
        for place, p in zip(places, adjusted, strict=True):
            comparison, estimates, family = found[place].comparison, found[place].estimates, len(places)
            ratios, analyses, done = estimates.ratios, estimates.analyses, estimates.done
            corrected[place] = replace(
                found[place],
                comparison=replace(comparison, adjusted_p=p),
                promise=_estimate_goodput(ratios, thresholds, 1 - estimates.level / family)[1],
                conclusion=settle(ratios.deciding, analyses, done, margin=thresholds.margin, family=family),
            )
    return corrected
