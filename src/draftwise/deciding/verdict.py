"""From ratios to a verdict, with its reason.

Which ratio decides depends on who waits for whom (`Comparison.decided_by`):

- One request at a time: tokens per second of a request. Nothing else happens on the server, so what the user feels
  is what the server does.
- A closed loop under load: tokens per second of the server. Its clients wait for their answers, so a faster server
  answers more in the same time: that is the capacity that an operator pays for. The time per token of a request
  must agree: capacity bought with slower answers, or the reverse, is a mixed result, for the operator to weigh.
- An open loop or a replay: tokens per second of a request, counted from when it was to be sent. Arrivals do not wait,
  so short of overload both servers put out the same tokens per second by construction, and throughput tells nothing;
  queueing is in the latency. Where the operator gave an SLO, the share of requests within it (goodput) comes first:
  it is what was promised.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from draftwise.core import ClosedLoop, Comparison, Finding, Interval, Reason, ReasonCode, Severity, Verdict
from draftwise.deciding.comparison.comparisons import ComparisonNumbers
from draftwise.deciding.comparison.losers import name_losers
from draftwise.deciding.thresholds import Thresholds
from draftwise.statistics import CONFIDENCE, FEWEST_PROMPTS, Conclusion, conclude

__all__ = ["UNSETTLING", "VOIDING", "find_signature", "judge", "judge_cell"]


_PROMISE = "share of the requests within the SLO"
_CHANCES = {Conclusion.FASTER: 1 - CONFIDENCE, Conclusion.SLOWER: 0.01}
"""p-value, corrected for all comparisons of the run, above which a difference may be chance. A gain must also clear the
margin, which chance does in 1 % of runs on identical servers; a loss need not, so that its p-value must be as small."""
UNSETTLING = ("server-cold", "noisy-machine", "unexplained-speedup")
"""Warnings that make numbers wrong either way, of which pairing and repetition do not take care."""
VOIDING = ("swapped-servers", "plain-speculates", "same-server", "arms-differ", "client-saturated", "other-traffic")
"""Errors with which two arms are not the baseline and the candidate that they are said to be."""
_FASTER_AT_TIMES = 2
"""Turns of an arm alone that show that it can be far faster: one may be luck, ..."""
_FASTER_SHARE = 0.05
"""... unless it is one of few: this share of the paired blocks is as good."""
_MOST_REPETITIONS = 20
"""More repetitions than these over the same prompts are no advice."""


def judge_cell(
    found: ComparisonNumbers, findings: Sequence[Finding], own: Sequence[Finding], thresholds: Thresholds
) -> Comparison:
    """Return the comparison with its verdict.

    Args:
        findings: all that bear on it: on itself, on what it pools, and on the whole run.
        own: those that it shows.
    """
    if doubt := _find_doubt(found, findings, thresholds):
        return replace(found.comparison, verdict=Verdict.INCONCLUSIVE, reason=doubt, findings=tuple(own))
    verdict, reason = judge(
        found.comparison,
        findings,
        thresholds,
        promise=found.promise,
        repetitions_needed=found.outlook.repetitions,
        losers=name_losers(found.estimates.cell, found.estimates.ratios.speedup),
    )
    is_final = verdict is not Verdict.INCONCLUSIVE or found.conclusion is Conclusion.EQUAL
    return replace(
        found.comparison,
        verdict=verdict,
        reason=reason,
        settled=found.conclusion is not None and is_final,
        findings=tuple(own),
    )


def judge(
    comparison: Comparison,
    findings: Sequence[Finding],
    thresholds: Thresholds,
    *,
    promise: Interval | None = None,
    repetitions_needed: int | None = None,
    losers: str = "",
) -> tuple[Verdict, Reason]:
    """Return the verdict that numbers call for which nothing makes doubtful, with a reason that counts the prompts.

    Adopt: the whole interval of the deciding ratio lies above 1 + margin, and p is 5 % at most when all comparisons of
    the run are counted. Reject: the whole interval lies below 1, the estimate below 1 - margin, and p is 1 % at most.
    An adoption is blocked by an error that a validity check found, a rejection by one that makes the two arms no
    baseline and candidate; an adoption becomes mixed when the slowest requests or the first tokens suffer.

    Args:
        comparison: its numbers; its verdict is not looked at.
        findings: on it and on the whole run.
        promise: change of the share of requests within the SLO, sure enough for all comparisons of the run together.
        repetitions_needed: repetitions of the same prompts that would settle it; None where no number of them would.
        losers: which prompts lose, in words; empty where nothing tells them apart.
    """
    verdict, reason = _weigh(comparison, findings, thresholds, promise, repetitions_needed, losers)
    return verdict, replace(reason, num_prompts=comparison.num_prompts)


def _find_doubt(found: ComparisonNumbers, findings: Sequence[Finding], thresholds: Thresholds) -> Reason | None:
    """Return why the numbers of a comparison may be wrong either way; None where nothing speaks for that."""
    if (count := found.comparison.num_prompts) < FEWEST_PROMPTS:
        return _reason(ReasonCode.FEW_PROMPTS, count=count, fewest=FEWEST_PROMPTS)
    lost, cell = found.lost, found.estimates.cell
    if lost is not None and lost.of - lost.count < thresholds.blocks_left * lost.of:
        left = thresholds.blocks_left
        return _reason(ReasonCode.DISTURBED, count=lost.count, of=lost.of, why=lost.reason, left=left)
    for each in findings:
        unsettles = each.code in UNSETTLING and each.severity is Severity.WARNING
        if unsettles and each.where in ("", cell.baseline, cell.candidate):
            return _reason(ReasonCode.UNSETTLED, message=each.message.rstrip("."), code=each.code)
    return _find_contradiction(found, thresholds)


def _find_contradiction(found: ComparisonNumbers, thresholds: Thresholds) -> Reason | None:
    """Return what in a run contradicts the ratio of the whole, None where nothing does.

    One of two servers that is slow for a good part of a run makes a ratio that is exact and wrong.
    """
    margin, cell = thresholds.margin, found.estimates.cell
    side = conclude(found.comparison.deciding, margin)
    if side not in (Conclusion.FASTER, Conclusion.SLOWER):
        return None
    loser = cell.baseline if side is Conclusion.FASTER else cell.candidate
    blocks, count = found.estimates.ratios.design.num_blocks, found.faster.get(loser, 0)
    if count >= min(_FASTER_AT_TIMES, ceil(_FASTER_SHARE * blocks)):
        return _reason(ReasonCode.FASTER_AT_TIMES, arm=loser, count=count)
    if doubt := _find_slow_server(found, loser, thresholds):
        return doubt
    change = found.change
    if change is None or (change.lowest > 1 + margin if side is Conclusion.FASTER else change.highest < 1 - margin):
        return None
    return _reason(ReasonCode.PACE_CHANGED, lowest=change.lowest, highest=change.highest)


def _find_slow_server(found: ComparisonNumbers, loser: str, thresholds: Thresholds) -> Reason | None:
    """Return that the slower arm's server is slow in what drafting has no part in, None where it is not.

    A server that is slow for as long as it is looked at, since its start, is steady, and slow beside no turn of its
    own. With a single stream its first token tells: speculation changes the time of a step, and hardly that one. Under
    a load it waits for the steps of others as well, so that it tells only where there are few turns to go by.
    """
    comparison, cell = found.comparison, found.estimates.cell
    seconds = sum(turn.wall_s for turn in cell.turns if turn.arm == loser)
    is_few = found.estimates.ratios.design.num_blocks < thresholds.slow_server_blocks
    if seconds >= thresholds.slow_server_s or not (cell.condition.concurrency == 1 or is_few):
        return None
    if comparison.ttft is None or comparison.tpot is None:
        return None
    ours, theirs = (cell.counters[arm].tokens_per_step or 1.0 for arm in (cell.candidate, cell.baseline))
    first, step = comparison.ttft, _scale(comparison.tpot, ours / theirs)
    if loser == cell.baseline:
        first, step = _inverse(first), _inverse(step)
    if min(first.low, step.low) <= 1 + thresholds.slow_server:
        return None
    return _reason(
        ReasonCode.SLOW_SERVER,
        arm=loser,
        step=step.value,
        first=first.value,
        seen_s=seconds,
        wanted_s=thresholds.slow_server_s,
    )


def _weigh(
    comparison: Comparison,
    findings: Sequence[Finding],
    thresholds: Thresholds,
    promise: Interval | None,
    repetitions_needed: int | None,
    losers: str,
) -> tuple[Verdict, Reason]:
    """Return the verdict on numbers that are right."""
    sides = dict(_sides(comparison, promise, thresholds))
    better, worse = (
        tuple(name for name, side in sides.items() if side is wanted)
        for wanted in (Conclusion.FASTER, Conclusion.SLOWER)
    )
    if better and worse:
        reason = _reason(ReasonCode.MEASURES_DISAGREE, better=better, worse=worse)
        return Verdict.MIXED, replace(reason, losers=losers)
    name, side = next(iter(sides.items()))
    if name != _PROMISE and side is not None and (doubt := _chance(comparison, side)):
        return Verdict.INCONCLUSIVE, doubt
    if side is Conclusion.SLOWER:
        return _judge_loss(findings, thresholds, promise=name == _PROMISE)
    if side is Conclusion.FASTER and not _contradicted(comparison):
        verdict, reason = _judge_gain(comparison, findings, thresholds, promise=name == _PROMISE)
        return verdict, replace(reason, losers=losers) if verdict is Verdict.MIXED else reason
    if signature := find_signature(comparison, thresholds):
        return Verdict.MIXED, replace(signature, losers=losers)
    return Verdict.INCONCLUSIVE, _doubt(comparison, side, repetitions_needed, thresholds)


def find_signature(comparison: Comparison, thresholds: Thresholds) -> Reason | None:
    """Return the signature of a mixed workload: half of the requests clearly faster, the slowest clearly slower.

    None where there is none, or where what the slowest lose is less than `tail_damage`.
    """
    for name, metric in (("time per token", "tpot"), ("end-to-end time", "e2e")):
        ratios = comparison.percentiles.get(metric, {})
        if 50 in ratios and 99 in ratios and ratios[50].high < 1 < ratios[99].low:
            half, slowest = ratios[50].value, ratios[99].value
            if half <= 1 - thresholds.margin and slowest > 1 + thresholds.tail_damage:
                return _reason(ReasonCode.MIXED_WORKLOAD, of=name, half=half, slowest=slowest)
    return None


def _sides(
    comparison: Comparison, promise: Interval | None, thresholds: Thresholds
) -> Iterator[tuple[str, Conclusion | None]]:
    """Yield what each deciding measure says, the one that comes first at first."""
    margin, closed = thresholds.margin, isinstance(comparison.condition.load, ClosedLoop)
    said = conclude(comparison.deciding, margin)
    main = (str(comparison.decided_by), said)
    kept = []
    if promise is not None and (promise.low > 0 or promise.high < 0):
        kept = [(_PROMISE, Conclusion.FASTER if promise.low > 0 else Conclusion.SLOWER)]
    yield from [main, *kept] if closed else [*kept, main]
    if closed and comparison.throughput is not None and comparison.tpot is not None:
        yield "time per token of a request", conclude(_inverse(comparison.tpot), margin)


def _scale(ratio: Interval, by: float) -> Interval:
    return Interval(value=ratio.value * by, low=ratio.low * by, high=ratio.high * by)


def _inverse(ratio: Interval) -> Interval:
    return Interval(
        value=1 / ratio.value,
        low=1 / ratio.high if ratio.high else 0.0,
        high=1 / ratio.low if ratio.low else float("inf"),
    )


def _judge_loss(findings: Sequence[Finding], thresholds: Thresholds, *, promise: bool) -> tuple[Verdict, Reason]:
    if voids := [finding for finding in findings if finding.severity is Severity.ERROR and finding.code in VOIDING]:
        return Verdict.BLOCKED, _reason(ReasonCode.NOT_TRUSTED, gains=False, promise=promise, code=voids[0].code)
    return Verdict.REJECT, _reason(ReasonCode.LOSS, promise=promise, margin=thresholds.margin)


def _contradicted(comparison: Comparison) -> bool:
    """Return whether the server gains under load while the time per token of a request, by its estimate, does not."""
    under_load = isinstance(comparison.condition.load, ClosedLoop) and comparison.throughput is not None
    return under_load and comparison.tpot is not None and comparison.tpot.value >= 1


def _chance(comparison: Comparison, side: Conclusion) -> Reason | None:
    """Return why a difference may be chance after all, None where it is significant, or none is claimed."""
    if comparison.adjusted_p is None or comparison.adjusted_p <= _CHANCES.get(side, 1.0):
        return None
    return _reason(ReasonCode.MAY_BE_CHANCE, p=comparison.adjusted_p)


def _judge_gain(
    comparison: Comparison, findings: Sequence[Finding], thresholds: Thresholds, *, promise: bool
) -> tuple[Verdict, Reason]:
    blocks = [finding for finding in findings if finding.severity is Severity.ERROR]
    if blocks:
        return Verdict.BLOCKED, _reason(ReasonCode.NOT_TRUSTED, gains=True, promise=promise, code=blocks[0].code)
    if damage := find_signature(comparison, thresholds) or _damage(comparison, thresholds):
        return Verdict.MIXED, replace(_reason(ReasonCode.GAIN_WITH_DAMAGE, promise=promise), detail=damage)
    return Verdict.ADOPT, _reason(ReasonCode.GAIN, promise=promise, margin=thresholds.margin)


def _damage(comparison: Comparison, thresholds: Thresholds) -> Reason | None:
    """Return what the slowest requests or the first tokens suffer, None where they do not."""
    tail, ttft = comparison.tail, comparison.ttft
    if tail is not None and tail > 1 + thresholds.tail_damage:
        return _reason(ReasonCode.SLOW_TAIL, ratio=tail)
    if ttft is not None and ttft.low > 1 + thresholds.ttft_damage:
        return _reason(ReasonCode.LATE_FIRST_TOKEN, ratio=ttft.value)
    late = comparison.percentiles.get("ttft", {}).get(99)
    if late is not None and late.low > 1 + thresholds.ttft_damage:
        return _reason(ReasonCode.LATE_FIRST_TOKENS_TAIL, ratio=late.value)
    return None


def _doubt(
    comparison: Comparison, side: Conclusion | None, repetitions_needed: int | None, thresholds: Thresholds
) -> Reason:
    if side is Conclusion.FASTER:
        return _reason(ReasonCode.ANSWERS_NOT_FASTER)
    if side is Conclusion.EQUAL:
        return _reason(ReasonCode.EQUAL, margin=thresholds.margin)
    done, prompts = len(comparison.repetitions), comparison.prompts_needed
    repeat = repetitions_needed is not None and done < repetitions_needed <= _MOST_REPETITIONS
    return _reason(
        ReasonCode.OPEN,
        margin=thresholds.margin,
        detectable=comparison.detectable,
        prompts=max(0, prompts - comparison.num_prompts) if prompts is not None else 0,
        repetitions=repetitions_needed if repeat else None,
        done=done,
        # Where a cross-request cache helps, only the first repetition counts.
        can_repeat=comparison.warm_speedup is None,
    )


def _reason(code: ReasonCode, /, **values: Any) -> Reason:
    return Reason(code=code, values=values)
