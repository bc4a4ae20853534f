"""Simulated measurements of which the truth is known: how often do 95 % intervals hold it?"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.simulated import Array, Machine

from draftwise.statistics import PERCENTILES, Design, percentile_ratios, prompt_ratio, total_ratio

__all__ = ["KINDS", "Array", "Machine", "describe", "design_of", "rows_of_coverage", "rows_of_percentiles"]
__all__ += ["rows_of_totals", "summarise_coverage"]

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
