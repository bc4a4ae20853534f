"""What the drafts were worth: by position, and request by request at each temperature."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from draftwise.deciding.comparison.acceptance import Acceptance
from draftwise.reporting.plots.plot_data import PlotData
from draftwise.reporting.plots.style import draw_panels
from draftwise.reporting.svg import INK

__all__ = ["draw_by_position", "draw_by_temperature"]


def draw_by_position(data: PlotData, found: Sequence[Acceptance]) -> Figure:
    """Draw, per workload and temperature, the share of drafts whose token at each position was accepted."""
    groups = list(dict.fromkeys((each.workload, each.temperature) for each in found))

    def draw(axes: Axes, index: int) -> None:
        for each in found:
            if (each.workload, each.temperature) == groups[index] and (rates := each.stats.rate_per_pos):
                look = data.styles[each.candidate].of_line
                if len(rates) == 1:
                    # A ring: a longer draft of the same head has its first point in the same place.
                    look |= {"markersize": 9, "markerfacecolor": "none"}
                axes.plot(range(1, len(rates) + 1), rates, label=each.candidate, **look)
        axes.set_ylim(0, 1)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))

    titles = [data.title(*group) for group in groups]
    return draw_panels(titles, draw, xlabel="draft position", ylabel="share of drafts accepted there")


def draw_by_temperature(data: PlotData, found: Sequence[Acceptance]) -> Figure:
    """Draw, per workload and candidate, the histogram of tokens per step at each temperature, one above the other.

    The three ticks under a histogram are P10, P50 and P90.
    """
    known = [each for each in found if each.counts]
    groups = list(dict.fromkeys((each.workload, each.candidate) for each in known))
    temperatures = sorted({each.temperature for each in known})
    right = max(each.edges[-1] for each in known)

    def draw(axes: Axes, index: int) -> None:
        for each in known:
            if (each.workload, each.candidate) == groups[index]:
                _draw_histogram(axes, each, temperatures.index(each.temperature), data.styles[each.candidate].colour)
        axes.set_yticks(range(len(temperatures)), [f"T={value:g}" for value in temperatures])
        axes.set_ylim(-0.25, len(temperatures))
        axes.set_xlim(1, right)
        axes.tick_params(axis="y", length=0)

    names = [f"{workload} · {candidate}" for workload, candidate in groups]
    height = 0.9 + 0.5 * len(temperatures)
    return draw_panels(names, draw, xlabel="tokens per step of a request", ylabel="", height=height)


def _draw_histogram(axes: Axes, each: Acceptance, base: int, colour: str) -> None:
    shares = np.array(each.counts) / max(each.counts)
    axes.bar(
        each.edges[:-1], 0.75 * shares, width=np.diff(each.edges), bottom=base, align="edge", color=colour, alpha=0.75
    )
    for quantile, weight in zip(each.quantiles, (1.2, 2.2, 1.2), strict=True):
        axes.plot([quantile] * 2, [base - 0.14, base - 0.02], color=INK, linewidth=weight)
