"""The plots of a report as inline SVG that takes its text colour from the page, light or dark."""

from draftwise.report.plots.conversion import LOSSES
from draftwise.report.plots.registry import draw_plots
from draftwise.report.plots.style import VERDICT_COLOURS

__all__ = ["LOSSES", "VERDICT_COLOURS", "draw_plots"]
