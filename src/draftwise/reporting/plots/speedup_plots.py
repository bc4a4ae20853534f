"""Speed-up against load with the crossover marked, and speed-ups side by side without a load axis."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from draftwise.core import Comparison, Crossover
from draftwise.reporting.appearance import INK, PLAIN, VERDICT_COLOURS
from draftwise.reporting.plots.plot_data import (
    LoadSweep,
    PlotData,
    Style,
    draw_panels,
    list_loads,
    set_load_axis,
)
from draftwise.reporting.svg import NARROW, figure_width
from draftwise.reporting.units import format_load

_FEW = 3
"""Crossovers in a panel up to which their intervals are drawn; a table has them all."""
_ROOM = 1.6
"""Margin beyond the smallest and largest ratio in which intervals are drawn to their ends."""
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 20, 50, 100)


def draw_crossovers(data: PlotData) -> Figure:
    """Draw, per workload and temperature, the deciding ratio of every candidate against the load."""
    sweeps = data.sweeps
    loads = list_loads(sweeps)

    def draw(axes: Axes, index: int) -> None:
        _draw_sweep(axes, data, sweeps[index])
        set_load_axis(axes, loads)

    return draw_panels(
        [data.title(each.workload, each.temperature) for each in sweeps],
        draw,
        xlabel=" or ".join(dict.fromkeys(each.axis_label for each in sweeps)),
        ylabel="speed-up",
        height=3.6 if len(sweeps) == 1 else 2.5,
    )


def _draw_sweep(axes: Axes, data: PlotData, sweep: LoadSweep) -> None:
    margin = data.conclusions.thresholds.margin
    alpha = 0.18 if len(data.arms) - 1 <= _FEW else 0.08
    axes.axhline(1, color=INK, linewidth=0.8)
    axes.axhspan(1 - margin, 1 + margin, color=PLAIN, alpha=0.2, linewidth=0)
    for arm in data.arms[1:]:
        style = data.styles[arm]
        found = [
            (load, data.comparisons[sweep.workload, condition.label, arm].deciding)
            for load, condition in sweep.points
            if (sweep.workload, condition.label, arm) in data.comparisons
        ]
        loads = [load for load, _ in found]
        axes.plot(loads, [ratio.value for _, ratio in found], label=arm, **style.of_line)
        highs = [min(ratio.high, 9 * ratio.value) for _, ratio in found]
        axes.fill_between(loads, [ratio.low for _, ratio in found], highs, color=style.colour, alpha=alpha, linewidth=0)
    crossovers = _crossovers_of(data, sweep)
    for i, crossover in enumerate(crossovers):
        style = data.styles[crossover.candidate]
        axes.plot(
            crossover.value or 0.0, 1, "X", color=style.colour, markersize=8, markeredgecolor=INK, markeredgewidth=0.6
        )
        if len(crossovers) <= _FEW:
            _mark_interval(axes, crossover, style, sweep.loads, i)
    # An interval without an end would otherwise squeeze all lines to the bottom.
    axes.set_ylim(0, 1.25 * max(1.0, *(each.deciding.value for each in data.comparisons.values())))


def _crossovers_of(data: PlotData, sweep: LoadSweep) -> list[Crossover]:
    every = data.conclusions.decision.crossovers
    place = (sweep.workload, sweep.temperature, sweep.axis)
    return [e for e in every if (e.workload, e.temperature, e.axis) == place and e.value is not None]


def _mark_interval(axes: Axes, crossover: Crossover, style: Style, loads: Sequence[float], index: int) -> None:
    """Draw the interval of a crossover near the bottom, cut at the loads measured, and its estimate in digits."""
    value = crossover.value or 0.0
    ends = [min(max(end, loads[0]), loads[-1]) for end in (crossover.low, crossover.high)]
    height = 0.12 + 0.1 * index
    axes.plot(ends, [height, height], color=style.colour, linewidth=3, solid_capstyle="butt", alpha=0.5)
    axes.plot([value] * 2, [height, 1], color=style.colour, linewidth=0.8, linestyle=":")
    text = format_load(value, crossover.axis)
    axes.annotate(text, (value, height), xytext=(4, 2), textcoords="offset points", fontsize=8)


def draw_speedups(comparisons: Sequence[Comparison], margin: float) -> Figure:
    """Draw every deciding ratio with its interval, grouped by workload and condition."""
    groups = {(each.workload, each.condition.label) for each in comparisons}
    several = len({label for _, label in groups}) > 1
    is_narrow = (width := figure_width()) <= NARROW
    height = 0.9 + (0.45 if is_narrow else 0.3) * (len(comparisons) + 0.8 * len(groups))
    figure = Figure(layout="constrained", figsize=(width, height))
    axes = figure.add_subplot()
    # A few prompts can leave an interval of 0.02 to 60, which would make all else look alike.
    values = [1.0, *(each.deciding.value for each in comparisons)]
    left, right = max(_TICKS[0], min(values) / _ROOM), max(values) * _ROOM
    ticks, labels, y, last = [], [], 0.0, (comparisons[0].workload, comparisons[0].condition.label)
    for each in comparisons:
        place = (each.workload, each.condition.label)
        y += 0.8 if place != last else 0.0
        last = place
        ratio, colour = each.deciding, VERDICT_COLOURS[each.verdict]
        ends = [max(ratio.low, left), min(ratio.high, right)]
        axes.plot(ends, [y, y], color=colour, linewidth=2.4, solid_capstyle="round", alpha=0.55)
        for end, marker, is_cut in ((left, "<", ratio.low < left), (right, ">", ratio.high > right)):
            if is_cut:
                axes.plot(end, y, marker, color=colour, markersize=5, clip_on=False)
        axes.plot(ratio.value, y, "o", color=colour, markersize=6)
        ticks.append(y)
        labels.append(" · ".join((each.workload, *([place[1]] if several else []), each.candidate)))
        y += 1
    axes.axvline(1, color=INK, linewidth=0.8)
    axes.axvspan(1 - margin, 1 + margin, color=PLAIN, alpha=0.2, linewidth=0)
    if is_narrow:  # names next to the bars would leave them no room
        for tick, label in zip(ticks, labels, strict=True):
            axes.text(0, tick - 0.22, label, transform=axes.get_yaxis_transform(), fontsize=8, va="bottom", wrap=True)
    axes.set_yticks(ticks, [""] * len(labels) if is_narrow else labels)
    axes.set_ylim(y - 0.4, -0.6)
    axes.set_xscale("log")
    axes.set_xlim(left, right)
    axes.xaxis.set_major_locator(FixedLocator([tick for tick in _TICKS if left <= tick <= right]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("speed-up over the baseline (logarithmic)")
    axes.tick_params(axis="y", length=0, pad=8)
    axes.spines["left"].set_visible(False)
    return figure
