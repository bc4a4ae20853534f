"""Draws latencies: distribution, percentiles over all loads, latency against throughput, and speed over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draftwise.core import Condition, Timing
from draftwise.deciding.comparison.latencies import QUANTILES, Latencies
from draftwise.reporting.appearance import INK
from draftwise.reporting.plots.plot_data import LoadSweep, PlotData, TimeAxis, draw_panels, list_loads, set_load_axis
from draftwise.reporting.speed_over_time import condense, trace_speed
from draftwise.statistics import Array

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
