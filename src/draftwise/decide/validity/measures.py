"""What validity checks measure on answers: gaps between chunks, seconds per token, requests in flight."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

import numpy as np

from draftwise.core import Answer, Run, TurnRecord

__all__ = [
    "count_in_flight",
    "count_most_decoding",
    "find_gap_s",
    "find_pace_s",
    "list_answers",
    "list_baseline_answers",
    "median_or_zero",
]


def list_answers(run: Run, turns: Iterable[TurnRecord]) -> list[Answer]:
    """Return all answers of some turns, the unmeasured ones and those with an error too."""
    numbers = {turn.turn for turn in turns}
    return [answer for answer in run.answers if answer.turn in numbers]


def list_baseline_answers(run: Run) -> list[Answer]:
    """Return the baseline's measured answers without an error."""
    baseline = run.plan.arms[0].name
    return [each for each in run.answers if each.arm == baseline and each.measured and each.error is None]


def median_or_zero(values: Iterable[float | None]) -> float:
    """Return the median of the values that are there, 0 where none is."""
    return median([value for value in values if value is not None] or [0.0])


def find_gap_s(answer: Answer) -> float | None:
    """Return the mean time between two chunks of an answer, None below two chunks."""
    chunks = answer.timing.chunks
    return (chunks[-1][0] - chunks[0][0]) / (len(chunks) - 1) if len(chunks) > 1 else None


def find_pace_s(answer: Answer) -> float | None:
    """Return the end-to-end seconds per output token of an answer, None where it took none of either."""
    tokens = answer.timing.num_tokens
    return answer.timing.e2e_s / tokens if tokens and answer.timing.e2e_s > 0 else None


def count_in_flight(answers: Sequence[Answer], begin: float, end: float) -> float:
    """Return how many requests were in flight on average between two times."""
    spans = np.array([(answer.timing.sent, answer.timing.finished) for answer in answers]).reshape(-1, 2)
    overlap = np.minimum(spans[:, 1], end) - np.maximum(spans[:, 0], begin)
    return float(np.maximum(overlap, 0).sum() / (end - begin)) if end > begin else 0.0


def count_most_decoding(answers: Sequence[Answer]) -> int:
    """Return the most requests that were between their first and last chunk at the same time."""
    chunks = [answer.timing.chunks for answer in answers if len(answer.timing.chunks) > 1]
    begins = np.sort([each[0][0] for each in chunks])
    ends = np.sort([each[-1][0] for each in chunks])
    under_way = np.arange(1, len(begins) + 1) - np.searchsorted(ends, begins, side="right")
    return int(under_way.max(initial=0))
