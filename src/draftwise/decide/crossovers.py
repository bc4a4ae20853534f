"""Up to which load each candidate pays, on every workload at every temperature of a sweep over load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

from draftwise.core import Comparison, Crossover, Verdict
from draftwise.decide.comparison.estimates import SweepKey
from draftwise.statistics import LoadPoint, find_crossing

__all__ = ["find_crossovers"]


def find_crossovers(
    points: Mapping[SweepKey, Sequence[LoadPoint]], comparisons: Sequence[Comparison]
) -> tuple[Crossover, ...]:
    """Return the crossover of every sweep over two loads or more, by the ratio that decides under each load."""
    found = []
    for sweep, line in points.items():
        crossing = find_crossing(line) if len(line) > 1 else None
        if crossing is not None:
            workload, candidate, temperature, axis = sweep
            found.append(
                Crossover(
                    workload=workload,
                    candidate=candidate,
                    temperature=temperature,
                    axis=axis,
                    value=crossing.value,
                    low=crossing.low,
                    high=crossing.high,
                    adopt_below=_adopt_below(sweep, comparisons),
                )
            )
    return tuple(found)


def _adopt_below(sweep: SweepKey, comparisons: Sequence[Comparison]) -> float | None:
    """Return the largest load up to which every verdict is adopt, None where already the smallest is not."""
    workload, candidate, temperature, axis = sweep
    verdicts = sorted(
        (place[1], each.verdict)
        for each in comparisons
        if (each.workload, each.candidate, each.condition.temperature) == (workload, candidate, temperature)
        and (place := each.condition.place) is not None
        and place[0] == axis
    )
    adopted = list(takewhile(lambda point: point[1] is Verdict.ADOPT, verdicts))
    return adopted[-1][0] if adopted else None
