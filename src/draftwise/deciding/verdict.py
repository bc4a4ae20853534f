"""Derives a verdict and its reason from ratios.

The deciding ratio (`Comparison.decided_by`) depends on the load:

- One request at a time: tokens per second of a request. The server does nothing else, so users feel exactly its speed.
- A closed loop under load: tokens per second of the server. Clients wait for their answers, so a faster server answers
  more in the same time: the capacity that an operator pays for. The time per token of a request must agree. More
  capacity with slower answers, or the reverse, is a mixed result for the operator to weigh.
- An open loop or a replay: tokens per second of a request, counted from its intended send time. Arrivals do not wait,
  so below overload both servers have the same throughput by construction; queueing shows in the latency. With an SLO,
  the share of requests within it (goodput) comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from draftwise.core import (
    ClosedLoop,
    Comparison,
    DecidingMeasure,
    Finding,
    Interval,
    Reason,
    ReasonCode,
    Severity,
    Verdict,
)
from draftwise.core.comparison import GuardedHarm
from draftwise.deciding.comparison.comparisons import ComparisonNumbers
from draftwise.deciding.comparison.losers import name_losers
from draftwise.deciding.thresholds import Thresholds
from draftwise.statistics import (
    FEWEST_PROMPTS,
    Conclusion,
    Guard,
    conclude,
    find_bar,
    find_unseen_share,
)

_PROMISE = "share of the requests within the SLO"
_CHANCES = {Conclusion.FASTER: 0.045, Conclusion.SLOWER: 0.01}
"""p-value, corrected for all comparisons of the run, above which a difference may be chance. For a gain, the hypothesis
is a gain of at most the margin: at the end, it is adopted in at most 2.25 % of runs. The rest up to 2.5 % is for the
race's looks, each at 0.05 % over all cells. For a loss, the hypothesis is no difference, and p must be smaller."""
UNSETTLING = ("server-cold", "noisy-machine", "unexplained-speedup", "rate-limited", "server-queues", "lengths-differ")
"""Warnings about errors in either direction that pairing and repetition do not remove."""
VOIDING = (
    *("swapped-servers", "plain-speculates", "same-server", "arms-differ", "client-saturated", "other-traffic"),
    *("roles-unknown", "other-model", "unit-unsound", "counters-of-another-server", "not-speculating"),
    "outputs-differ",
)
"""Errors that void a comparison: an arm is not what its name claims, or the ratio compares different units."""
_FAR_EARLIER, _EARLIER, _FAR_LATER, _TWICE = 0.8, 0.87, 1.35, 2.0
"""Multiples of the baseline's time to first token. Over all eleven methods, it was 0.87 to 1.22 times the baseline's
(`benchmarks/cpu/results/decide_demo.json`), and never below 0.82 for a gain of vLLM's on a GPU
(`benchmarks/h200/results/measure_vllm.json`). A larger drafter that reads the prompt adds at most the target's own
time."""
_SLOWER_STEP = 1.1
"""The baseline's server is slow if its step exceeds the candidate's by this factor: drafting shortens no step."""
_NO_GAIN = 0.005
"""One-sided error of the verdict that no gain worth a change is left."""
LEAVES_OPEN = (ReasonCode.OPEN, ReasonCode.MAY_BE_CHANCE, ReasonCode.UNSEEN, ReasonCode.EQUAL)
"""Reasons after which the same comparison may still get another verdict."""
_LEFT_ALONE = (Verdict.NOT_BEST, Verdict.NO_GAIN, Verdict.REJECT)
"""Verdicts that leave something else in place. Of two of them, both say the first."""
_MOST_REPETITIONS = 20
"""Largest number of repetitions of the same prompts to advise."""


