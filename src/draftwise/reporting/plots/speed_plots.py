"""Draws speed-up by load and its crossovers, latencies, and the speed of servers over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from draftwise.core import Comparison, Condition, Crossover, Timing
from draftwise.deciding.comparison.latencies import QUANTILES, Latencies
from draftwise.reporting.appearance import INK, PLAIN, VERDICT_COLOURS
from draftwise.reporting.plots.plot_data import (
    LoadSweep,
    PlotData,
    Style,
    TimeAxis,
    draw_panels,
    list_loads,
    set_load_axis,
)
from draftwise.reporting.speed_over_time import condense, trace_speed
from draftwise.reporting.svg import NARROW, figure_width
from draftwise.reporting.units import format_load
from draftwise.statistics import Array

_FEW_LINES = 3
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
    alpha = 0.18 if len(data.arms) - 1 <= _FEW_LINES else 0.08
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
        if len(crossovers) <= _FEW_LINES:
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


TIMINGS: dict[str, tuple[str, Callable[[Timing], float | None]]] = {
    "ttft": ("time to first token", lambda timing: timing.ttft_s),
    "tpot": ("time per output token", lambda timing: timing.tpot_s),
    "e2e": ("end-to-end latency", lambda timing: timing.e2e_s),
}
_POINTS = 120
"""Points of a curve; a screen does not resolve more."""
_MOST_PANELS = 12
_P50, _P99 = QUANTILES.index(50), QUANTILES.index(99)


def draw_distributions(data: PlotData, cells: Sequence[tuple[str, Condition]], reading: str) -> Figure:
    """Draw, cell by cell, the share of requests whose latency is at most x."""
    name, read = TIMINGS[reading]
    several = len({condition.label for _, condition in data.cells}) > 1
    found = [_read_cell(data, cell, read) for cell in cells]
    # One stalled request would otherwise squeeze all others to the left edge.
    ends = (float(np.quantile(values, q)) for cell in found for values in cell.values() for q in (0.05, 0.95))
    axis = TimeAxis.over(ends)

    def draw(axes: Axes, index: int) -> None:
        for arm, values in found[index].items():
            shares = np.linspace(0, 1, min(_POINTS, max(2, len(values))))
            style = data.styles[arm]
            curve = np.quantile(values, shares)
            axes.plot(curve, shares, color=style.colour, linestyle=style.line, linewidth=1.4, label=arm)
        axis.apply(axes, "x")
        axes.set_ylim(0, 1.02)

    names = [f"{workload} · {condition.label}" if several else workload for workload, condition in cells]
    return draw_panels(names, draw, xlabel=f"{name} {axis.unit}", ylabel="share of requests")


def _read_cell(data: PlotData, cell: tuple[str, Condition], read: Callable[[Timing], float | None]) -> dict[str, Array]:
    workload, condition = cell
    found = {arm: 1e3 * data.values((workload, condition.label, arm), read) for arm in data.arms}
    return {arm: values for arm, values in found.items() if len(values)}


def pick_cells(data: PlotData) -> list[tuple[str, Condition]]:
    """Return the cells to show distributions of: all of them, or the lightest and heaviest load of each sweep."""
    cells = list(data.cells)
    if len(cells) <= _MOST_PANELS:
        return cells
    names = {workload for workload, _ in cells}
    ends = [(each.workload, each.points[i][1]) for each in data.sweeps if each.workload in names for i in (0, -1)]
    return (ends or cells)[:_MOST_PANELS]


def draw_latency_over_load(data: PlotData, sweeps: Sequence[LoadSweep], reading: str) -> Figure:
    """Draw P50 (thick lines) and P99 (thin lines) of every arm against the load."""
    found = [{arm: _percentiles_over_load(data, sweep, arm, reading) for arm in data.arms} for sweep in sweeps]
    axis = TimeAxis.over(end for lines in found for line in lines.values() for _, *ends in line for end in ends)
    loads = list_loads(sweeps)

    def draw(axes: Axes, index: int) -> None:
        for arm, line in found[index].items():
            style = data.styles[arm]
            at = [load for load, _, _ in line]
            thin = style.of_line | {"linewidth": 0.8, "markersize": 2, "alpha": 0.7}
            axes.plot(at, [median for _, median, _ in line], label=arm, **style.of_line)
            axes.plot(at, [slowest for _, _, slowest in line], **thin)
        set_load_axis(axes, loads)
        axis.apply(axes, "y")

    titles = [data.title(each.workload, each.temperature) for each in sweeps]
    ylabel = f"{TIMINGS[reading][0]} {axis.unit}"
    return draw_panels(titles, draw, xlabel=_load_label(sweeps), ylabel=ylabel)


def _percentiles_over_load(
    data: PlotData, sweep: LoadSweep, arm: str, reading: str
) -> list[tuple[float, float, float]]:
    """Return load, P50 and P99 in milliseconds of every load with readings."""
    rows = ((load, row.percentiles_ms[reading]) for load, row in _rows(data, sweep, arm))
    return [(load, values[_P50], values[_P99]) for load, values in rows if values and values[_P50] > 0]


def draw_pareto(data: PlotData, sweeps: Sequence[LoadSweep]) -> Figure:
    """Draw the speed of one stream against the server's throughput, with a line per arm through the loads."""

    def draw(axes: Axes, index: int) -> None:
        sweep = sweeps[index]
        for arm in data.arms:
            found = [
                (load, 1e3 / tpots[_P50], row.throughput)
                for load, row in _rows(data, sweep, arm)
                # A median request whose tokens all came in one chunk took no time per token.
                if row.throughput is not None and (tpots := row.percentiles_ms["tpot"]) and tpots[_P50] > 0
            ]
            axes.plot([x for _, x, _ in found], [y for _, _, y in found], label=arm, **data.styles[arm].of_line)
            for load, x, y in found if arm == data.arms[0] else ():
                axes.annotate(f"{load:g}", (x, y), xytext=(3, 3), textcoords="offset points", fontsize=7)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)

    titles = [data.title(each.workload, each.temperature) for each in sweeps]
    xlabel = "tokens per second of a stream (1 / median TPOT)"
    return draw_panels(titles, draw, xlabel=xlabel, ylabel="tokens per second of the server")


