"""The plots of a report as inline SVG that takes its text colour from the page, light or dark."""

from draftwise.reporting.plots.plot_data import VERDICT_COLOURS
from draftwise.reporting.plots.registry import Plot, draw_plots

__all__ = ["VERDICT_COLOURS", "Plot", "draw_plots"]
