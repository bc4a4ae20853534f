"""The curves of a training run as an SVG file that follows the reader's light or dark theme."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

__all__ = ["draw_curves"]

_INK = "#010203"
"""Stands for the theme's text colour until the SVG is written."""
_PALETTE = ("#3b82f6", "#f59e0b", "#10b981", "#d946ef", "#ef4444", "#06b6d4", "#84cc16", "#f97316")
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "curves",
    "font.size": 10,
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
    "legend.fontsize": 8,
}
_THEME = "<style>svg{color:#1f2328}@media(prefers-color-scheme:dark){svg{color:#e6edf3}}</style>"


def draw_curves(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Draw loss and held-out acceptance by draft position over the steps.

    Args:
        rows: of the run's log.
        file: is written whole or not at all.
    """
    losses = [row for row in rows if "loss" in row]
    held_out = [row for row in rows if "heldout_loss" in row]
    with mpl.rc_context(_STYLE):
        figure = Figure(layout="constrained", figsize=(8.4, 3.2))
        left, right = figure.subplots(1, 2)
        left.plot([row["step"] for row in losses], [row["loss"] for row in losses], color=_PALETTE[0], label="learnt")
        steps = [row["step"] for row in held_out]
        left.plot(steps, [row["heldout_loss"] for row in held_out], "o-", color=_PALETTE[1], ms=3, label="held out")
        left.set_ylabel("loss")
        for position in range(max((len(row["acceptance"]) for row in held_out), default=0)):
            rates = [row["acceptance"][position] for row in held_out]
            colour = _PALETTE[position % len(_PALETTE)]
            right.plot(steps, rates, "o-", color=colour, ms=3, label=f"draft position {position + 1}")
        right.set_ylabel("accepted up to there, held out")
        right.set_ylim(0, 1)
        for axes in (left, right):
            axes.set_xlabel("step")
            if axes.get_legend_handles_labels()[0]:
                axes.legend()
        out = StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue().replace(_INK, "currentColor")
    start = text.index(">", text.index("<svg")) + 1
    beside = file.with_suffix(".new")
    beside.write_text(text[:start] + _THEME + text[start:], encoding="utf-8")
    os.replace(beside, file)