def _rows(data: PlotData, sweep: LoadSweep, arm: str) -> list[tuple[float, Latencies]]:
    places = [(load, (sweep.workload, condition.label, arm)) for load, condition in sweep.points]
    return [(load, data.rows[place]) for load, place in places if place in data.rows]


def _load_label(sweeps: Sequence[LoadSweep]) -> str:
    return " or ".join(dict.fromkeys(each.axis_label for each in sweeps))


_FEW = 400
"""Turns up to which each is drawn as a dot."""


def draw_timeline(data: PlotData) -> Figure:
    """Draw every turn's speed relative to the median of the same turn in all repetitions, over the run's time."""
    points = trace_speed(data.conclusions.run, chain.from_iterable(data.answers.values()))

    def draw(axes: Axes, _: int) -> None:
        axes.axhline(1, color=INK, linewidth=0.5)
        for arm, found in points.items():
            style = data.styles[arm]
            if len(found) <= _FEW:
                axes.plot(found[:, 0], found[:, 1], ".", color=style.colour, markersize=3, alpha=0.5)
            binned = condense(found)
            axes.plot(binned[:, 0], binned[:, 1], color=style.colour, linestyle=style.line, linewidth=1.4, label=arm)
        axes.set_ylim(*_limits(points))

    return draw_panels([""], draw, xlabel="minutes since the first turn", ylabel="speed over its median")


def _limits(points: dict[str, Array]) -> tuple[float, float]:
    ratios = np.concatenate([found[:, 1] for found in points.values()])
    low, high = np.quantile(ratios, [0.01, 0.99])
    return min(0.9, 0.95 * float(low)), max(1.1, 1.05 * float(high))
