"""Simulated measurements of which the truth is known: how often is the right decision made, alone and among many?"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
from simulated_intervals import KINDS, Array, Machine, describe, design_of

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.fake_server import FakeScript
from tests.support.measuring import compare_one, make_workload

from draftwise.statistics import (
    Conclusion,
    Design,
    Estimate,
    InterimAnalyses,
    adjust_family,
    find_outlook,
    prompt_ratio,
    sequential,
    settle,
)

MARGIN = 0.03


def looks_at(
    machine: Machine, rng: np.random.Generator, speedup: float, analyses: InterimAnalyses
) -> dict[int, Estimate]:
    candidate_N, plain_N = machine.measure(rng, speedup)
    return sofar(machine, candidate_N, plain_N, analyses)


def sofar(machine: Machine, candidate_N: Array, plain_N: Array, analyses: InterimAnalyses) -> dict[int, Estimate]:
    """Return what each interim analysis sees."""
    design = design_of(machine)
    found = {}
    for done in analyses.repetitions:
        seen = slice(0, done * machine.prompts)
        part = Design(prompt_N=design.prompt_N[seen], block_N=design.block_N[seen])
        found[done] = prompt_ratio(plain_N[seen], candidate_N[seen], part)
    return found


def stop(found: dict[int, Estimate], analyses: InterimAnalyses, family: int = 1) -> tuple[int, Conclusion | None]:
    """Return at which analysis a comparison settles, and as what; the last one where it does not."""
    for done, estimate in found.items():
        if (outcome := settle(estimate, analyses, done, margin=MARGIN, family=family)) is not None:
            return done, outcome
    return analyses.repetitions[-1], None


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
    analyses, rng = InterimAnalyses.planned(machine.passes), np.random.default_rng(2)
    outcomes, excluded, held, passes = Counter(), 0, 0, []
    for _ in range(trials):
        found = looks_at(machine, rng, speedup, analyses)
        intervals = {done: estimate.interval(1 - analyses.level(done)) for done, estimate in found.items()}
        excluded += any(not each.low <= speedup <= each.high for each in intervals.values())
        done, outcome = stop(found, analyses)
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
    analyses = InterimAnalyses.planned(5)
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
                    found = sofar(machine, candidate_N, plain_N, analyses)
                    done, _ = stop(found, analyses, family=60)
                    p_values.append(analyses.adjust(found[done].p_value(), done))
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
        detectable = find_outlook(typical, pilot.passes, margin=MARGIN).detectable
        as_if_known = Estimate(log=math.log(1.05), spread=typical.spread)
        count = find_outlook(as_if_known, pilot.passes, margin=MARGIN).prompts
        count = math.ceil(count / pilot.per_turn) * pilot.per_turn
        more = Machine(prompts=count, per_turn=pilot.per_turn, gain=pilot.gain)
        yield describe(pilot, f"gain {pilot.gain}") | {
            "detectable": round(detectable, 4),
            "detected": share_faster(pilot, detectable, trials),
            "prompts_for_5_percent": count,
            "5_percent_found": share_faster(more, 1.05, min(trials, 400)),
        }


def measured(machine: Machine, speedup: float, trials: int, seed: int) -> Iterator[dict[int, Estimate]]:
    rng, analyses = np.random.default_rng(seed), InterimAnalyses((machine.passes,))
    return (looks_at(machine, rng, speedup, analyses) for _ in range(trials))


def share_faster(machine: Machine, speedup: float, trials: int) -> float:
    analyses = InterimAnalyses((machine.passes,))
    found = (stop(each, analyses)[1] for each in measured(machine, speedup, trials, seed=5))
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
