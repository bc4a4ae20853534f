"""How much of the acceptance length arrives as speed, and where the rest of it goes."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draftwise.deciding.comparison.acceptance import Conversion
from draftwise.reporting.plots.plot_data import PlotData
from draftwise.reporting.plots.style import draw_panels
from draftwise.reporting.svg import INK, PLAIN

__all__ = ["LOSSES", "draw_conversions"]

LOSSES = {
    "realised speed-up": "#15803d",
    "lost before the first token": "#3b82f6",
    "lost to slower steps": "#d97706",
    "lost to steps without a draft": PLAIN,
}
_FEW, _MOST = 2, 3
"""Panels in a row; all candidates of a workload where they fit."""


def draw_conversions(data: PlotData, found: Sequence[Conversion]) -> Figure:
    """Draw a bar per comparison as long as its acceptance length.

    A panel is a candidate with its loads; where there is one load only, it is a workload with its candidates.
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
    """Draw what arrived and each loss behind it; a step that gained instead leaves no loss to draw."""
    end = 0.0
    for colour, reached in zip(LOSSES.values(), each.levels, strict=True):
        if reached > end:
            axes.barh(row, reached - end, left=end, color=colour, height=0.66)
            end = reached
