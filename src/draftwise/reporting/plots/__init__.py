"""The plots of a report as inline SVG that takes its text color from the page, light or dark."""

from draftwise.reporting.plots.registry import draw_plots

__all__ = ["draw_plots"]
