"""The distributions behind a comparison: percentiles beside plain's, and how much the slowest prompts suffer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import exp
from statistics import median

import numpy as np

from draftwise.core import Answer, Interval, Timing
from draftwise.decide.comparison.cell import Shared, Unit
from draftwise.decide.comparison.latency import READINGS
from draftwise.statistics import Design, Estimate, Samples, percentile_ratios

__all__ = ["ratios_of_percentiles", "share_slower", "tail_ratio"]


def ratios_of_percentiles(
    shared: Sequence[Shared], design: Design, confidence: float
) -> dict[str, dict[int, Interval]]:
    """Return candidate over plain of P50 to P99 over requests, by latency."""
    found = {}
    candidates, plains = [each.candidate for each in shared], [each.plain for each in shared]
    for name, reading in READINGS.items():
        candidate, plain = (Samples([_read(answer, reading) for answer in side]) for side in (candidates, plains))
        if ratios := percentile_ratios(candidate, plain, design, confidence=confidence):
            found[name] = ratios
    return found


def tail_ratio(shared: Sequence[Shared]) -> float | None:
    """Return the ratio of P99 over prompts of the time per token.

    A prompt's time is the median over its askings, so that what remains is the prompt's and not a hiccup's.
    """
    candidate = _by_prompt((each.unit, each.candidate) for each in shared)
    plain = _by_prompt((each.unit, each.plain) for each in shared)
    if not candidate or not plain or min(plain) <= 0:
        return None
    return float(np.quantile(candidate, 0.99) / np.quantile(plain, 0.99))


def share_slower(speedup: Estimate, margin: float) -> float:
    """Return the share of the prompts that became slower by more than the margin."""
    ratios = [exp(log) for log in speedup.log_by_prompt.values()]
    return sum(ratio < 1 - margin for ratio in ratios) / len(ratios)


def _by_prompt(answers: Iterable[tuple[Unit, Answer]]) -> list[float]:
    times: dict[Unit, list[float]] = {}
    for unit, answer in answers:
        if answer.error is None and (tpot := answer.timing.tpot_s) is not None:
            times.setdefault(unit, []).append(tpot)
    return [median(values) for values in times.values()]


def _read(answer: Answer, reading: Callable[[Timing], Sequence[float | None]]) -> list[float]:
    return [] if answer.error is not None else [value for value in reading(answer.timing) if value is not None]
