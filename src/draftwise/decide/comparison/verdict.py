"""From ratios to a verdict, with the reason in words.

Which ratio decides depends on who waits for whom (`deciding`):

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
from dataclasses import dataclass

from draftwise.core import ClosedLoop, Comparison, Finding, Interval, Severity, Verdict
from draftwise.decide.thresholds import Thresholds
from draftwise.statistics import CONFIDENCE, FEWEST_PROMPTS, Outcome, conclude

__all__ = ["Deciding", "deciding", "find_signature", "judge"]


_PROMISE = "share of the requests within the SLO"
_BLIND = 2.0
"""Detectable gain from which the spread itself is not known: two passes under load say nothing of the third."""
_MOST_PASSES = 20
"""More passes than these over the same prompts are no advice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deciding:
    """The ratio that decides under a load; above 1 is better."""

    name: str
    ratio: Interval


def deciding(comparison: Comparison) -> Deciding:
    """Return the ratio that decides; the module says why."""
    if comparison.condition.concurrency == 1:
        return Deciding(name="tokens per second of a request", ratio=comparison.speedup)
    if isinstance(comparison.condition.load, ClosedLoop) and comparison.throughput is not None:
        return Deciding(name="tokens per second of the server", ratio=comparison.throughput)
    return Deciding(name="tokens per second of a request, waiting included", ratio=comparison.speedup)


def judge(
    comparison: Comparison,
    findings: Sequence[Finding],
    thresholds: Thresholds,
    *,
    promise: Interval | None = None,
    passes_needed: int | None = None,
    losers: str = "",
) -> tuple[Verdict, str]:
    """Return the verdict on one candidate on one workload under one condition.

    Adopt: the whole interval of the deciding ratio lies above 1 + margin, and p stays below 5 % when all comparisons
    of the run are counted. Reject: the whole interval lies below 1 and the estimate below 1 - margin. An adoption
    needs a few prompts at least, is blocked by a guard's error, and becomes mixed when the slowest requests or the
    first tokens suffer.

    Args:
        comparison: its numbers; its verdict is not looked at.
        findings: on it and on the whole run.
        promise: change of the share of requests within the SLO, sure enough for all comparisons of the run together.
        passes_needed: passes over the same prompts that would settle it; None where no number of passes would.
        losers: which prompts lose, in words; empty where nothing tells them apart.
    """
    sides = dict(_sides(comparison, promise, thresholds))
    which = f" ({losers})" if losers else ""
    better, worse = (
        " and ".join(name for name, side in sides.items() if side is wanted)
        for wanted in (Outcome.FASTER, Outcome.SLOWER)
    )
    if better and worse:
        return Verdict.MIXED, f"{better} better, {worse} worse{which}"
    name, side = next(iter(sides.items()))
    if name != _PROMISE and side in (Outcome.FASTER, Outcome.SLOWER) and (doubt := _chance(comparison)):
        return Verdict.INCONCLUSIVE, doubt
    if side is Outcome.SLOWER:
        return Verdict.REJECT, _reject(name, thresholds)
    if side is Outcome.FASTER and not _contradicted(comparison):
        return _judge_gain(comparison, name, findings, thresholds, which)
    if signature := find_signature(comparison, thresholds):
        return Verdict.MIXED, f"{signature}{which}"
    return Verdict.INCONCLUSIVE, _doubt(comparison, side, passes_needed, thresholds)


def find_signature(comparison: Comparison, thresholds: Thresholds) -> str:
    """Return the signature of a mixed workload: half of the requests clearly faster, the slowest clearly slower.

    Empty where there is none, or where what the slowest lose is less than `tail_damage`.
    """
    for name, metric in (("time per token", "tpot"), ("end-to-end time", "e2e")):
        ratios = comparison.percentiles.get(metric, {})
        if 50 in ratios and 99 in ratios and ratios[50].high < 1 < ratios[99].low:
            half, slowest = ratios[50].value, ratios[99].value
            if half <= 1 - thresholds.margin and slowest > 1 + thresholds.tail_damage:
                return f"a mixed workload: P50 of the {name} is {half:.2f}x plain's, P99 {slowest:.2f}x"
    return ""


def _sides(
    comparison: Comparison, promise: Interval | None, thresholds: Thresholds
) -> Iterator[tuple[str, Outcome | None]]:
    """Yield what each deciding measure says, the one that comes first at first."""
    margin, closed = thresholds.margin, isinstance(comparison.condition.load, ClosedLoop)
    main = (deciding(comparison).name, conclude(deciding(comparison).ratio, margin))
    kept = []
    if promise is not None and (promise.low > 0 or promise.high < 0):
        kept = [(_PROMISE, Outcome.FASTER if promise.low > 0 else Outcome.SLOWER)]
    yield from [main, *kept] if closed else [*kept, main]
    if closed and comparison.throughput is not None and comparison.tpot is not None:
        yield "time per token of a request", conclude(_inverse(comparison.tpot), margin)


