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
from enum import Enum, auto

from draftwise.core import ClosedLoop, Comparison, Finding, Interval, Severity, Verdict
from draftwise.measure.statistics import CONFIDENCE, FEWEST_PROMPTS
from draftwise.measure.thresholds import Thresholds

__all__ = ["Deciding", "deciding", "find_signature", "judge"]


_PROMISE = "share of the requests within the SLO"
_MOST_PASSES = 20
"""More passes than these over the same prompts are no advice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deciding:
    """The ratio that decides under a load; above 1 is better."""

    name: str
    ratio: Interval


class _Side(Enum):
    BETTER = auto()
    WORSE = auto()
    EQUAL = auto()
    UNCLEAR = auto()


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
    if _Side.BETTER in sides.values() and _Side.WORSE in sides.values():
        return Verdict.MIXED, f"{_listed(sides, _Side.BETTER)} better, {_listed(sides, _Side.WORSE)} worse{which}"
    name, main = next(iter(sides.items()))
    if name != _PROMISE and main in (_Side.BETTER, _Side.WORSE) and (doubt := _chance(comparison)):
        return Verdict.INCONCLUSIVE, doubt
    if main is _Side.WORSE:
        return (
            Verdict.REJECT,
            f"slower, with the whole interval below 1 and the estimate beyond {thresholds.margin:.0%}",
        )
    if main is _Side.BETTER and not _contradicted(comparison):
        return _judge_gain(comparison, findings, thresholds, which)
    if signature := find_signature(comparison):
        return Verdict.MIXED, f"{signature}{which}"
    return Verdict.INCONCLUSIVE, _doubt(comparison, main, passes_needed, thresholds)


def find_signature(comparison: Comparison) -> str:
    """Return the signature of a mixed workload: half of the requests clearly faster, the slowest clearly slower.

    Empty where there is none.
    """
    for name, metric in (("time per token", "tpot"), ("end-to-end time", "e2e")):
        ratios = comparison.percentiles.get(metric, {})
        if 50 in ratios and 99 in ratios and ratios[50].high < 1 and ratios[99].low > 1:
            return (
                f"a mixed workload: P50 of the {name} is {ratios[50].value:.2f}x plain's, P99 {ratios[99].value:.2f}x"
            )
    return ""


def _sides(comparison: Comparison, promise: Interval | None, thresholds: Thresholds) -> Iterator[tuple[str, _Side]]:
    """Yield on which side each deciding measure lies, the one that comes first at first."""
    margin, closed = thresholds.margin, isinstance(comparison.condition.load, ClosedLoop)
    main = (deciding(comparison).name, _side(deciding(comparison).ratio, margin))
    kept = []
    if promise is not None and (promise.low > 0 or promise.high < 0):
        kept = [(_PROMISE, _Side.BETTER if promise.low > 0 else _Side.WORSE)]
    yield from [main, *kept] if closed else [*kept, main]
    if closed and comparison.throughput is not None and comparison.tpot is not None:
        yield "time per token of a request", _side(_inverse(comparison.tpot), margin)


def _side(ratio: Interval, margin: float) -> _Side:
    if ratio.high < 1 and ratio.value <= 1 - margin:
        return _Side.WORSE
    if ratio.low > 1 + margin:
        return _Side.BETTER
    return _Side.EQUAL if 1 - margin < ratio.low and ratio.high < 1 + margin else _Side.UNCLEAR


def _inverse(ratio: Interval) -> Interval:
    return Interval(
        value=1 / ratio.value,
        low=1 / ratio.high if ratio.high else 0.0,
        high=1 / ratio.low if ratio.low else float("inf"),
    )


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
    comparison: Comparison, findings: Sequence[Finding], thresholds: Thresholds, which: str
) -> tuple[Verdict, str]:
    blocks = [finding for finding in findings if finding.severity is Severity.ERROR]
    if blocks:
        return Verdict.BLOCKED, f"faster, but not to be trusted: {blocks[0].code} (see the findings)"
    if comparison.num_prompts < FEWEST_PROMPTS:
        return Verdict.INCONCLUSIVE, (
            f"faster, but {comparison.num_prompts} prompts say little about others; "
            f"an adoption takes {FEWEST_PROMPTS} or more"
        )
    if signature := find_signature(comparison):
        return Verdict.MIXED, f"faster on the whole, but {signature}{which}"
    if damage := _damage(comparison, thresholds):
        return Verdict.MIXED, f"faster on the whole, but {damage}{which}"
    return Verdict.ADOPT, f"faster, with the whole interval above {1 + thresholds.margin:.2f}"


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


def _doubt(comparison: Comparison, main: _Side, passes_needed: int | None, thresholds: Thresholds) -> str:
    if main is _Side.BETTER:
        return "the server puts out more, but the time per token of a request does not fall with it"
    if main is _Side.EQUAL:
        return f"equal within {thresholds.margin:.0%}: no difference worth a change"
    text = f"the interval does not clear {1 + thresholds.margin:.2f}"
    if comparison.detectable is None:
        return f"{text}; more prompts or passes would narrow it"
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


def _listed(sides: dict[str, _Side], side: _Side) -> str:
    return " and ".join(name for name, found in sides.items() if found is side)
