"""Draws figures as SVG whose text takes the colour of the page around it, light or dark."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

__all__ = ["INK", "PALETTE", "PLAIN", "to_svg"]

PALETTE = ("#3b82f6", "#f59e0b", "#10b981", "#d946ef", "#ef4444", "#06b6d4", "#84cc16", "#f97316")
PLAIN = "#8b929c"
"""For what is compared with."""

INK = "#010203"
"""Stands for the page's text colour until the SVG is written."""
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
}
_OWN_THEME = "<style>svg{color:#1f2328}@media(prefers-color-scheme:dark){svg{color:#e6edf3}}</style>"


def to_svg(draw: Callable[[], Figure], name: str, *, alone: bool = False) -> str:
    """Return the SVG element of a figure; the same figure always gives the same text.

    Args:
        draw: makes the figure, under the common style.
        name: tells the ids in this SVG from those of others on the same page.
        alone: the SVG is a file of its own, with no page around it to take a colour from.
    """
    with mpl.rc_context(_STYLE | {"svg.hashsalt": name}):
        out = StringIO()
        draw().savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue().replace(INK, "currentColor")
    if not alone:
        return text[text.index("<svg") :]
    inside = text.index(">", text.index("<svg")) + 1
    return text[:inside] + _OWN_THEME + text[inside:]