def _inverse(ratio: Interval) -> Interval:
    return Interval(
        value=1 / ratio.value,
        low=1 / ratio.high if ratio.high else 0.0,
        high=1 / ratio.low if ratio.low else float("inf"),
    )


def _reject(name: str, thresholds: Thresholds) -> str:
    if name == _PROMISE:
        return "fewer requests within the SLO, with the whole interval below no change"
    return f"slower, with the whole interval below 1 and the estimate beyond {thresholds.margin:.0%}"


def _contradicted(comparison: Comparison) -> bool:
    """Return whether the server gains under load while the time per token of a request, by its estimate, does not."""
    under_load = isinstance(comparison.condition.load, ClosedLoop) and comparison.throughput is not None
    return under_load and comparison.tpot is not None and comparison.tpot.value >= 1


def _chance(comparison: Comparison) -> str:
    """Return why a difference may be chance after all, empty where it stands."""
    if comparison.adjusted_p is None or comparison.adjusted_p <= 1 - CONFIDENCE:
        return ""
    return (
        f"alone it would count, but with all comparisons of the run taken together p is {comparison.adjusted_p:.2g}; "
        "more prompts would tell"
    )


def _judge_gain(
    comparison: Comparison, name: str, findings: Sequence[Finding], thresholds: Thresholds, which: str
) -> tuple[Verdict, str]:
    gain = "more requests within the SLO" if name == _PROMISE else "faster"
    blocks = [finding for finding in findings if finding.severity is Severity.ERROR]
    if blocks:
        return Verdict.BLOCKED, f"{gain}, but not to be trusted: {blocks[0].code} (see the findings)"
    if comparison.num_prompts < FEWEST_PROMPTS:
        return Verdict.INCONCLUSIVE, (
            f"{gain}, but {comparison.num_prompts} prompts say little about others; "
            f"an adoption takes {FEWEST_PROMPTS} or more"
        )
    if damage := find_signature(comparison, thresholds) or _damage(comparison, thresholds):
        return Verdict.MIXED, f"{gain} on the whole, but {damage}{which}"
    bound = "no change" if name == _PROMISE else f"{1 + thresholds.margin:.2f}"
    return Verdict.ADOPT, f"{gain}, with the whole interval above {bound}"


def _damage(comparison: Comparison, thresholds: Thresholds) -> str:
    """Return what the slowest requests or the first tokens suffer, empty where they do not."""
    tail, ttft = comparison.tail, comparison.ttft
    if tail is not None and tail > 1 + thresholds.tail_damage:
        return f"P99 of the time per token is {tail:.2f}x plain's"
    if ttft is not None and ttft.low > 1 + thresholds.ttft_damage:
        return f"the first token comes {ttft.value:.2f}x as late"
    late = comparison.percentiles.get("ttft", {}).get(99)
    if late is not None and late.low > 1 + thresholds.ttft_damage:
        return f"P99 of the time to the first token is {late.value:.2f}x plain's"
    return ""


def _doubt(comparison: Comparison, side: Outcome | None, passes_needed: int | None, thresholds: Thresholds) -> str:
    if side is Outcome.FASTER:
        return "the server puts out more, but the time per token of a request does not fall with it"
    if side is Outcome.EQUAL:
        return f"equal within {thresholds.margin:.0%}: no difference worth a change"
    text = f"the interval does not clear {1 + thresholds.margin:.2f}"
    if comparison.detectable is None:
        # One that remembers is judged by its first pass alone.
        return f"{text}; more prompts{'' if comparison.warm_speedup is not None else ' or passes'} would narrow it"
    if comparison.detectable > _BLIND:
        return f"{text}: so few turns would have shown only {comparison.detectable:.1f}x or more; measure more passes"
    more = list(_remedies(comparison, passes_needed))
    remedy = (
        f"{' or '.join(more)} would settle it" if more else "it lies so close to a limit that more would hardly help"
    )
    return f"{text}; a gain of {comparison.detectable:.2f}x would have been found 8 times in 10; {remedy}"


def _remedies(comparison: Comparison, passes_needed: int | None) -> Iterator[str]:
    prompts, passes = comparison.prompts_needed, len(comparison.passes)
    if prompts is not None and prompts > comparison.num_prompts:
        yield f"about {prompts - comparison.num_prompts} more prompts"
    if passes_needed is not None and passes < passes_needed <= _MOST_PASSES:
        yield f"{passes_needed} passes instead of {passes}"