def judge_cell(
    found: ComparisonNumbers,
    findings: Sequence[Finding],
    own: Sequence[Finding],
    thresholds: Thresholds,
    *,
    with_lost: ComparisonNumbers | None = None,
) -> Comparison:
    """Return the comparison with its verdict.

    Args:
        findings: all findings that affect it: its own, those of the cells it pools, and those of the run.
        own: findings to show with it.
        with_lost: its numbers with the pairs that only their pace set aside; None without any.
    """
    verdict, reason = _judge_numbers(found, findings, thresholds)
    if verdict not in (Verdict.INCONCLUSIVE, Verdict.BLOCKED) and with_lost is not None:
        kept = {turn.turn for turn in found.estimates.cell.turns}
        lost = [each.unit[1] for each in with_lost.estimates.cell.paired if each.candidate.turn not in kept]
        # A turn that is far from others is no change of pace; a change that lasts is no disturbance of single turns.
        changed = with_lost.pace if with_lost.pace is not None and with_lost.pace.share else found.pace
        other, why = _judge_numbers(replace(with_lost, pace=changed), findings, thresholds)
        if verdict in _LEFT_ALONE and other in _LEFT_ALONE:
            verdict, reason = min((verdict, reason), (other, why), key=lambda each: _LEFT_ALONE.index(each[0]))
        elif lost and found.lost is not None and other is not verdict:
            values = {"verdict": str(verdict), "count": len(lost), "prompt": lost[0], "why": found.lost.reason}
            verdict, reason = Verdict.INCONCLUSIVE, _reason(ReasonCode.LOST_BY_PACE, **values)
    return replace(
        found.comparison,
        verdict=verdict,
        reason=reason,
        settled=found.conclusion is not None and verdict is not Verdict.INCONCLUSIVE,
        findings=tuple(own),
    )


def _judge_numbers(
    found: ComparisonNumbers, findings: Sequence[Finding], thresholds: Thresholds
) -> tuple[Verdict, Reason]:
    """Return the verdict on a comparison's numbers, which may be wrong, and its reason."""
    if doubt := _find_doubt(found, findings, thresholds):
        return Verdict.INCONCLUSIVE, doubt
    verdict, reason = judge(
        found.comparison,
        findings,
        thresholds,
        promise=found.promise,
        repetitions_needed=found.outlook.repetitions,
        losers=name_losers(found.estimates.cell, found.estimates.ratios.speedup),
        unseen=found.estimates.unseen,
    )
    if verdict is Verdict.INCONCLUSIVE and reason.code in LEAVES_OPEN:
        verdict, reason = _find_answer(found, reason, findings, thresholds)
        reason = replace(reason, num_prompts=found.comparison.num_prompts)
    return verdict, reason


def _find_answer(
    found: ComparisonNumbers, reason: Reason, findings: Sequence[Finding], thresholds: Thresholds
) -> tuple[Verdict, Reason]:
    """Return what a comparison shows that is neither a gain nor a loss, each with the error that is allowed for it.

    What the race has shown stays shown, as long as what came later agrees.
    """
    deciding, margin = found.estimates.ratios.deciding, thresholds.margin
    interval = deciding.interval(1 - 2 * _NO_GAIN)
    no_gain = interval.high < 1 + margin or (found.left == "no-gain" and deciding.value < 1 + margin)
    if thresholds.has_slo or not (no_gain or found.behind or reason.code is ReasonCode.EQUAL):
        left = found.leader if found.left == "no-time" and found.leader != found.comparison.candidate else None
        values = {**reason.values, "left": left}
        return Verdict.INCONCLUSIVE, replace(reason, values=values) if reason.code is ReasonCode.OPEN else reason
    if voids := _list_voiding(findings):
        return Verdict.BLOCKED, _reason(ReasonCode.NOT_TRUSTED, gains=False, promise=False, code=voids[0].code)
    if reason.code is ReasonCode.EQUAL:
        return Verdict.NO_GAIN, reason
    if no_gain:
        slower = found.comparison.deciding.high < 1
        return Verdict.NO_GAIN, _reason(ReasonCode.NO_GAIN, margin=margin, ratio=deciding.value, slower=slower)
    assert found.behind is not None
    better = found.behind
    return Verdict.NOT_BEST, _reason(ReasonCode.BEHIND, better=better.candidate, ratio=better.ratio, count=better.count)


def _list_voiding(findings: Sequence[Finding]) -> list[Finding]:
    return [each for each in findings if each.severity is Severity.ERROR and each.code in VOIDING]


