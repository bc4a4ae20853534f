"""Collects the readings that plots draw from, and the colors, panels and axes that all plots share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from draftwise.core import Answer, Arm, Comparison, Condition, Timing
from draftwise.core.comparison import ALL
from draftwise.deciding.comparison.latencies import Latencies
from draftwise.deciding.conclusions import Conclusions
from draftwise.reporting.appearance import PALETTE, PLAIN
from draftwise.reporting.svg import NARROW, figure_width
from draftwise.reporting.units import LOAD_UNITS
from draftwise.statistics import Array

Place = tuple[str, str, str]
"""Workload, label of the condition, arm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSweep:
    """One workload at one temperature, under loads on one axis, lightest first."""

    workload: str
    temperature: float
    axis: str
    """`concurrency` or `rate`."""
    points: tuple[tuple[float, Condition], ...]

    @property
    def loads(self) -> tuple[float, ...]:
        """The numbers on the axis."""
        return tuple(load for load, _ in self.points)

    @property
    def axis_label(self) -> str:
        """The axis in words."""
        return LOAD_UNITS[self.axis]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotData:
    """The readings behind all plots."""

    conclusions: Conclusions
    rows: Mapping[Place, Latencies]
    answers: Mapping[Place, Sequence[Answer]]
    """Measured answers without an error, from the repetitions behind a comparison."""
    comparisons: Mapping[Place, Comparison]
    styles: Mapping[str, Style]
    sweeps: tuple[LoadSweep, ...]
    """Sweeps with at least two loads."""
    cells: tuple[tuple[str, Condition], ...]
    """Every workload under every condition that was measured."""

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of all arms, the baseline first."""
        return tuple(arm.name for arm in self.conclusions.run.plan.arms)

    def title(self, workload: str, temperature: float) -> str:
        """Return the name of a panel, with the temperature if there are several."""
        several = len({condition.temperature for _, condition in self.cells}) > 1
        return f"{workload} · T={temperature:g}" if several else workload

    def values(self, place: Place, read: Callable[[Timing], float | None]) -> Array:
        """Return a reading of every answer, ascending."""
        readings = (read(answer.timing) for answer in self.answers.get(place, ()))
        return np.sort(np.array([value for value in readings if value is not None], dtype=np.float64))


def list_loads(sweeps: Iterable[LoadSweep]) -> list[float]:
    """Return the loads of all sweeps, ascending, for the axis that panels share."""
    return sorted({load for each in sweeps for load in each.loads})


def collect(conclusions: Conclusions) -> PlotData:
    """Return the readings behind the plots of a run."""
    run, decision = conclusions.run, conclusions.decision
    comparisons = {each.key: each for each in decision.comparisons}
    answers: dict[Place, list[Answer]] = {}
    for answer in run.answers:
        place = (answer.workload, answer.condition, answer.arm)
        counted = comparisons.get(place)
        if answer.measured and answer.error is None and (counted is None or answer.repeat in counted.repetitions):
            answers.setdefault(place, []).append(answer)
    measured = {(workload, label) for workload, label, _ in answers}
    cells = [
        (workload.name, condition)
        for workload in run.plan.workloads
        for condition in run.conditions
        if (workload.name, condition.label) in measured
    ]
    return PlotData(
        conclusions=conclusions,
        rows={(row.workload, row.condition, row.arm): row for row in conclusions.latencies},
        answers=answers,
        comparisons=comparisons,
        styles=style_arms(run.plan.arms),
        sweeps=tuple(_sweeps(cells, decision.comparisons)),
        cells=tuple(cells),
    )


def _sweeps(cells: Sequence[tuple[str, Condition]], comparisons: Iterable[Comparison]) -> Iterable[LoadSweep]:
    pooled = [(each.workload, each.condition) for each in comparisons if each.workload == ALL]
    found: dict[tuple[str, float, str], dict[float, Condition]] = {}
    for workload, condition in (*cells, *pooled):
        if (place := condition.place) is not None:
            axis, load = place
            found.setdefault((workload, condition.temperature, axis), {})[load] = condition
    for (workload, temperature, axis), points in found.items():
        if len(points) > 1:
            yield LoadSweep(workload=workload, temperature=temperature, axis=axis, points=tuple(sorted(points.items())))


_PANEL_HEIGHT = 2.5
_GAP = 0.12
"""Inches left and right of a panel, so that the numbers of two axes stay apart."""
_MARKERS = ("o", "s", "D", "^", "v", "P")
_LINES = ("-", "--", ":", "-.")
_MOST_TICKS = 7
_WIDE = 5.0
"""Ratio of the longest to the shortest time from which an axis is logarithmic."""
_LEGEND_CHARACTERS = 11
"""Characters that fit in an inch of a line."""
_LEGEND_LINE = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How one arm is drawn in every plot."""

    colour: str
    marker: str
    line: str

    @property
    def of_line(self) -> dict[str, Any]:
        """Keywords for `Axes.plot` of points with a line through them."""
        return {"color": self.colour, "marker": self.marker, "linestyle": self.line, "markersize": 4, "linewidth": 1.4}


