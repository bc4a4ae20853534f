"""Which requests stayed within the latencies that the operator promised, and how a candidate changes their share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftwise.core import Answer, Interval
from draftwise.decide.comparison.cell import Shared
from draftwise.decide.thresholds import Thresholds
from draftwise.statistics import Array, Design, goodput_change

__all__ = ["change_of_goodput", "goodput", "keeps_promise"]


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


def goodput(shared: Sequence[Shared], thresholds: Thresholds) -> tuple[float, float] | None:
    """Return the share of the requests within the SLO, plain and candidate; None without an SLO."""
    if not thresholds.has_slo:
        return None
    candidate_N, plain_N = _kept(shared, thresholds)
    return float(plain_N.mean()), float(candidate_N.mean())


def change_of_goodput(
    shared: Sequence[Shared], design: Design, thresholds: Thresholds, confidence: float
) -> Interval | None:
    """Return candidate minus plain of these shares; None without an SLO."""
    if not thresholds.has_slo:
        return None
    return goodput_change(*_kept(shared, thresholds), design, confidence=confidence)


def _kept(shared: Sequence[Shared], thresholds: Thresholds) -> tuple[Array, Array]:
    """Return [N] whether the candidate and plain kept the promise, as 1 or 0."""
    candidate = [float(keeps_promise(each.candidate, thresholds)) for each in shared]
    plain = [float(keeps_promise(each.plain, thresholds)) for each in shared]
    return np.array(candidate), np.array(plain)
