"""Which plots a run has, by name: those that its readings can support."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure

from draftwise.decide.comparison.cell import ALL
from draftwise.decide.conclusions import Conclusions
from draftwise.report.plots.acceptance import draw_by_position, draw_by_temperature
from draftwise.report.plots.conversion import draw_conversions
from draftwise.report.plots.latency import (
    TIMINGS,
    draw_distributions,
    draw_latency_over_load,
    draw_pareto,
    pick_cells,
)
from draftwise.report.plots.plot_data import PlotData, collect
from draftwise.report.plots.speedups import draw_crossovers, draw_speedups
from draftwise.report.plots.timeline import draw_timeline
from draftwise.report.svg import to_svg

__all__ = ["draw_plots"]

Draw = Callable[[], Figure]
_MOST_ROWS = 60
"""Comparisons up to which a plot of all of them side by side can be read."""
_MOST_CANDIDATES = 12
"""Panels of single candidates up to which all are drawn; of more only each workload's fastest candidate."""


def draw_plots(conclusions: Conclusions) -> dict[str, str]:
    """Return SVG by name; empty where nothing was compared."""
    if not conclusions.decision.comparisons:
        return {}
    data = collect(conclusions)
    drawings = {
        **_outcome(data),
        **_reasons(data),
        **_latency(data),
        "timeline": lambda: draw_timeline(data),
    }
    return {name: to_svg(draw, name) for name, draw in drawings.items()}


def _outcome(data: PlotData) -> dict[str, Draw]:
    comparisons = data.conclusions.decision.comparisons
    if data.sweeps:
        return {"crossover": lambda: draw_crossovers(data)}
    if len(comparisons) <= _MOST_ROWS:
        return {"speed-up": lambda: draw_speedups(comparisons, data.conclusions.thresholds.margin)}
    return {}


def _reasons(data: PlotData) -> dict[str, Draw]:
    acceptances, conversions = data.conclusions.acceptances, data.conclusions.conversions
    shown = _shown(data)
    counted = [each for each in acceptances if each.counts and (each.workload, each.candidate) in shown]
    converted = [each for each in conversions if (each.workload, each.candidate) in shown]
    found: dict[str, Draw] = {}
    if any(each.stats.rate_per_pos for each in acceptances):
        found["positions"] = lambda: draw_by_position(data, acceptances)
    if counted:
        found["temperatures"] = lambda: draw_by_temperature(data, counted)
    if converted:
        found["conversion"] = lambda: draw_conversions(data, converted)
    return found


def _shown(data: PlotData) -> set[tuple[str, str]]:
    """Return the workloads and candidates to draw panels of: all, or each workload's fastest if they are many."""
    comparisons = [each for each in data.conclusions.decision.comparisons if each.workload != ALL]
    temperatures = {each.condition.temperature for each in comparisons}
    every = {(each.workload, each.candidate) for each in comparisons}
    if len(every) * len(temperatures) <= _MOST_CANDIDATES:
        return every
    best = sorted(comparisons, key=lambda each: each.deciding.value)
    return set({each.workload: (each.workload, each.candidate) for each in best}.values())


def _latency(data: PlotData) -> dict[str, Draw]:
    sweeps = [each for each in data.sweeps if each.workload != ALL]
    cells = pick_cells(data)
    found: dict[str, Draw] = {}
    if sweeps:
        found["pareto"] = lambda: draw_pareto(data, sweeps)
        found |= {f"{name} over load": _bind(draw_latency_over_load, data, sweeps, name) for name in TIMINGS}
    return found | {name: _bind(draw_distributions, data, cells, name) for name in TIMINGS}


def _bind(draw: Callable[..., Figure], *given: object) -> Draw:
    return lambda: draw(*given)
