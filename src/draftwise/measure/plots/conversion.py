"""How much of the acceptance length arrives as speed, and where the rest of it goes."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draftwise.measure.conversion import Conversion
from draftwise.measure.plots.material import Material
from draftwise.measure.plots.style import draw_panels
from draftwise.plan.drawing import INK, PLAIN

__all__ = ["LOSSES", "draw_conversions"]

LOSSES = {
    "realised speed-up": "#16a34a",
    "lost before the first token": "#93c5fd",
    "lost to dearer steps": "#f59e0b",
    "lost to steps without a draft": PLAIN,
}
_COLUMNS = 2


def draw_conversions(material: Material, found: Sequence[Conversion]) -> Figure:
    """Draw, per workload, temperature and candidate, a bar per load as long as the acceptance length."""
    groups = list(dict.fromkeys((each.workload, each.temperature, each.candidate) for each in found))
    longest = max(max(each.levels) for each in found)
    most = max(sum((each.workload, each.temperature, each.candidate) == group for each in found) for group in groups)

    def draw(axes: Axes, index: int) -> None:
        mine = [each for each in found if (each.workload, each.temperature, each.candidate) == groups[index]]
        for row, each in enumerate(mine):
            _draw_bar(axes, row, each)
        axes.axvline(1, color=INK, linewidth=0.8)
        axes.set_yticks(range(len(mine)), [each.load for each in mine])
        axes.set_ylim(most - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(0, 1.03 * longest)

    names = [f"{material.title(workload, temperature)} · {candidate}" for workload, temperature, candidate in groups]
    return draw_panels(
        names,
        draw,
        xlabel="times plain decoding",
        ylabel="",
        columns=_COLUMNS,
        sharey=False,
        height=0.75 + 0.24 * most,
    )


def _draw_bar(axes: Axes, row: int, each: Conversion) -> None:
    """Draw what arrived and each loss behind it; a step that gained instead leaves no loss to draw."""
    end = 0.0
    for (name, colour), reached in zip(LOSSES.items(), each.levels, strict=True):
        if reached > end:
            axes.barh(row, reached - end, left=end, color=colour, height=0.66, label=name)
            end = reached
