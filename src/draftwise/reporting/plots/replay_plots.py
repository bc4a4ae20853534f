"""Draws acceptance, measured and replayed: by position and by request, and the share that becomes speed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from draftwise.core import Acceptance
from draftwise.deciding.comparison.pooled_acceptance import Conversion, PooledAcceptance
from draftwise.replaying.acceptance_profile import tokens_per_step
from draftwise.replaying.anchors import Anchors
from draftwise.reporting.appearance import INK, PALETTE, PLAIN, Plot
from draftwise.reporting.plots.plot_data import PlotData, draw_panels
from draftwise.reporting.svg import to_plot


def draw_replay(
    entries: Sequence[Acceptance], anchors: Sequence[Anchors], label: Callable[[Acceptance], str]
) -> Mapping[str, Plot]:
    """Return the plots of a page by name: tokens per step by k, and request by request."""
    temperatures = sorted({entry.temperature for entry in entries})
    titles = [f"T={temperature:g}" for temperature in temperatures]
    colours = {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(dict.fromkeys(map(label, entries)))}

    def by_k(axes: Axes, index: int) -> None:
        for entry in (each for each in entries if each.temperature == temperatures[index]):
            found = [entry.by_k[k].tokens_per_step for k in entry.by_k]
            colour = colours[label(entry)]
            axes.plot(list(entry.by_k), [each.value for each in found], color=colour, marker="o", markersize=3,
                      label=label(entry))  # fmt: skip
            low, high = [each.low for each in found], [each.high for each in found]
            axes.fill_between(list(entry.by_k), low, high, color=colour, alpha=0.15, linewidth=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))

    def by_request(axes: Axes, index: int) -> None:
        for each in (found for found in anchors if found.temperature == temperatures[index]):
            values = np.sort(tokens_per_step(each, each.ks[-1]))
            name = replace(each.candidate, num_speculative_tokens=None).label
            axes.step(values, np.arange(1, len(values) + 1) / len(values), where="post", color=colours[name],
                      label=name)  # fmt: skip
        axes.set_ylim(0, 1)

    def k_figure() -> Figure:
        return draw_panels(titles, by_k, xlabel="k, draft tokens per step at most", ylabel="tokens per step")

    def request_figure() -> Figure:
        return draw_panels(titles, by_request, xlabel="tokens per step of a request", ylabel="share of requests below")

    about = "Tokens per step by draft length. The band is the interval over requests."
    spread = "Single requests, with the longest drafts. Half of them lie left of 0.5."
    return {
        "k": to_plot(k_figure, "by k", title="Tokens per step by k", caption=about),
        "requests": to_plot(request_figure, "by request", title="Tokens per step by request", caption=spread),
    }


def draw_by_position(data: PlotData, found: Sequence[PooledAcceptance]) -> Figure:
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


def draw_by_temperature(data: PlotData, found: Sequence[PooledAcceptance]) -> Figure:
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


def _draw_histogram(axes: Axes, each: PooledAcceptance, base: int, colour: str) -> None:
    shares = np.array(each.counts) / max(each.counts)
    axes.bar(
        each.edges[:-1], 0.75 * shares, width=np.diff(each.edges), bottom=base, align="edge", color=colour, alpha=0.75
    )
    for quantile, weight in zip(each.quantiles, (1.2, 2.2, 1.2), strict=True):
        axes.plot([quantile] * 2, [base - 0.14, base - 0.02], color=INK, linewidth=weight)


LOSSES = {
    "realized speed-up": "#15803d",
    "lost before the first token": "#3b82f6",
    "lost to slower steps": "#d97706",
    "lost to steps without a draft": PLAIN,
}
_FEW, _MOST = 2, 3
"""Panels in a row; all candidates of a workload where they fit."""


def draw_conversions(data: PlotData, found: Sequence[Conversion]) -> Figure:
    """Draw a bar per comparison as long as its acceptance length.

    A panel is a candidate with its loads; with a single load, it is a workload with its candidates.
    """
    panels = _panels(data, found)
    longest = max(max(each.levels) for each in found)
    in_a_row = len({each.candidate for each in found}) if len(panels) > _FEW else _FEW
    most = max(len(rows) for _, rows in panels)

    def draw(axes: Axes, index: int) -> None:
        rows = panels[index][1]
        for name, colour in LOSSES.items():
            # The legend has them in this order, whichever a panel begins with.
            axes.barh(0, 0, color=colour, label=name)
        for row, (_, each) in enumerate(rows):
            _draw_bar(axes, row, each)
        axes.axvline(1, color=INK, linewidth=0.8)
        axes.set_yticks(range(len(rows)), [label for label, _ in rows])
        axes.set_ylim(most - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(0, 1.03 * longest)

    return draw_panels(
        [title for title, _ in panels],
        draw,
        xlabel="times the baseline",
        ylabel="",
        columns=max(_FEW, min(_MOST, in_a_row)),
        rows_alike=False,
        height=0.75 + 0.24 * most,
    )


def _panels(data: PlotData, found: Sequence[Conversion]) -> list[tuple[str, list[tuple[str, Conversion]]]]:
    """Return the title of each panel, and its rows with their labels."""
    single = len({each.load for each in found}) == 1
    panels: dict[str, list[tuple[str, Conversion]]] = {}
    for each in found:
        place = data.title(each.workload, each.temperature)
        title, label = (place, each.candidate) if single else (f"{place} · {each.candidate}", each.load)
        panels.setdefault(title, []).append((label, each))
    return list(panels.items())


def _draw_bar(axes: Axes, row: int, each: Conversion) -> None:
    """Draw what arrived and each loss behind it. A step that gained instead leaves no loss to draw."""
    end = 0.0
    for colour, reached in zip(LOSSES.values(), each.levels, strict=True):
        if reached > end:
            axes.barh(row, reached - end, left=end, color=colour, height=0.66)
            end = reached
