"""The load from which a server no longer pays, and between which loads that is too close to say."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby, pairwise

from draftwise.core import ForecastCell, ForecastCrossover

__all__ = ["find_crossovers"]


def find_crossovers(rows: Sequence[ForecastCell]) -> tuple[ForecastCrossover, ...]:
    """Return where the speed-up of each server and k falls to 1, over each axis with two loads or more."""
    found = []
    for sweep, each in groupby(sorted(rows, key=_sweep_of), key=_sweep_of):
        line = sorted(each, key=lambda row: row.load)
        if len(line) > 1:
            setting, k, group, temperature, axis = sweep
            ends = [_find_end(line, part) for part in (_value, _low, _high)]
            found.append(
                ForecastCrossover(
                    setting=setting,
                    k=k,
                    group=group or None,
                    temperature=temperature,
                    axis=axis,
                    value=ends[0] if 0 < ends[0] < math.inf else None,
                    low=ends[1],
                    high=ends[2],
                )
            )
    return tuple(found)


def _sweep_of(row: ForecastCell) -> tuple[str, int, str, float, str]:
    return row.setting, row.k, row.group or "", row.temperature, row.axis


def _value(row: ForecastCell) -> float:
    return row.speedup.value


def _low(row: ForecastCell) -> float:
    return row.speedup.low


def _high(row: ForecastCell) -> float:
    return row.speedup.high


def _find_end(line: Sequence[ForecastCell], part: Callable[[ForecastCell], float]) -> float:
    """Return the load at which a line first falls below 1; 0 where it begins there, infinity where it never does."""
    if part(line[0]) < 1:
        return 0.0
    for before, after in pairwise(line):
        if part(after) < 1:
            fallen = math.log(part(before)) / math.log(part(before) / part(after))
            return float(before.load * (after.load / before.load) ** fallen)
    return math.inf
