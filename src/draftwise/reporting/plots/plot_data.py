"""The readings of a run in the order in which plots need them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from draftwise.core import Answer, Comparison, Condition, Timing
from draftwise.core.comparison import ALL
from draftwise.deciding.comparison.latency import Latencies
from draftwise.deciding.conclusions import Conclusions
from draftwise.reporting.plots.style import Style, style_arms
from draftwise.reporting.units import LOAD_UNITS
from draftwise.statistics import Array

__all__ = ["Place", "PlotData", "Sweep", "collect", "list_loads"]

Place = tuple[str, str, str]
"""Workload, label of the condition, arm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """One workload at one temperature, under loads that one axis orders; the lightest comes first."""

    workload: str
    temperature: float
    axis: str
    """`concurrency` or `rate`."""
    points: tuple[tuple[float, Condition], ...]

    @property
    def loads(self) -> tuple[float, ...]:
        """The numbers on the axis."""
        return tuple(load for load, _ in self.points)

    @property
    def axis_label(self) -> str:
        """The axis in words."""
        return LOAD_UNITS[self.axis]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotData:
    """What all plots draw from."""

    conclusions: Conclusions
    rows: Mapping[Place, Latencies]
    answers: Mapping[Place, Sequence[Answer]]
    """Measured answers without an error, of the repetitions that a comparison rests on."""
    comparisons: Mapping[Place, Comparison]
    styles: Mapping[str, Style]
    sweeps: tuple[Sweep, ...]
    """Those with two loads or more."""
    cells: tuple[tuple[str, Condition], ...]
    """Every workload under every condition that was measured."""

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of all arms, the baseline first."""
        return tuple(arm.name for arm in self.conclusions.run.plan.arms)

    def title(self, workload: str, temperature: float) -> str:
        """Return the name of a panel: the temperature only where there are several."""
        several = len({condition.temperature for _, condition in self.cells}) > 1
        return f"{workload} · T={temperature:g}" if several else workload

    def values(self, place: Place, read: Callable[[Timing], float | None]) -> Array:
        """Return a reading of every answer, ascending."""
        readings = (read(answer.timing) for answer in self.answers.get(place, ()))
        return np.sort(np.array([value for value in readings if value is not None], dtype=np.float64))


def list_loads(sweeps: Iterable[Sweep]) -> list[float]:
    """Return the loads of all sweeps, ascending: the panels of a figure share their axis."""
    return sorted({load for each in sweeps for load in each.loads})


def collect(conclusions: Conclusions) -> PlotData:
    """Return what the plots of a run draw from."""
    run, decision = conclusions.run, conclusions.decision
    comparisons = {each.key: each for each in decision.comparisons}
    answers: dict[Place, list[Answer]] = {}
    for answer in run.answers:
        place = (answer.workload, answer.condition, answer.arm)
        counted = comparisons.get(place)
        if answer.measured and answer.error is None and (counted is None or answer.repeat in counted.repetitions):
            answers.setdefault(place, []).append(answer)
    measured = {(workload, label) for workload, label, _ in answers}
    cells = [
        (workload.name, condition)
        for workload in run.plan.workloads
        for condition in run.conditions
        if (workload.name, condition.label) in measured
    ]
    return PlotData(
        conclusions=conclusions,
        rows={(row.workload, row.condition, row.arm): row for row in conclusions.latencies},
        answers=answers,
        comparisons=comparisons,
        styles=style_arms(run.plan.arms),
        sweeps=tuple(_sweeps(cells, decision.comparisons)),
        cells=tuple(cells),
    )


def _sweeps(cells: Sequence[tuple[str, Condition]], comparisons: Iterable[Comparison]) -> Iterable[Sweep]:
    pooled = [(each.workload, each.condition) for each in comparisons if each.workload == ALL]
    found: dict[tuple[str, float, str], dict[float, Condition]] = {}
    for workload, condition in (*cells, *pooled):
        if (place := condition.place) is not None:
            axis, load = place
            found.setdefault((workload, condition.temperature, axis), {})[load] = condition
    for (workload, temperature, axis), points in found.items():
        if len(points) > 1:
            yield Sweep(workload=workload, temperature=temperature, axis=axis, points=tuple(sorted(points.items())))