def style_arms(arms: Sequence[Arm]) -> dict[str, Style]:
    """Return a style per arm; the baseline is gray. Beyond the palette, lines and markers distinguish arms."""
    styles = {arms[0].name: Style(colour=PLAIN, marker="o", line="-")}
    for i, arm in enumerate(arms[1:]):
        again = i // len(PALETTE)
        styles[arm.name] = Style(
            colour=PALETTE[i % len(PALETTE)],
            marker=_MARKERS[again % len(_MARKERS)],
            line=_LINES[again % len(_LINES)],
        )
    return styles


def draw_panels(
    names: Sequence[str],
    draw: Callable[[Axes, int], None],
    *,
    xlabel: str,
    ylabel: str,
    columns: int | None = None,
    rows_alike: bool = True,
    height: float = _PANEL_HEIGHT,
) -> Figure:
    """Draw one panel per name (by its index), side by side if they fit, with one legend above all.

    All panels share their axes, so that you can compare them.
    """
    width = figure_width()
    columns = 1 if width <= NARROW else min(columns or (2 if len(names) in (2, 4) else 3), len(names))
    rows = math.ceil(len(names) / columns)
    figure = Figure(layout=ConstrainedLayoutEngine(w_pad=_GAP), figsize=(width, height * rows + 0.6))
    grid = figure.subplots(rows, columns, sharex=True, sharey=rows_alike, squeeze=False)
    legend: dict[str, Any] = {}
    for i, (axes, name) in enumerate(zip_longest(grid.flat, names)):
        if name is None:
            axes.set_visible(False)
            continue
        draw(axes, i)
        axes.set_title(name, fontsize=10)
        # A panel with nothing below it would be without numbers.
        axes.tick_params(axis="x", labelbottom=True)
        legend |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.supxlabel(xlabel, fontsize=10)
    figure.supylabel(ylabel, fontsize=10)
    if legend:
        columns = max(1, min(len(legend), int(_LEGEND_CHARACTERS * width) // (6 + max(map(len, legend)))))
        figure.set_figheight(figure.get_figheight() + _LEGEND_LINE * max(0, math.ceil(len(legend) / columns) - 2))
        figure.legend(list(legend.values()), list(legend), loc="outside upper center", ncols=columns)
    return figure


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeAxis:
    """The axis of milliseconds that the panels of a figure share."""

    low: float
    high: float
    logarithmic: bool
    """Whether the readings are too far apart for an axis that starts at 0."""

    @classmethod
    def over(cls, values: Iterable[float]) -> TimeAxis:
        """Return the axis that holds all readings of a figure."""
        known = [each for each in values if each > 0]
        if known and max(known) > _WIDE * min(known):
            return cls(low=min(known) / 1.2, high=1.2 * max(known), logarithmic=True)
        return cls(low=0, high=1.05 * max(known, default=1.0), logarithmic=False)

    @property
    def unit(self) -> str:
        """Text after the name of the axis."""
        return "(ms, logarithmic)" if self.logarithmic else "(ms)"

    def apply(self, axes: Axes, side: Literal["x", "y"]) -> None:
        """Give a panel this axis."""
        axes.set(**{f"{side}scale": "log" if self.logarithmic else "linear", f"{side}lim": (self.low, self.high)})
        if self.logarithmic:
            axis = axes.xaxis if side == "x" else axes.yaxis
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_locator(NullLocator())


def set_load_axis(axes: Axes, loads: Sequence[float]) -> None:
    """Make x a logarithmic axis with ticks at the measured loads, or at some of them if there are many."""
    given = sorted(set(loads))
    axes.set_xscale("log", base=2)
    step = math.ceil(len(given) / _MOST_TICKS)
    axes.xaxis.set_major_locator(FixedLocator(given[::step]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
