"""Draws figures as SVG whose text takes the color of the page around it, light or dark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from io import StringIO
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from draftwise.reporting.appearance import INK, Plot

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 10,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
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


WIDTH, NARROW = 7.6, 3.6
"""Inches of a whole figure, on a page and on a phone; those who draw find theirs by `figure_width`."""


def figure_width() -> float:
    """Return the width of the current drawing in inches."""
    return float(mpl.rcParams["figure.figsize"][0])


def to_svg(
    draw: Callable[[], Figure], name: str, *, title: str, about: str, alone: bool = False, width: float = WIDTH
) -> str:
    """Return the SVG element of a figure; the same figure always gives the same text.

    Args:
        draw: makes the figure, in the common style.
        name: prefix that keeps ids unique on a page.
        title: title of the figure for screen readers.
        about: description of its content for screen readers.
        alone: whether the SVG is a separate file, without a page to inherit colors from.
        width: width in inches.
    """
    with mpl.rc_context(_STYLE | {"svg.hashsalt": name, "figure.figsize": (width, width)}):
        figure, out = draw(), StringIO()
        canvas = FigureCanvasSVG(figure)
        # `savefig` would draw everything twice, the first time into nothing, so that the parts find their places.
        if (layout := figure.get_layout_engine()) is not None:
            layout.execute(figure)
            figure.set_layout_engine("none")
        canvas.print_svg(out, metadata={"Date": None, "Creator": None})  # type: ignore[no-untyped-call]
    before, _, inside = out.getvalue().replace(INK, "currentColor").partition("<svg ")
    attributes, _, content = inside.partition(">")
    ids = [f"{name.replace(' ', '-')}-{part}" for part in ("title", "about")]
    described = f'<title id="{ids[0]}">{escape(title)}</title><desc id="{ids[1]}">{escape(about)}</desc>'
    element = f'<svg role="img" aria-labelledby="{ids[0]}" aria-describedby="{ids[1]}" {attributes}>{described}'
    return f"{before}{element}{_OWN_THEME}{content}" if alone else f"{element}{content}"


def to_plot(
    draw: Callable[[], Figure],
    name: str,
    *,
    title: str,
    caption: str,
    about: str = "",
    widths: Sequence[float] = (WIDTH, NARROW),
) -> Plot:
    """Return a figure of a page, drawn for each width."""
    named = [(name, width) if width == WIDTH else (f"narrow {name}", width) for width in widths]
    svgs = (to_svg(draw, each, title=title, about=about or caption, width=width) for each, width in named)
    return Plot(svgs=tuple(svgs), caption=caption)