def judge(
    comparison: Comparison,
    findings: Sequence[Finding],
    thresholds: Thresholds,
    *,
    promise: Interval | None = None,
    repetitions_needed: int | None = None,
    losers: str = "",
    unseen: float = 0.0,
) -> tuple[Verdict, Reason]:
    """Return the verdict and its reason, which names the number of prompts.

    Adopt: the whole interval of the deciding ratio lies above 1 + margin and above the possible loss from kinds of
    prompts not drawn, and p is at most 4.5 %, corrected for all comparisons of the run. Reject: the whole interval lies
    below 1 - margin, and p is at most 1 %. If it only lies below 1, the verdict is no gain. Any error of a validity
    check blocks an adoption; only an error that voids the comparison blocks a rejection. An adoption becomes mixed if
    harm to the slowest requests or the first tokens is shown. A guard without power decides nothing.

    Args:
        comparison: the numbers; its verdict is ignored.
        findings: findings on it and on the whole run.
        promise: change of the share of requests within the SLO, at the level for all comparisons of the run together.
        repetitions_needed: repetitions of the same prompts that would settle it; None if none would.
        losers: prompts that lose, in words; empty if no trait separates them.
        unseen: share of the log in routes of which no prompt was answered.
    """
    verdict, reason = _weigh(comparison, findings, thresholds, promise, repetitions_needed, losers, unseen)
    return verdict, replace(reason, num_prompts=comparison.num_prompts)


def _find_doubt(found: ComparisonNumbers, findings: Sequence[Finding], thresholds: Thresholds) -> Reason | None:
    """Return why the numbers of a comparison may be wrong either way; None where nothing speaks for that."""
    if found.distinct < FEWEST_PROMPTS:
        return _reason(ReasonCode.FEW_PROMPTS, count=found.distinct, fewest=FEWEST_PROMPTS)
    lost, cell = found.lost, found.estimates.cell
    if lost is not None and lost.of - lost.count < thresholds.blocks_left * lost.of:
        left = thresholds.blocks_left
        return _reason(ReasonCode.DISTURBED, count=lost.count, of=lost.of, why=lost.reason, left=left)
    if doubt := _find_contradiction(found, findings, thresholds):
        return doubt
    for each in findings:
        unsettles = each.code in UNSETTLING and each.severity is Severity.WARNING
        if unsettles and each.where in ("", cell.baseline, cell.candidate):
            return _reason(ReasonCode.UNSETTLED, message=each.message.rstrip("."), code=each.code)
    return None


def _find_contradiction(found: ComparisonNumbers, findings: Sequence[Finding], thresholds: Thresholds) -> Reason | None:
    """Return what in a run contradicts the ratio of the whole, None where nothing does.

    One of two servers that is slow for a good part of a run makes a ratio that is exact and wrong.
    """
    margin, cell = thresholds.margin, found.estimates.cell
    side = conclude(found.comparison.deciding, margin)
    loser = {Conclusion.FASTER: cell.baseline, Conclusion.SLOWER: cell.candidate}.get(side or Conclusion.EQUAL)
    slow = None if loser is None else _find_slow_server(found, loser, thresholds)
    if doubt := slow or _find_late_start(found, loser, findings, thresholds):
        return doubt
    if (pace := found.pace) is None:
        return None
    if not pace.arm:
        return _reason(ReasonCode.ANCHORS_MOVED, ratio=pace.ratio)
    values = {"arm": pace.arm, "ratio": pace.ratio, "share": pace.share}
    return _reason(ReasonCode.PACE_CHANGED, **values, spells=pace.in_spells, relative=pace.is_relative)


