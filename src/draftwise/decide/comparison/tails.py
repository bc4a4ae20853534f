"""The distributions behind a comparison: percentiles beside the baseline's, and how much the slowest prompts suffer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median

import numpy as np

from draftwise.core import Answer, Interval, Timing
from draftwise.decide.comparison.cell import PairedRequest, Unit
from draftwise.decide.comparison.latency import LATENCIES
from draftwise.statistics import Design, Samples, percentile_ratios

__all__ = ["estimate_percentiles", "find_tail_ratio"]


def estimate_percentiles(
    paired: Sequence[PairedRequest], design: Design, confidence: float
) -> dict[str, dict[int, Interval]]:
    """Return candidate over baseline of P50 to P99 over requests, by latency."""
    found = {}
    sides = [each.candidate for each in paired], [each.baseline for each in paired]
    for name, reading in LATENCIES.items():
        candidate, baseline = (Samples([_read(answer, reading) for answer in side]) for side in sides)
        if ratios := percentile_ratios(candidate, baseline, design, confidence=confidence):
            found[name] = ratios
    return found


def find_tail_ratio(paired: Sequence[PairedRequest]) -> float | None:
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


def _read(answer: Answer, reading: Callable[[Timing], Sequence[float | None]]) -> list[float]:
    return [] if answer.error is not None else [value for value in reading(answer.timing) if value is not None]
