"""Plots of a replay: tokens per step by draft length, and request by request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from draftwise.core import Acceptance
from draftwise.replaying.acceptance_profile import tokens_per_step
from draftwise.replaying.anchors import Anchors
from draftwise.reporting.appearance import PALETTE, Plot
from draftwise.reporting.plots.plot_data import draw_panels
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
