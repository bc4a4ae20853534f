"""Which requests stayed within the latencies that the operator promised, and how a candidate changes their share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftwise.core import Answer, Interval
from draftwise.decide.comparison.cell import PairedRequest
from draftwise.decide.thresholds import Thresholds
from draftwise.statistics import Design, goodput_change

__all__ = ["estimate_goodput", "keeps_promise"]


def keeps_promise(answer: Answer, thresholds: Thresholds) -> bool:
    """Return whether a request stayed within the operator's SLO; a failed one never did."""
    if answer.error is not None:
        return False
    timing = answer.timing
    pairs = (
        (timing.ttft_s, thresholds.slo_ttft_s),
        (timing.tpot_s, thresholds.slo_tpot_s),
        (timing.e2e_s, thresholds.slo_e2e_s),
    )
    return all(limit is None or value is None or value <= limit for value, limit in pairs)


def estimate_goodput(
    paired: Sequence[PairedRequest], design: Design, thresholds: Thresholds, confidence: float
) -> tuple[tuple[float, float] | None, Interval | None]:
    """Return the shares of the requests within the SLO (baseline, candidate), and candidate minus baseline of them.

    None without an SLO.
    """
    if not thresholds.has_slo:
        return None, None
    candidate_N = np.array([float(keeps_promise(each.candidate, thresholds)) for each in paired])
    baseline_N = np.array([float(keeps_promise(each.baseline, thresholds)) for each in paired])
    change = goodput_change(candidate_N, baseline_N, design, confidence=confidence)
    return (float(baseline_N.mean()), float(candidate_N.mean())), change
