"""Puts the statistics to the test on imaginary machines whose truth is known: hundreds of thousands of measurements.

    python benchmarks/cpu/statistics_simulation.py --out benchmarks/cpu/results/statistics_simulation.json

Says how often 95 % intervals hold the truth, how often a candidate that is the plain arm itself is called different
(with and without looking after every pass, alone and among 60), how often an effect is found that should be, and how
often a crossover lies in its interval. The fast versions of these are in `tests/measure/statistics`.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
from suffix_vs_arctic import cpu_name

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "measure" / "statistics"))

from simulated import Array, Machine

from draftwise.measure.statistics import (
    Design,
    Estimate,
    LoadPoint,
    Looks,
    Outcome,
    Samples,
    adjust_family,
    detectable_ratio,
    find_crossing,
    next_load,
    percentile_ratios,
    prompt_ratio,
    prompts_needed,
    sequential,
    settle,
    total_ratio,
)

MARGIN = 0.03
KINDS = {
    "A/A": {"gain": 0.0},
    "prompts gain differently": {"gain": 0.12},
    "a few prompts gain far more": {"gain": 0.12, "heavy": True},
    "noisy turns": {"gain": 0.05, "turn": 0.05},
}
CROSSES_AT = 20.0


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
            held, bounded = Counter(), Counter()
            rng, design = np.random.default_rng(0), design_of(machine)
            for _ in range(trials):
                ours, theirs = (Samples(arm_N[:, None].tolist()) for arm_N in machine.measure(rng))
                for percentile, interval in percentile_ratios(ours, theirs, design).items():
                    truth = np.divide(*(np.percentile(arm_N, percentile) for arm_N in many))
                    held[percentile] += interval.low <= truth <= interval.high
                    bounded[percentile] += interval.low > 0 and interval.high < math.inf
            yield describe(machine, kind) | {
                "covers": {f"P{each}": held[each] / trials for each in held},
                "bounded": {f"P{each}": bounded[each] / trials for each in held},
            }


@cache
def design_of(machine: Machine) -> Design:
    return machine.design()


def looks_at(machine: Machine, rng: np.random.Generator, speedup: float, looks: Looks) -> dict[int, Estimate]:
    candidate_N, plain_N = machine.measure(rng, speedup)
    return sofar(machine, candidate_N, plain_N, looks)


def sofar(machine: Machine, candidate_N: Array, plain_N: Array, looks: Looks) -> dict[int, Estimate]:
    """Return what each look sees."""
    design = design_of(machine)
    found = {}
    for done in looks.passes:
        seen = slice(0, done * machine.prompts)
        part = Design(prompt_N=design.prompt_N[seen], pair_N=design.pair_N[seen])
        found[done] = prompt_ratio(plain_N[seen], candidate_N[seen], part)
    return found


def stop(found: dict[int, Estimate], looks: Looks, family: int = 1) -> tuple[int, Outcome | None]:
    """Return at which look a comparison settles, and as what; the last one where it does not."""
    for done, estimate in found.items():
        if (outcome := settle(estimate, looks, done, margin=MARGIN, family=family)) is not None:
            return done, outcome
    return looks.passes[-1], None


def pocock_like(alpha: float, fraction: float) -> float:
    return alpha * math.log(1 + (math.e - 1) * fraction)


def rows_of_looks(trials: int) -> Iterator[dict]:
    """Both ways of spending the error; the first is the program's."""
    for spending, function in (("O'Brien-Fleming-like", sequential._spending), ("Pocock-like", pocock_like)):
        sequential._levels.cache_clear()
        with patch.object(sequential, "_spending", function):
            for prompts, per_turn, passes in ((6, 1, 5), (30, 1, 5), (30, 1, 8), (40, 8, 5), (40, 40, 5), (100, 1, 5)):
                for speedup, kind in ((1.0, "A/A"), (1.0, "noisy turns"), (1.1, "prompts gain differently")):
                    machine = Machine(prompts=prompts, per_turn=per_turn, passes=passes, **KINDS[kind])
                    yield (
                        {"spending": spending, "speedup": speedup}
                        | describe(machine, kind)
                        | look(machine, speedup, trials)
                    )
    sequential._levels.cache_clear()


def look(machine: Machine, speedup: float, trials: int) -> dict:
    looks, rng = Looks.planned(machine.passes), np.random.default_rng(2)
    outcomes, excluded, held, passes = Counter(), 0, 0, []
    for _ in range(trials):
        found = looks_at(machine, rng, speedup, looks)
        intervals = {done: looks.interval(estimate, done) for done, estimate in found.items()}
        excluded += any(not each.low <= speedup <= each.high for each in intervals.values())
        done, outcome = stop(found, looks)
        held += intervals[done].low <= speedup <= intervals[done].high
        outcomes[str(outcome or "open")] += 1
        passes.append(done)
    return {
        "truth_excluded_at_any_look": excluded / trials,
        "covers_where_it_stopped": held / trials,
        "outcomes": {name: count / trials for name, count in sorted(outcomes.items())},
        "mean_passes": round(float(np.mean(passes)), 2),
    }


