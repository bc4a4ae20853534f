"""Decoding while another process takes one of the cores: all threads at all times, and threads that follow the cores.

    python benchmarks/cpu/busy_core.py --out benchmarks/cpu/results/busy_core.json

One engine decodes one stream of the bundled model in three situations that take turns: a quiet machine, a process that
keeps one core busy, and one that comes and goes every second. In each situation both settings take turns too, in the
order ABBA, so that a disturbance from outside hits both. A speed is the median of all rounds; a ratio is the median of
the ratios within rounds, with their quartiles. On a machine that others use there is no quiet situation.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from provenance import provenance, write

from draftwise import LLM, SamplingParams
from draftwise.engine.step.threads import StepThreads

SITUATIONS = {"quiet": None, "busy": 0.0, "coming and going": 1.0}
"""Seconds after which the other process rests as long; 0: never; None: there is none."""
READING_S = {"quiet": 1.0, "busy": 1.0, "coming and going": 4.0}
"""How long a reading takes at least: two whole periods of what comes and goes."""
ARMS = ("all threads", "governed")
BUSY = """
import os, sys, time
period, parent = float(sys.argv[1]), os.getppid()
while os.getppid() == parent:
    end = time.monotonic() + (period or 1)
    while time.monotonic() < end: pass
    time.sleep(period)
"""
SETTLE_S = 0.5
PROMPT = list(range(300, 340))
PARAMS = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)

Readings = dict[str, dict[str, list[float]]]
"""Tokens per second by situation and arm, a value for each round."""


class Engine:
    """The engine, with a switch between the two settings."""

    def __init__(self, model: str) -> None:
        self._llm = LLM(model, device="cpu", enable_prefix_caching=False)
        self._runner = self._llm.engine.runner
        self._threads = {"all threads": StepThreads(), "governed": self._runner.threads}
        self.answers: set[tuple[int, ...]] = set()
        """Every different text so far; one if both settings compute the same."""
        if type(self._runner.threads) is StepThreads:
            raise SystemExit("Nothing is governed here: one core, or a system that does not tell who waits.")

    def measure(self, arm: str, seconds: float) -> float:
        """Return tokens per second, after the setting has had time to settle."""
        self._runner.threads = self._threads[arm]
        self._generate(SETTLE_S)
        return self._generate(seconds)

    def _generate(self, seconds: float) -> float:
        start, count = time.perf_counter(), 0
        while (passed := time.perf_counter() - start) < seconds:
            tokens = self._llm.generate([{"prompt_token_ids": PROMPT}], PARAMS)[0].outputs[0].token_ids
            self.answers.add(tuple(tokens))
            count += len(tokens)
        return count / passed


@contextmanager
def company(period: float | None) -> Iterator[subprocess.Popen[bytes] | None]:
    """Keep a core busy meanwhile."""
    if period is None:
        yield None
        return
    process = subprocess.Popen([sys.executable, "-c", BUSY, str(period)])
    try:
        time.sleep(SETTLE_S)
        yield process
    finally:
        process.kill()
        process.wait()
        time.sleep(SETTLE_S)


def run(engine: Engine, rounds: int) -> Readings:
    """Return all readings."""
    readings: Readings = {situation: {arm: [] for arm in ARMS} for situation in SITUATIONS}
    for turn in range(rounds):
        for situation, period in SITUATIONS.items():
            with company(period):
                for arm in ARMS if turn % 2 == 0 else ARMS[::-1]:
                    readings[situation][arm].append(engine.measure(arm, READING_S[situation]))
        shown = "; ".join(show_last(readings, situation) for situation in SITUATIONS)
        print(f"round {turn + 1} of {rounds}: {shown}", flush=True)
    return readings


def show_last(readings: Readings, situation: str) -> str:
    return f"{situation} " + " / ".join(f"{readings[situation][arm][-1]:.0f}" for arm in ARMS)


def ratio(over: list[float], under: list[float]) -> dict[str, float]:
    """Return median and quartiles of the ratios of two series, round by round."""
    ratios = [a / b for a, b in zip(over, under, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    return {"median": round(middle, 3), "lower_quartile": round(low, 3), "upper_quartile": round(high, 3)}


def summarize(readings: Readings) -> dict[str, object]:
    """Return what the readings say."""
    quiet = readings["quiet"]["all threads"]
    return {
        "tokens_per_s": {
            situation: {arm: round(statistics.median(speeds), 1) for arm, speeds in arms.items()}
            for situation, arms in readings.items()
        },
        "governed_to_all_threads": {
            situation: ratio(arms["governed"], arms["all threads"]) for situation, arms in readings.items()
        },
        "share_of_quiet_all_threads": {
            situation: {arm: ratio(speeds, quiet) for arm, speeds in arms.items()}
            for situation, arms in readings.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bundle/target")
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--quick", action="store_true", help="2 rounds, to see that it works")
    parser.add_argument("--out", type=Path, help="also write all readings as JSON")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    engine = Engine(options.model)
    readings = run(engine, 2 if options.quick else options.rounds)
    summary = summarize(readings) | {"same_tokens": len(engine.answers) == 1}
    print(json.dumps(summary, indent=1))
    about = {"command": " ".join(["python", *sys.argv]), **provenance("torch")}
    about |= {"threads": torch.get_num_threads(), "load_before": load}
    rounded = {name: {arm: [round(x, 1) for x in s] for arm, s in arms.items()} for name, arms in readings.items()}
    write(about | summary | {"readings": rounded}, options.out)


if __name__ == "__main__":
    main()
