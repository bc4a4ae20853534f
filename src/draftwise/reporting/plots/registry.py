"""Lists the plots that a run's readings can support, by name, each with a caption."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from matplotlib.figure import Figure

from draftwise.core import Comparison
from draftwise.core.comparison import ALL
from draftwise.deciding.comparison.pooled_acceptance import DEFINITION
from draftwise.deciding.conclusions import Conclusions
from draftwise.knowledge.stored import read_data
from draftwise.reporting.appearance import Plot
from draftwise.reporting.plots.plot_data import PlotData, collect
from draftwise.reporting.plots.replay_plots import draw_by_position, draw_by_temperature, draw_conversions
from draftwise.reporting.plots.speed_plots import (
    TIMINGS,
    draw_crossovers,
    draw_distributions,
    draw_latency_over_load,
    draw_pareto,
    draw_speedups,
    draw_timeline,
    pick_cells,
)
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
    """Return the plots by name; empty if nothing was compared."""
    if not conclusions.decision.comparisons:
        return {}
    data = collect(conclusions)
    timeline = _drawing("timeline", lambda: draw_timeline(data))
    drawings = (*_outcome(data), *_reasons(data), *_latency(data), timeline)
    return {each.name: _make(each) for each in drawings}


def _drawing(name: str, draw: Callable[[], Figure], *, row: str = "", numbers: str = "", **values: object) -> _Drawing:
    """Return a plot with the texts of its row in `knowledge/data/plots.json`, filled with the values."""
    given = read_data("plots")[row or name]
    title, caption = (str(given[key]).format(**values) for key in ("title", "caption"))
    is_main = bool(given.get("is_main"))
    return _Drawing(name=name, title=title, caption=caption, draw=draw, is_main=is_main, numbers=numbers)


def _make(drawing: _Drawing) -> Plot:
    about = f"{drawing.caption} {drawing.numbers}".strip()
    widths = (WIDTH, NARROW) if drawing.is_main else (WIDTH,)
    return to_plot(drawing.draw, drawing.name, title=drawing.title, about=about, caption=drawing.caption, widths=widths)


def _outcome(data: PlotData) -> Iterator[_Drawing]:
    comparisons, margin = data.conclusions.decision.comparisons, data.conclusions.thresholds.margin
    numbers = "; ".join(map(_tell, comparisons[:_MOST_ROWS]))
    if data.sweeps:
        yield _drawing("crossover", lambda: draw_crossovers(data), numbers=numbers, sure=_SURE, margin=margin)
    elif len(comparisons) <= _MOST_ROWS:
        draw = partial(draw_speedups, comparisons, margin)
        yield _drawing("speed-up", draw, numbers=numbers, sure=_SURE, margin=margin)


def _tell(each: Comparison) -> str:
    return f"{each.workload}, {each.condition.label}, {each.candidate}: {format_ratio(each.deciding)}"


def _reasons(data: PlotData) -> Iterator[_Drawing]:
    acceptances, conversions = data.conclusions.acceptances, data.conclusions.conversions
    shown = _shown(data)
    counted = [each for each in acceptances if each.counts and (each.workload, each.candidate) in shown]
    converted = [each for each in conversions if (each.workload, each.candidate) in shown]
    if converted:
        yield _drawing("conversion", lambda: draw_conversions(data, converted), definition=DEFINITION)
    if any(each.stats.rate_per_pos for each in acceptances):
        yield _drawing("positions", lambda: draw_by_position(data, acceptances))
    if counted:
        yield _drawing("temperatures", lambda: draw_by_temperature(data, counted))


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
        yield _drawing("pareto", lambda: draw_pareto(data, sweeps))
        for reading, (name, _) in TIMINGS.items():
            draw = partial(draw_latency_over_load, data, sweeps, reading)
            yield _drawing(f"{reading} over load", draw, row="over load", what=name.capitalize())
    cells = pick_cells(data)
    picked = ", at the lightest and the heaviest load" if len(cells) < len(data.cells) else ""
    for reading, (name, _) in TIMINGS.items():
        draw = partial(draw_distributions, data, cells, reading)
        yield _drawing(reading, draw, row="distribution", reading=name, what=name.capitalize(), picked=picked)