def rows_of_families(trials: int) -> Iterator[dict]:
    """12 conditions, 5 candidates each that are the plain arm itself; the readings of plain serve all five."""
    looks = Looks.planned(5)
    for name, machine in (
        ("one stream", Machine(prompts=12, gain=0)),
        ("under load", Machine(prompts=32, per_turn=8, gain=0)),
    ):
        rng, wrong, alone = np.random.default_rng(3), 0, 0
        for _ in range(trials):
            p_values = []
            for _ in range(12):
                plain_N, *candidates = machine.arms(rng, [np.zeros(machine.prompts)] * 5, [1.0] * 5)
                for candidate_N in candidates:
                    found = sofar(machine, candidate_N, plain_N, looks)
                    done, _ = stop(found, looks, family=60)
                    p_values.append(looks.adjust(found[done].p_value(), done))
            wrong += any(p is not None and p <= 0.05 for p in adjust_family(p_values))
            alone += any(p <= 0.05 for p in p_values)
        yield {
            "what": name,
            "comparisons": 60,
            "runs": trials,
            "a_false_one_among_them": wrong / trials,
            "without_correction": alone / trials,
        }


def rows_of_power(trials: int) -> Iterator[dict]:
    """The median spread of a pilot says which speed-up is found, or how many prompts find 5 %, with 80 % power."""
    for pilot in (Machine(prompts=12), Machine(prompts=30), Machine(prompts=64, per_turn=8), Machine(gain=0.05)):
        spreads = [found[pilot.passes] for found in measured(pilot, 1.05, trials, seed=4)]
        typical = sorted(spreads, key=lambda each: each.spread.variance)[trials // 2]
        detectable = detectable_ratio(typical, margin=MARGIN)
        count = prompts_needed(Estimate(log=math.log(1.05), spread=typical.spread), margin=MARGIN)
        count = math.ceil(count / pilot.per_turn) * pilot.per_turn
        more = Machine(prompts=count, per_turn=pilot.per_turn, gain=pilot.gain)
        yield describe(pilot, f"gain {pilot.gain}") | {
            "detectable": round(detectable, 4),
            "detected": share_faster(pilot, detectable, trials),
            "prompts_for_5_percent": count,
            "5_percent_found": share_faster(more, 1.05, min(trials, 400)),
        }


def measured(machine: Machine, speedup: float, trials: int, seed: int) -> Iterator[dict[int, Estimate]]:
    rng, looks = np.random.default_rng(seed), Looks.single(machine.passes)
    return (looks_at(machine, rng, speedup, looks) for _ in range(trials))


def share_faster(machine: Machine, speedup: float, trials: int) -> float:
    looks = Looks.single(machine.passes)
    found = (stop(each, looks)[1] for each in measured(machine, speedup, trials, seed=5))
    return sum(each is Outcome.FASTER for each in found) / trials


def rows_of_crossovers(trials: int) -> Iterator[dict]:
    """Powers of 4 first, then wherever `next_load` says; the same prompts at every load."""
    for prompts, gain, turn, passes in (
        (30, 0.12, 0.02, 5),
        (100, 0.12, 0.02, 5),
        (30, 0.0, 0.02, 3),
        (30, 0.05, 0.05, 5),
    ):
        rng, coarse, fine, widths, added = np.random.default_rng(6), 0, 0, [], []
        for _ in range(trials):
            gains_P = Machine(prompts=prompts, gain=gain).gains(rng)

            def measure(load: float, gains_P: Array = gains_P) -> LoadPoint:
                per_turn = 1 if load == 1 else min(prompts, 4 * int(load))  # noqa: B023
                machine = Machine(prompts=prompts, per_turn=per_turn, passes=passes, turn=turn)  # noqa: B023
                candidate_N, plain_N = machine.measure(rng, true_speedup(load), gains_P)  # noqa: B023
                return LoadPoint(load=load, estimate=prompt_ratio(plain_N, candidate_N, design_of(machine)))

            points = [measure(load) for load in (1, 4, 16, 64)]
            first = find_crossing(points)
            while len(points) < 12 and (load := next_load(points, most=512)) is not None:
                points.append(measure(load))
            last = find_crossing(points)
            coarse += first.low <= CROSSES_AT <= first.high
            fine += last.low <= CROSSES_AT <= last.high
            widths.append(last.high / last.low)
            added.append(len(points) - 4)
        yield {
            "prompts": prompts,
            "gain": gain,
            "turn": turn,
            "passes": passes,
            "covers_on_the_grid": coarse / trials,
            "covers_after_bisection": fine / trials,
            "median_high_over_low": round(float(np.median(widths)), 3),
            "mean_loads_added": round(float(np.mean(added)), 2),
        }


def true_speedup(load: float) -> float:
    """1.9x for a single stream; verifying drafts costs ever more of a fuller batch."""
    return 1.9 / (1 + 0.9 * (load / CROSSES_AT) ** 0.9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000, help="measurements per row")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    began = time.monotonic()
    result = {
        "what": "share of simulated measurements; margin 3 %, 95 % intervals",
        "command": f"python benchmarks/cpu/statistics_simulation.py --trials {given.trials}",
        "machine": {"cpu": cpu_name(), "system": f"{platform.system()} {platform.machine()}", "numpy": np.__version__},
    }
    sections = {
        "coverage": (rows_of_coverage, 1),
        "totals": (rows_of_totals, 2),
        "percentiles": (rows_of_percentiles, 2),
        "looks": (rows_of_looks, 2),
        "families": (rows_of_families, 4),
        "power": (rows_of_power, 2),
        "crossovers": (rows_of_crossovers, 4),
    }
    for name, (rows, fewer) in sections.items():
        result[name] = {"trials": given.trials // fewer, "rows": list(rows(given.trials // fewer))}
        print(name, f"{time.monotonic() - began:.0f} s", flush=True)
    result["coverage_summary"] = summarise_coverage(result["coverage"]["rows"])
    result["seconds"] = round(time.monotonic() - began)
    print(json.dumps({key: result[key] for key in ("coverage_summary", "families", "power", "crossovers")}, indent=1))
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
