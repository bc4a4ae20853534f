"""The colors of plots and verdicts, and whether plots can be drawn."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from draftwise.core import Verdict
from draftwise.knowledge.messages import refusal
from draftwise.version import tell_install

PALETTE = ("#3b82f6", "#b7791f", "#059669", "#d946ef", "#ef4444", "#0891b2", "#65a30d", "#ea580c")
"""Colors of lines and bars, with a contrast of at least 3:1 on light and dark backgrounds (WCAG 2.2, 1.4.11)."""
PLAIN = "#7b8390"
"""Color of the baseline."""
INK = "#010203"
"""Placeholder for the page's text color until the SVG is written."""
VERDICT_COLOURS = {
    Verdict.ADOPT: "#15803d",
    Verdict.REJECT: "#dc2626",
    Verdict.MIXED: "#b45309",
    Verdict.NO_GAIN: "#b04a4a",
    Verdict.NOT_BEST: "#0e7490",
    Verdict.INCONCLUSIVE: "#6b7280",
    Verdict.BLOCKED: "#9333ea",
}
"""White text on each can be read (4.5:1), and each stands out from light and dark paper (3:1)."""

NO_PLOTS = "Plots are left out: matplotlib is not installed. Install it, then run draftwise report."


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A figure, and how to read it."""

    svgs: tuple[str, ...]
    """Versions for a wide page and, if it is a main figure of the page, for a phone."""
    caption: str


def can_draw() -> bool:
    """Return whether the library that draws plots is installed."""
    return find_spec("matplotlib") is not None


def check_can_draw() -> None:
    """Raise InvalidSetup if the library that draws plots is not installed."""
    if not can_draw():
        raise refusal("plots-not-installed", install=tell_install("report"))
