"""From ratios to a verdict, with the reason in words."""

from __future__ import annotations

from collections.abc import Sequence

from draftwise.core import Finding, Interval, Severity, Verdict
from draftwise.measure.thresholds import Thresholds

__all__ = ["judge"]


def judge(
    speedup: Interval,
    ttft: Interval | None,
    tail: float | None,
    findings: Sequence[Finding],
    thresholds: Thresholds,
) -> tuple[Verdict, str]:
    """Return the verdict on one candidate and workload.

    Adopt: the whole interval lies above 1 + margin. Reject: the whole interval lies below 1 and the estimate below
    1 - margin. An adoption is blocked by a guard's error, and becomes mixed when the slowest prompts (`tail`: P99 over
    prompts of the time per output token, candidate over plain) or the first tokens suffer.
    """
    margin = thresholds.margin
    if speedup.high < 1 and speedup.value <= 1 - margin:
        return Verdict.REJECT, f"slower, with the whole interval below 1 and the estimate beyond {margin:.0%}"
    if speedup.low <= 1 + margin:
        if 1 - margin < speedup.low and speedup.high < 1 + margin:
            return Verdict.INCONCLUSIVE, f"equal within {margin:.0%}: no difference worth a change"
        return Verdict.INCONCLUSIVE, f"the interval does not clear {1 + margin:.2f}; more prompts would narrow it"
    blocks = [finding for finding in findings if finding.severity is Severity.ERROR]
    if blocks:
        return Verdict.BLOCKED, f"faster, but not to be trusted: {blocks[0].code} (see the findings)"
    if tail is not None and tail > 1 + thresholds.tail_damage:
        return Verdict.MIXED, f"faster on the whole, but P99 of the time per token is {tail:.2f}x plain's"
    if ttft is not None and ttft.low > 1 + thresholds.ttft_damage:
        return Verdict.MIXED, f"faster on the whole, but the first token comes {ttft.value:.2f}x as late"
    return Verdict.ADOPT, f"faster, with the whole interval above {1 + margin:.2f}"
