"""The curves of a training run as an SVG file that follows the reader's light or dark theme."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from draftwise.machine.files import write_whole
from draftwise.reporting.svg import PALETTE, to_svg

__all__ = ["draw_curves"]


def draw_curves(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Draw loss and held-out acceptance by draft position over the steps.

    Args:
        rows: of the run's log.
        file: written atomically.
    """
    about = "Loss, and held-out acceptance by draft position, against training steps."
    svg = to_svg(lambda: _draw(rows), "curves", title="Training curves", about=about, alone=True)
    write_whole(file, svg)


def _draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    losses = [row for row in rows if "loss" in row]
    held_out = [row for row in rows if "heldout_loss" in row]
    figure = Figure(layout="constrained", figsize=(8.4, 3.2))
    left, right = figure.subplots(1, 2)
    left.plot([row["step"] for row in losses], [row["loss"] for row in losses], color=PALETTE[0], label="learnt")
    steps = [row["step"] for row in held_out]
    left.plot(steps, [row["heldout_loss"] for row in held_out], "o-", color=PALETTE[1], ms=3, label="held out")
    left.set_ylabel("loss")
    for position in range(max((len(row["acceptance"]) for row in held_out), default=0)):
        rates = [row["acceptance"][position] for row in held_out]
        colour = PALETTE[position % len(PALETTE)]
        right.plot(steps, rates, "o-", color=colour, ms=3, label=f"draft position {position + 1}")
    right.set_ylabel("accepted up to there, held out")
    right.set_ylim(0, 1)
    for axes in (left, right):
        axes.set_xlabel("step")
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
    return figure
