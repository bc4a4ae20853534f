"""What all plots of a report share: who has which colour, and how panels stand beside each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from draftwise.core import Arm, Verdict
from draftwise.report.svg import PALETTE, PLAIN

__all__ = ["VERDICT_COLOURS", "WIDTH", "Style", "draw_panels", "set_load_axis", "set_time_axis", "style_arms"]

VERDICT_COLOURS = {
    Verdict.ADOPT: "#16a34a",
    Verdict.REJECT: "#dc2626",
    Verdict.MIXED: "#d97706",
    Verdict.INCONCLUSIVE: PLAIN,
    Verdict.BLOCKED: "#9333ea",
}
WIDTH = 7.6
"""Inches of a whole figure."""
_PANEL_HEIGHT = 2.5
_MARKERS = ("o", "s", "D", "^", "v", "P")
_LINES = ("-", "--", ":", "-.")
_MOST_TICKS = 7
_WIDE = 5.0
"""Ratio of the longest to the shortest time from which an axis is logarithmic."""
_LEGEND_CHARACTERS = 84
"""That fit in one line."""


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
    """Return a style per arm; the baseline is grey, and beyond the palette lines and markers tell arms apart."""
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
    sharey: bool = True,
    height: float = _PANEL_HEIGHT,
) -> Figure:
    """Draw one panel per name (by its index), some in a row, with one legend above all of them."""
    columns = min(columns or (2 if len(names) in (2, 4) else 3), len(names))
    rows = math.ceil(len(names) / columns)
    figure = Figure(layout="constrained", figsize=(WIDTH, height * rows + 0.6))
    grid = figure.subplots(rows, columns, sharey=sharey, squeeze=False)
    legend: dict[str, Any] = {}
    for i, (axes, name) in enumerate(zip_longest(grid.flat, names)):
        if name is None:
            axes.set_visible(False)
            continue
        draw(axes, i)
        axes.set_title(name, fontsize=10)
        legend |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.supxlabel(xlabel, fontsize=10)
    figure.supylabel(ylabel, fontsize=10)
    if legend:
        columns = max(1, min(len(legend), _LEGEND_CHARACTERS // (6 + max(map(len, legend)))))
        figure.legend(list(legend.values()), list(legend), loc="outside upper center", ncols=columns)
    return figure


def set_time_axis(axes: Axes) -> None:
    """Make y start at 0, or logarithmic with ordinary numbers where the readings are too far apart for that."""
    values = [float(value) for line in axes.get_lines() for value in np.asarray(line.get_ydata())]
    if values and max(values) > _WIDE * min(values) > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(bottom=0)


def set_load_axis(axes: Axes, loads: Sequence[float]) -> None:
    """Make x a logarithmic axis with a tick at the loads that were measured, not at all of them if they are many."""
    given = sorted(set(loads))
    axes.set_xscale("log", base=2)
    step = math.ceil(len(given) / _MOST_TICKS)
    axes.xaxis.set_major_locator(FixedLocator(given[::step]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