def _find_slow_server(found: ComparisonNumbers, loser: str, thresholds: Thresholds) -> Reason | None:
    """Return that the slower arm's server is slow in what drafting has no part in, None where it is not.

    A server that is slow from its start to the last look is steady, and not slow next to any turn of its
    own. With a single stream its first token tells: speculation changes the time of a step, and hardly that one; a step
    that verifies drafts is no shorter than one that does not. Under a load the first token waits for the steps of
    others as well, so that it tells only where there are few turns to go by. A candidate whose drafter reads the prompt
    may well be late and slow by itself: it has to be far slower for a doubt.
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
    is_slow = first.value > _FAR_LATER and step.value > 1 + thresholds.slow_server
    if loser == cell.baseline:
        is_slow = first.value < _EARLIER and step.value < 1 / _SLOWER_STEP
        first, step = _inverse(first), _inverse(step)
    if not is_slow:
        return None
    return _reason(
        ReasonCode.SLOW_SERVER,
        arm=loser,
        step=step.value,
        first=first.value,
        seen_s=seconds,
        wanted_s=thresholds.slow_server_s,
    )


def _find_late_start(
    found: ComparisonNumbers, loser: str | None, findings: Sequence[Finding], thresholds: Thresholds
) -> Reason | None:
    """Return that the slower arm begins later, None where it decodes slower by more than that. Where no arm is slower,
    that may hide a candidate's gain.

    That is no work of drafting: it shortens no first token, and a drafter that reads the prompt takes no longer for it
    than the target. A baseline slow in both, from the start to the last look, is slow next to no turn of its own. Only
    where requests wait for slots does faster decoding shorten their wait.
    """
    first, step, cell = found.comparison.ttft, found.comparison.tpot, found.estimates.cell
    if cell.condition.concurrency is None or first is None or step is None:
        return None
    side = conclude(_inverse(step), thresholds.margin)
    is_alike = loser == cell.baseline and side is Conclusion.FASTER
    if loser == cell.baseline:
        least, rest = (_FAR_EARLIER, first.low * found.comparison.deciding.low) if is_alike else (_EARLIER, 0.0)
        is_late = first.value < least and first.high < 1 and rest <= 1 + thresholds.margin
        excused = found.pace is not None or any(each.code == "server-queues" for each in findings)
        is_late, first = is_late and not (is_alike and excused), _inverse(first)
    else:
        is_open = side is Conclusion.FASTER if loser is None else side is not Conclusion.SLOWER
        is_late = first.value > _TWICE and first.low > 1 and is_open
    values = {"arm": loser or cell.candidate, "first": first.value, "step": None, "alike": is_alike}
    return _reason(ReasonCode.SLOW_SERVER, **values) if is_late else None


def _weigh(
    comparison: Comparison,
    findings: Sequence[Finding],
    thresholds: Thresholds,
    promise: Interval | None,
    repetitions_needed: int | None,
    losers: str,
    unseen: float,
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
    if (
        name != _PROMISE
        and side is Conclusion.FASTER
        and comparison.deciding.low <= (bar := find_bar(comparison.num_prompts, thresholds.margin, unseen))
    ):
        share = find_unseen_share(comparison.num_prompts, unseen)
        return Verdict.INCONCLUSIVE, _reason(ReasonCode.UNSEEN, bar=bar, share=share)
    if side is Conclusion.SLOWER and name == DecidingMeasure.SERVER and comparison.total.high >= 1:
        # Its requests take no longer: between them, something else keeps the server waiting.
        return Verdict.INCONCLUSIVE, _reason(ReasonCode.ANSWERS_NOT_FASTER, slower=True)
    if side is Conclusion.SLOWER:
        return _judge_loss(comparison, findings, thresholds, promise=name == _PROMISE)
    if side is Conclusion.FASTER and not _contradicted(comparison):
        verdict, reason = _judge_gain(comparison, findings, thresholds, promise=name == _PROMISE)
        return verdict, replace(reason, losers=losers) if verdict is Verdict.MIXED else reason
    if signature := find_signature(comparison, thresholds):
        return Verdict.MIXED, replace(signature, losers=losers)
    return Verdict.INCONCLUSIVE, _doubt(comparison, side, repetitions_needed, thresholds)


def find_signature(comparison: Comparison, thresholds: Thresholds) -> Reason | None:
    """Return the reason for a mixed workload: half of the requests are clearly faster, but more are slow.

    None if the workload shows no such pattern.
    """
    half, tail = comparison.percentiles.get("tpot", {}).get(50), _get_harm(comparison, "tail")
    if tail is not None and half is not None and half.high < 1 and half.value <= 1 - thresholds.margin:
        return _reason(ReasonCode.MIXED_WORKLOAD, half=half.value, share=tail.value)
    return None


def _get_harm(comparison: Comparison, of: str) -> GuardedHarm | None:
    return next((each for each in comparison.guards if each.of == of and each.answer == Guard.HARM), None)


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


def _judge_loss(
    comparison: Comparison, findings: Sequence[Finding], thresholds: Thresholds, *, promise: bool
) -> tuple[Verdict, Reason]:
    if voids := _list_voiding(findings):
        return Verdict.BLOCKED, _reason(ReasonCode.NOT_TRUSTED, gains=False, promise=promise, code=voids[0].code)
    deciding, margin = comparison.deciding, thresholds.margin
    if not (promise or thresholds.has_slo) and deciding.high >= 1 - margin:
        # It may be no more than two identical servers differ by.
        return Verdict.NO_GAIN, _reason(ReasonCode.NO_GAIN, margin=margin, ratio=deciding.value, slower=True)
    return Verdict.REJECT, _reason(ReasonCode.LOSS, promise=promise, margin=thresholds.margin)


def _contradicted(comparison: Comparison) -> bool:
    """Return whether the server gains under load while the time per token of a request, by its estimate, does not."""
    under_load = isinstance(comparison.condition.load, ClosedLoop) and comparison.throughput is not None
    return under_load and comparison.tpot is not None and comparison.tpot.value >= 1


def _chance(comparison: Comparison, side: Conclusion) -> Reason | None:
    """Return why a difference may be chance, or that of the typical request alone; None where neither is, or none is
    claimed."""
    if comparison.adjusted_p is not None and comparison.adjusted_p > _CHANCES.get(side, 1.0):
        return _reason(ReasonCode.MAY_BE_CHANCE, p=comparison.adjusted_p)
    is_one = comparison.decided_by == DecidingMeasure.REQUEST and side is not Conclusion.EQUAL
    if is_one and (comparison.total.value < 1) is (side is Conclusion.FASTER):
        return _reason(ReasonCode.LONG_ANSWERS, ratio=comparison.total.value)
    return None


def _judge_gain(
    comparison: Comparison, findings: Sequence[Finding], thresholds: Thresholds, *, promise: bool
) -> tuple[Verdict, Reason]:
    blocks = [finding for finding in findings if finding.severity is Severity.ERROR]
    if blocks:
        return Verdict.BLOCKED, _reason(ReasonCode.NOT_TRUSTED, gains=True, promise=promise, code=blocks[0].code)
    if damage := _damage(comparison, thresholds):
        return Verdict.MIXED, replace(_reason(ReasonCode.GAIN_WITH_DAMAGE, promise=promise), detail=damage)
    return Verdict.ADOPT, _reason(ReasonCode.GAIN, promise=promise, margin=thresholds.margin)


def _damage(comparison: Comparison, thresholds: Thresholds) -> Reason | None:
    """Return what the slowest requests or the first tokens are shown to suffer, None where nothing is."""
    if tail := _get_harm(comparison, "tail"):
        return _reason(ReasonCode.SLOW_TAIL, share=tail.value)
    if first := _get_harm(comparison, "first token"):
        return _reason(ReasonCode.LATE_FIRST_TOKEN, ratio=first.value)
    late = comparison.percentiles.get("ttft", {}).get(99)
    if comparison.guards and late is not None and late.low > 1 + thresholds.ttft_damage:
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
    repeat = repeat and comparison.num_prompts >= comparison.population
    return _reason(
        ReasonCode.OPEN,
        margin=thresholds.margin,
        detectable=comparison.detectable,
        prompts=max(0, prompts - comparison.num_prompts) if prompts is not None else 0,
        repetitions=repetitions_needed if repeat else None,
        done=done,
        # What was not asked yet tells more than what was; where a cross-request cache helps, only the first time does.
        can_repeat=comparison.warm_speedup is None and comparison.num_prompts >= comparison.population,
    )


def _reason(code: ReasonCode, /, **values: Any) -> Reason:
    return Reason(code=code, values=values)
