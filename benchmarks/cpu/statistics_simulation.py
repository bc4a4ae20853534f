"""Puts the statistics to the test on imaginary machines whose truth is known: hundreds of thousands of measurements.

    python benchmarks/cpu/statistics_simulation.py --out benchmarks/cpu/results/statistics_simulation.json

Says how often 95 % intervals hold the truth, how often an effect is found that should be, how often a crossover lies in
its interval, and what whole runs of a candidate that is the plain arm itself end in. Looks, races and drawn prompts are
in `decision_simulation.py`. The fast versions of these are in `tests/statistics`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from provenance import provenance, write

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.fake_server import FakeScript
from tests.support.measuring import compare_one, make_workload
from tests.support.simulated import Array, Machine

from draftwise.statistics import (
    PERCENTILES,
    Conclusion,
    Design,
    LoadPoint,
    RatioEstimate,
    conclude,
    find_crossing,
    find_outlook,
    next_load,
    percentile_ratios,
    prompt_ratio,
    total_ratio,
)

KINDS = {
    "A/A": {"gain": 0.0},
    "prompts gain differently": {"gain": 0.12},
    "a few prompts gain far more": {"gain": 0.12, "heavy": True},
    "noisy turns": {"gain": 0.05, "turn": 0.05},
}


@cache
def design_of(machine: Machine) -> Design:
    return machine.design()


def rows_of_coverage(trials: int) -> Iterator[dict]:
    for prompts in (6, 12, 30, 100, 300):
        for per_turn in sorted({1, min(8, prompts), min(32, prompts), prompts}):
            for passes in (2, 3, 5, 8):
                for kind, settings in KINDS.items():
                    machine = Machine(prompts=prompts, per_turn=per_turn, passes=passes, **settings)
                    yield describe(machine, kind) | {"covers": cover(machine, trials)}


def describe(machine: Machine, kind: str) -> dict:
    turns = machine.passes * math.ceil(machine.prompts / machine.per_turn)
    return {
        "kind": kind,
        "prompts": machine.prompts,
        "prompts_per_turn": machine.per_turn,
        "passes": machine.passes,
        "pairs_of_turns": turns,
    }


def cover(machine: Machine, trials: int) -> float:
    rng, design = np.random.default_rng(0), design_of(machine)
    held = 0
    for _ in range(trials):
        candidate_N, plain_N = machine.measure(rng, 1.1)
        interval = prompt_ratio(plain_N, candidate_N, design).interval()
        held += interval.low <= 1.1 <= interval.high
    return held / trials


def summarise_coverage(rows: list[dict]) -> dict:
    """Return the range of coverage: where there are prompts and turns enough, and where there are not."""

    def extremes(chosen: Callable[[dict], bool]) -> dict:
        found = [row["covers"] for row in rows if chosen(row)]
        return {"rows": len(found), "mean": round(float(np.mean(found)), 4), "least": min(found), "most": max(found)}

    def loaded(row: dict) -> bool:
        return row["prompts_per_turn"] > 1

    return {
        "one stream": extremes(lambda row: not loaded(row)),
        "under load, 4 pairs of turns or more, not A/A": extremes(
            lambda row: loaded(row) and row["pairs_of_turns"] > 3 and row["kind"] != "A/A"
        ),
        "under load, 4 pairs or more, A/A (nothing but noise: too wide)": extremes(
            lambda row: loaded(row) and row["pairs_of_turns"] > 3 and row["kind"] == "A/A"
        ),
        "under load, 3 pairs": extremes(lambda row: loaded(row) and row["pairs_of_turns"] == 3),
        "under load, 2 pairs (too wide)": extremes(lambda row: loaded(row) and row["pairs_of_turns"] == 2),
    }


def rows_of_totals(trials: int) -> Iterator[dict]:
    """All tokens over all seconds; the truth comes from 400,000 prompts."""
    for prompts, per_turn, passes in ((6, 1, 5), (12, 1, 5), (30, 1, 3), (30, 8, 5), (100, 32, 5), (300, 1, 5)):
        for kind, settings in KINDS.items():
            machine = Machine(prompts=prompts, per_turn=per_turn, passes=passes, **settings)
            ours_N, theirs_N = Machine(prompts=400_000, passes=1, **settings).measure(np.random.default_rng(1))
            truth, ones_N = theirs_N.sum() / ours_N.sum(), np.ones(prompts * passes)
            rng, design, held = np.random.default_rng(0), design_of(machine), 0
            for _ in range(trials):
                candidate_N, plain_N = machine.measure(rng)
                interval = total_ratio(ones_N, candidate_N, ones_N, plain_N, design).interval()
                held += interval.low <= truth <= interval.high
            yield describe(machine, kind) | {"covers": held / trials}


def rows_of_percentiles(trials: int) -> Iterator[dict]:
    for prompts, per_turn, passes in ((12, 1, 5), (30, 1, 5), (100, 1, 5), (300, 1, 5), (100, 20, 5), (300, 100, 5)):
        for kind, settings in KINDS.items():
            machine = Machine(prompts=prompts, per_turn=per_turn, passes=passes, **settings)
            many = Machine(prompts=400_000, passes=1, **settings).measure(np.random.default_rng(1))
            truths = {each: np.divide(*(np.percentile(arm_N, each) for arm_N in many)) for each in PERCENTILES}
            held, bounded = Counter(), Counter()
            rng, design = np.random.default_rng(0), design_of(machine)
            for _ in range(trials):
                ours, theirs = (arm_N[:, None].tolist() for arm_N in machine.measure(rng))
                for percentile, interval in percentile_ratios(ours, theirs, design).items():
                    held[percentile] += interval.low <= truths[percentile] <= interval.high
                    bounded[percentile] += interval.low > 0 and interval.high < math.inf
            yield describe(machine, kind) | {
                "covers": {f"P{each}": held[each] / trials for each in held},
                "bounded": {f"P{each}": bounded[each] / trials for each in held},
            }


MARGIN = 0.03


def measure_once(machine: Machine, rng: np.random.Generator, speedup: float) -> RatioEstimate:
    candidate_N, plain_N = machine.measure(rng, speedup)
    return prompt_ratio(plain_N, candidate_N, design_of(machine))


def rows_of_power(trials: int) -> Iterator[dict]:
    """The median spread of a pilot says which speed-up is found, or how many prompts find 5 %, with 80 % power."""
    for pilot in (Machine(prompts=12), Machine(prompts=30), Machine(prompts=64, per_turn=8), Machine(gain=0.05)):
        spreads = list(measured(pilot, 1.05, trials, seed=4))
        typical = sorted(spreads, key=lambda each: each.spread.variance)[trials // 2]
        detectable = find_outlook(typical, pilot.passes, margin=MARGIN).detectable
        as_if_known = RatioEstimate(log=math.log(1.05), spread=typical.spread)
        count = find_outlook(as_if_known, pilot.passes, margin=MARGIN).prompts
        count = math.ceil(count / pilot.per_turn) * pilot.per_turn
        more = Machine(prompts=count, per_turn=pilot.per_turn, gain=pilot.gain)
        yield describe(pilot, f"gain {pilot.gain}") | {
            "detectable": round(detectable, 4),
            "detected": share_faster(pilot, detectable, trials),
            "prompts_for_5_percent": count,
            "5_percent_found": share_faster(more, 1.05, min(trials, 400)),
        }


def measured(machine: Machine, speedup: float, trials: int, seed: int) -> Iterator[RatioEstimate]:
    rng = np.random.default_rng(seed)
    return (measure_once(machine, rng, speedup) for _ in range(trials))


def share_faster(machine: Machine, speedup: float, trials: int) -> float:
    found = (conclude(each.interval(), MARGIN) for each in measured(machine, speedup, trials, seed=5))
    return sum(each is Conclusion.FASTER for each in found) / trials


def rows_of_whole_runs(trials: int) -> Iterator[dict]:
    """Whole runs against two fakes of the same latencies on virtual time, servers, client and verdict included.

    The candidate drafts one token a step, which never stands and costs nothing: plain decoding by another name.
    """
    noise = {"jitter": 0.05, "step_jitter": 0.05, "drift_per_s": 1e-5}
    for concurrency, adaptive in ((1, False), (1, True), (8, False), (8, True)):
        verdicts, excluded, passes = Counter(), 0, []
        for trial in range(trials):
            with TemporaryDirectory() as folder:
                found = compare_one(
                    Path(folder) / "run",
                    FakeScript(seed=2 * trial + 1, k=1, accepted=(0,), **noise),
                    plain=FakeScript(seed=2 * trial, **noise),
                    workloads=(make_workload(num_prompts=12, max_tokens=12),),
                    repeats=5,
                    concurrency=concurrency,
                    adaptive=adaptive,
                )
            deciding = found.throughput or found.speedup
            verdicts[str(found.verdict)] += 1
            excluded += not deciding.low <= 1 <= deciding.high
            passes.append(len(found.repetitions))
        yield {
            "concurrency": concurrency,
            "adaptive": adaptive,
            "runs": trials,
            "verdicts": {name: count / trials for name, count in sorted(verdicts.items())},
            "interval_excludes_1": excluded / trials,
            "mean_passes": round(float(np.mean(passes)), 2),
        }


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


SECTIONS = {
    "coverage": (rows_of_coverage, 1),
    "totals": (rows_of_totals, 2),
    "percentiles": (rows_of_percentiles, 2),
    "power": (rows_of_power, 2),
    "crossovers": (rows_of_crossovers, 4),
    "whole_runs": (rows_of_whole_runs, 5),
}
"""With how many times fewer trials each is done: some take longer."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000, help="measurements per row")
    parser.add_argument("--sections", nargs="*", choices=SECTIONS, help="measure these again, keep the rest of --out")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    began = time.monotonic()
    result = {
        "what": "share of simulated measurements; margin 3 %, 95 % intervals",
        "command": f"python benchmarks/cpu/statistics_simulation.py --trials {given.trials}",
        **provenance("numpy"),
    }
    if given.sections and given.out and given.out.exists():
        result = json.loads(given.out.read_text())
    for name in given.sections or SECTIONS:
        rows, fewer = SECTIONS[name]
        result[name] = {"trials": given.trials // fewer, "rows": list(rows(given.trials // fewer))}
        print(name, f"{time.monotonic() - began:.0f} s", flush=True)
    if "coverage" in result:
        result["coverage_summary"] = summarise_coverage(result["coverage"]["rows"])
    print(json.dumps({key: value for key, value in result.items() if key != "coverage"}, indent=1))
    write(result, given.out)


if __name__ == "__main__":
    main()
