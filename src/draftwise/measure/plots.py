"""The plots of a report as inline SVG that takes its text colour from the page, light or dark."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from draftwise.core import Comparison, Run, Verdict
from draftwise.measure.cell import ALL
from draftwise.measure.latency import tpots_ms
from draftwise.measure.thresholds import Thresholds
from draftwise.plan.drawing import INK, PALETTE, PLAIN, to_svg

__all__ = ["VERDICT_COLOURS", "draw_plots"]

VERDICT_COLOURS = {
    Verdict.ADOPT: "#16a34a",
    Verdict.REJECT: "#dc2626",
    Verdict.MIXED: "#d97706",
    Verdict.INCONCLUSIVE: PLAIN,
    Verdict.BLOCKED: "#9333ea",
}


def draw_plots(run: Run, comparisons: tuple[Comparison, ...], thresholds: Thresholds) -> dict[str, str]:
    """Return SVG by title: speed-up, conversion, acceptance by position, TPOT; empty without comparisons."""
    if not comparisons:
        return {}
    colours = {arm.name: PALETTE[i % len(PALETTE)] for i, arm in enumerate(run.plan.arms[1:])}
    single = [each for each in comparisons if each.workload != ALL]
    workloads = list(dict.fromkeys(each.workload for each in single))
    drawings: dict[str, Callable[[], Figure]] = {
        "speed-up": lambda: _draw_speedups(comparisons, thresholds.margin),
        "conversion": lambda: _draw_conversion(single, colours),
        "acceptance": lambda: _draw_acceptance(single, workloads, colours),
        "tpot": lambda: _draw_tpots(run, comparisons, workloads, colours),
    }
    return {name: to_svg(draw, name) for name, draw in drawings.items()}


def _draw_speedups(comparisons: Sequence[Comparison], margin: float) -> Figure:
    """Draw every speed-up with its interval, grouped by workload."""
    figure = Figure(
        layout="constrained",
        figsize=(7.6, 0.9 + 0.3 * (len(comparisons) + 0.8 * len({c.workload for c in comparisons}))),
    )
    axes = figure.add_subplot()
    ticks, labels, y, last = [], [], 0.0, comparisons[0].workload
    for each in comparisons:
        y += 0.8 if each.workload != last else 0.0
        last = each.workload
        high = min(each.speedup.high, 10 * each.speedup.value)
        colour = VERDICT_COLOURS[each.verdict]
        axes.plot([each.speedup.low, high], [y, y], color=colour, linewidth=2.4, solid_capstyle="round", alpha=0.55)
        axes.plot(each.speedup.value, y, "o", color=colour, markersize=6)
        ticks.append(y)
        labels.append(f"{each.workload} · {each.candidate}")
        y += 1
    axes.axvline(1, color=INK, linewidth=0.8)
    axes.axvspan(1 - margin, 1 + margin, color=PLAIN, alpha=0.2, linewidth=0)
    axes.set_yticks(ticks, labels)
    axes.set_ylim(y - 0.4, -0.6)
    axes.set_xlabel("speed-up over plain decoding")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    return figure


def _draw_conversion(comparisons: Sequence[Comparison], colours: dict[str, str]) -> Figure:
    """Draw speed-up against mean acceptance length; the diagonal is drafting and verifying for free."""
    figure = Figure(layout="constrained", figsize=(7.6, 4.0))
    axes = figure.add_subplot()
    shapes = dict(zip(dict.fromkeys(each.workload for each in comparisons), "osD^vP*X", strict=False))
    longest = 1.2
    for each in comparisons:
        if (length := each.counters.spec.acceptance_length) is not None:
            shape, colour = shapes.get(each.workload, "o"), colours[each.candidate]
            axes.plot(length, each.speedup.value, shape, color=colour, markersize=8, alpha=0.9)
            longest = max(longest, length * 1.05, each.speedup.value * 1.05)
    axes.plot([1, longest], [1, longest], color=INK, linewidth=0.8, linestyle="--")
    axes.axhline(1, color=INK, linewidth=0.5)
    for name, colour in colours.items():
        axes.plot([], [], "o", color=colour, label=name)
    for name, shape in shapes.items():
        axes.plot([], [], shape, color=PLAIN, label=name)
    axes.set_xlabel("mean acceptance length (tokens per verified draft)")
    axes.set_ylabel("speed-up")
    figure.legend(loc="outside right center")
    return figure


def _draw_acceptance(comparisons: Sequence[Comparison], workloads: Sequence[str], colours: dict[str, str]) -> Figure:
    """Draw, workload by workload, the share of drafts whose token at each position stood."""

    def draw(axes: Axes, workload: str) -> None:
        for each in comparisons:
            if each.workload == workload and (rates := each.counters.spec.rate_per_pos):
                positions = range(1, len(rates) + 1)
                axes.plot(positions, rates, "o-", color=colours[each.candidate], markersize=4, label=each.candidate)
        axes.set_ylim(0, 1)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))

    return _draw_panels(workloads, draw, "draft position", "share of drafts accepted there")


def _draw_tpots(
    run: Run, comparisons: tuple[Comparison, ...], workloads: Sequence[str], colours: dict[str, str]
) -> Figure:
    """Draw, workload by workload, the share of requests whose time per output token is at most x."""

    def draw(axes: Axes, workload: str) -> None:
        middles = []
        for arm in run.plan.arms:
            values = tpots_ms(run, comparisons, workload, arm.name)
            middles += values[len(values) // 2 : len(values) // 2 + 1]
            shares = [(i + 1) / len(values) for i in range(len(values))]
            axes.step(values, shares, where="post", color=colours.get(arm.name, PLAIN), label=arm.name)
        axes.set_ylim(0, 1.02)
        # One stalled request would otherwise squeeze all others to the left edge.
        axes.set_xlim(0, 3 * max(middles, default=1.0) or None)

    return _draw_panels(workloads, draw, "time per output token (ms)", "share of requests")


def _draw_panels(names: Sequence[str], draw: Callable[[Axes, str], None], xlabel: str, ylabel: str) -> Figure:
    """Draw one panel per name, three a row, with one legend for all of them."""
    rows = math.ceil(len(names) / 3)
    figure = Figure(layout="constrained", figsize=(7.6, 2.7 * rows + 0.6))
    grid = figure.subplots(rows, min(3, len(names)), sharey=True, squeeze=False)
    legend: dict[str, Any] = {}
    for axes, name in zip_longest(grid.flat, names):
        if name is None:
            axes.set_visible(False)
            continue
        draw(axes, name)
        axes.set_title(name, fontsize=10)
        axes.set_xlabel(xlabel)
        legend |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    for row in grid:
        row[0].set_ylabel(ylabel)
    figure.legend(list(legend.values()), list(legend), loc="outside lower center", ncols=min(5, max(1, len(legend))))
    return figure
