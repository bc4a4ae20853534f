"""The run over time: whether the machine drifted, and whether it hit all arms alike."""

from __future__ import annotations

from itertools import chain

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draftwise.core import Answer
from draftwise.core.grouping import group_by
from draftwise.reporting.plots.plot_data import PlotData
from draftwise.reporting.plots.style import draw_panels
from draftwise.reporting.svg import INK
from draftwise.statistics import Array

__all__ = ["draw_timeline"]

_BINS = 24
_FEW = 400
"""Turns up to which each is drawn as a dot."""


def draw_timeline(data: PlotData) -> Figure:
    """Draw every turn's speed relative to the median of the same turn in all repetitions, over the run's time."""
    points = _points(data)

    def draw(axes: Axes, _: int) -> None:
        axes.axhline(1, color=INK, linewidth=0.5)
        for arm, found in points.items():
            style = data.styles[arm]
            if len(found) <= _FEW:
                axes.plot(found[:, 0], found[:, 1], ".", color=style.colour, markersize=3, alpha=0.5)
            binned = _binned(found)
            axes.plot(binned[:, 0], binned[:, 1], color=style.colour, linestyle=style.line, linewidth=1.4, label=arm)
        axes.set_ylim(*_limits(points))

    return draw_panels([""], draw, xlabel="minutes since the first turn", ylabel="speed over its median")


def _points(data: PlotData) -> dict[str, Array]:
    """Return [turns, 2] by arm: minutes since the first turn, and speed relative to the same prompts' median."""
    run = data.conclusions.run
    answers = group_by(lambda answer: answer.turn, chain.from_iterable(data.answers.values()))
    rates = {number: _speed(group) for number, group in answers.items()}
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


def _binned(points: Array) -> Array:
    """Return [bins, 2] the middle of each stretch of time and the median speed in it."""
    parts = [part for part in np.array_split(points, min(_BINS, len(points))) if len(part)]
    return np.array([np.median(part, axis=0) for part in parts])


def _limits(points: dict[str, Array]) -> tuple[float, float]:
    ratios = np.concatenate([found[:, 1] for found in points.values()])
    low, high = np.quantile(ratios, [0.01, 0.99])
    return min(0.9, 0.95 * float(low)), max(1.1, 1.05 * float(high))
