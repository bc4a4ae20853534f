"""Lists the plots that a run's readings can support, by name, each with a caption."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from matplotlib.figure import Figure

from draftwise.core import Comparison, Condition
from draftwise.core.comparison import ALL
from draftwise.deciding.comparison.pooled_acceptance import DEFINITION
from draftwise.deciding.conclusions import Conclusions
from draftwise.reporting.appearance import Plot
from draftwise.reporting.plots.acceptance_plots import draw_by_position, draw_by_temperature, draw_conversions
from draftwise.reporting.plots.latency_plots import (
    TIMINGS,
    draw_distributions,
    draw_latency_over_load,
    draw_pareto,
    draw_timeline,
    pick_cells,
)
from draftwise.reporting.plots.plot_data import LoadSweep, PlotData, collect
from draftwise.reporting.plots.speedup_plots import draw_crossovers, draw_speedups
from draftwise.reporting.svg import NARROW, WIDTH, to_plot
from draftwise.reporting.units import format_ratio
from draftwise.statistics import CONFIDENCE

_SURE = f"{100 * CONFIDENCE:.0f} %"
_MOST_ROWS = 60
"""Comparisons up to which a plot of all of them side by side can be read."""
_MOST_CANDIDATES = 12
"""Panels of single candidates up to which all are drawn; of more only each workload's fastest candidate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawing:
    name: str
    title: str
    caption: str
    draw: Callable[[], Figure]
    is_main: bool = False
    """Drawn for phones, too."""
    numbers: str = ""
    """What it shows, for those who cannot see it; the tables of the page have the rest."""


def draw_plots(conclusions: Conclusions) -> dict[str, Plot]:
    """Return the plots by name; empty where nothing was compared."""
    if not conclusions.decision.comparisons:
        return {}
    data = collect(conclusions)
    drawings = (*_outcome(data), *_reasons(data), *_latency(data), _timeline(data))
    return {each.name: _make(each) for each in drawings}


def _make(drawing: _Drawing) -> Plot:
    about = f"{drawing.caption} {drawing.numbers}".strip()
    widths = (WIDTH, NARROW) if drawing.is_main else (WIDTH,)
    return to_plot(drawing.draw, drawing.name, title=drawing.title, about=about, caption=drawing.caption, widths=widths)


def _outcome(data: PlotData) -> Iterator[_Drawing]:
    comparisons, margin = data.conclusions.decision.comparisons, data.conclusions.thresholds.margin
    numbers = "; ".join(map(_tell, comparisons[:_MOST_ROWS]))
    if data.sweeps:
        yield _Drawing(
            name="crossover",
            title="Speed-up against load",
            caption=(
                f"Speed-up against load. Line and points are estimates; the band is the {_SURE} interval. The gray "
                f"stripe at 1 holds changes too small to act on ({margin:.0%}). A cross marks where a candidate "
                "stops paying, and the bar below it the interval of that load."
            ),
            draw=lambda: draw_crossovers(data),
            is_main=True,
            numbers=numbers,
        )
    elif len(comparisons) <= _MOST_ROWS:
        yield _Drawing(
            name="speed-up",
            title="Speed-up of every candidate",
            caption=(
                f"Dot: estimate. Bar: {_SURE} interval, with an arrow where it continues. Gray band: changes too "
                f"small to act on ({margin:.0%})."
            ),
            draw=lambda: draw_speedups(comparisons, margin),
            is_main=True,
            numbers=numbers,
        )


def _tell(each: Comparison) -> str:
    return f"{each.workload}, {each.condition.label}, {each.candidate}: {format_ratio(each.deciding)}"


def _reasons(data: PlotData) -> Iterator[_Drawing]:
    acceptances, conversions = data.conclusions.acceptances, data.conclusions.conversions
    shown = _shown(data)
    counted = [each for each in acceptances if each.counts and (each.workload, each.candidate) in shown]
    converted = [each for each in conversions if (each.workload, each.candidate) in shown]
    if converted:
        yield _Drawing(
            name="conversion",
            title="From acceptance length to speed-up",
            caption=(
                "From the acceptance length (whole bar) to the realized speed-up (green), in multiples of the "
                f"baseline. {DEFINITION}"
            ),
            draw=lambda: draw_conversions(data, converted),
        )
    if any(each.stats.rate_per_pos for each in acceptances):
        yield _Drawing(
            name="positions",
            title="Acceptance by draft position",
            caption=(
                "Acceptance by position: the share of all verified drafts whose token at that position was accepted."
            ),
            draw=lambda: draw_by_position(data, acceptances),
        )
    if counted:
        yield _Drawing(
            name="temperatures",
            title="Tokens per step of single requests, by temperature",
            caption="Tokens per step of single requests, by temperature. Ticks: P10, P50, P90 over requests.",
            draw=lambda: draw_by_temperature(data, counted),
        )


def _shown(data: PlotData) -> set[tuple[str, str]]:
    """Return the workloads and candidates to draw panels of: all, or each workload's fastest if they are many."""
    comparisons = [each for each in data.conclusions.decision.comparisons if each.workload != ALL]
    temperatures = {each.condition.temperature for each in comparisons}
    every = {(each.workload, each.candidate) for each in comparisons}
    if len(every) * len(temperatures) <= _MOST_CANDIDATES:
        return every
    best = sorted(comparisons, key=lambda each: each.deciding.value)
    return set({each.workload: (each.workload, each.candidate) for each in best}.values())


def _latency(data: PlotData) -> Iterator[_Drawing]:
    sweeps = [each for each in data.sweeps if each.workload != ALL]
    if sweeps:
        yield _Drawing(
            name="pareto",
            title="Tokens per second: one stream against the server",
            caption=(
                "What one stream gets against what the server outputs, load by load (numbers: the loads of the "
                "baseline's server). Up and to the right is better."
            ),
            draw=lambda: draw_pareto(data, sweeps),
        )
        for reading, (name, _) in TIMINGS.items():
            yield _over_load(data, sweeps, reading, name)
    cells = pick_cells(data)
    picked = ", at the lightest and the heaviest load" if len(cells) < len(data.cells) else ""
    for reading, (name, _) in TIMINGS.items():
        yield _distribution(data, cells, reading, name, picked)


def _over_load(data: PlotData, sweeps: list[LoadSweep], reading: str, name: str) -> _Drawing:
    return _Drawing(
        name=f"{reading} over load",
        title=f"{name.capitalize()} against load",
        caption=f"{name.capitalize()}: P50 thick, P99 thin.",
        draw=lambda: draw_latency_over_load(data, sweeps, reading),
    )


def _distribution(data: PlotData, cells: list[tuple[str, Condition]], reading: str, name: str, picked: str) -> _Drawing:
    return _Drawing(
        name=reading,
        title=f"Distribution of {name}",
        caption=f"{name.capitalize()} of every request{picked}. The slowest twentieth is cut off.",
        draw=lambda: draw_distributions(data, cells, reading),
    )


def _timeline(data: PlotData) -> _Drawing:
    return _Drawing(
        name="timeline",
        title="The run over time",
        caption=(
            "Every turn's speed over the median of the same prompts' turns. Dots are turns; lines are their running "
            "median. Drift that affects all arms alike cancels out within paired blocks."
        ),
        draw=lambda: draw_timeline(data),
        is_main=True,
    )
