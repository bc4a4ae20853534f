"""Simulated sweeps over load of which the truth is known: how often does a crossover lie in its interval?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from simulated_intervals import Array, Machine, design_of

from draftwise.statistics import LoadPoint, find_crossing, next_load, prompt_ratio

CROSSES_AT = 20.0
GRID = (1, 4, 16, 64)
MOST_LOADS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The same prompts at every load."""

    prompts: int = 30
    gain: float = 0.12
    turn: float = 0.02
    passes: int = 5

    def measure(self, rng: np.random.Generator, load: float, gains_P: Array) -> LoadPoint:
        per_turn = 1 if load == 1 else min(self.prompts, 4 * int(load))
        machine = Machine(prompts=self.prompts, per_turn=per_turn, passes=self.passes, turn=self.turn)
        candidate_N, plain_N = machine.measure(rng, true_speedup(load), gains_P)
        return LoadPoint(load=load, estimate=prompt_ratio(plain_N, candidate_N, design_of(machine)))

    def search(self, rng: np.random.Generator) -> list[LoadPoint]:
        """Measure the grid, then wherever it is most telling."""
        gains_P = Machine(prompts=self.prompts, gain=self.gain).gains(rng)
        points = [self.measure(rng, load, gains_P) for load in GRID]
        while len(points) < MOST_LOADS and (load := next_load(points, most=512)) is not None:
            points.append(self.measure(rng, load, gains_P))
        return points


def true_speedup(load: float) -> float:
    """1.9x for a single stream; verifying drafts costs ever more of a fuller batch."""
    return 1.9 / (1 + 0.9 * (load / CROSSES_AT) ** 0.9)


def rows_of_crossovers(trials: int) -> Iterator[dict]:
    for sweep in (Sweep(), Sweep(prompts=100), Sweep(gain=0.0, passes=3), Sweep(gain=0.05, turn=0.05)):
        rng = np.random.default_rng(6)
        searches = [sweep.search(rng) for _ in range(trials)]
        first = [find_crossing(points[: len(GRID)]) for points in searches]
        last = [find_crossing(points) for points in searches]
        yield {
            "prompts": sweep.prompts,
            "gain": sweep.gain,
            "turn": sweep.turn,
            "passes": sweep.passes,
            "covers_on_the_grid": sum(each.low <= CROSSES_AT <= each.high for each in first) / trials,
            "covers_after_bisection": sum(each.low <= CROSSES_AT <= each.high for each in last) / trials,
            "median_high_over_low_on_the_grid": round(float(np.median([each.high / each.low for each in first])), 3),
            "median_high_over_low": round(float(np.median([each.high / each.low for each in last])), 3),
            "mean_loads_added": round(float(np.mean([len(points) - len(GRID) for points in searches])), 2),
        }
