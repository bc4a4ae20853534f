"""Speed of the servers of a run, turn by turn: shows drift."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from draftwise.core import Answer, Run
from draftwise.core.grouping import group_by
from draftwise.statistics import Array

_BINS = 24


def trace_speed(run: Run, answers: Iterable[Answer]) -> dict[str, Array]:
    """Return [turns, 2] by arm: minutes since the first turn, and speed relative to the same prompts' median."""
    rates = {number: _speed(group) for number, group in group_by(lambda answer: answer.turn, answers).items()}
    turns = [turn for turn in run.turns if rates.get(turn.turn)]
    begin = min((turn.began_s for turn in turns), default=0.0)
    found: dict[str, list[tuple[float, float]]] = {arm.name: [] for arm in run.plan.arms}
    for alike in group_by(lambda turn: (turn.arm, turn.workload, turn.condition, turn.block), turns).values():
        usual = float(np.median([rates[turn.turn] for turn in alike]))
        for turn in alike:
            found[turn.arm].append(((turn.began_s - begin) / 60, rates[turn.turn] / usual))
    return {arm: np.array(sorted(rows)) for arm, rows in found.items() if rows}


def _speed(answers: list[Answer]) -> float:
    """Return the tokens per second of a request, the median of a turn."""
    rates = [rate for answer in answers if (rate := answer.timing.tokens_per_s) is not None]
    return float(np.median(rates)) if rates else 0.0


def condense(points: Array) -> Array:
    """Return [bins, 2]: the middle of each time bin, and the median speed in it."""
    parts = [part for part in np.array_split(points, min(_BINS, len(points))) if len(part)]
    return np.array([np.median(part, axis=0) for part in parts])
