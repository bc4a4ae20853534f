"""The simulated service beside the embedded engine under Poisson arrivals: times to the first token, times per token.

One run of `decide` measures closed loops and rates. A calibration is made of the closed loops alone; with it, the
counters' acceptance, and the arrivals and lengths of the requests, every turn at a rate is simulated, and its latencies
are held beside those that the run measured.

    python benchmarks/cpu/poisson_service.py --candidate '{"method": "ngram", "num_speculative_tokens": 3}' \
        --out benchmarks/cpu/results/poisson_service.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import add
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from draftwise.core import Answer, CalibratedSetting, ClosedLoop, Condition, OpenLoop, Run, SpecConfig, TurnRecord
from draftwise.engine.config import EngineConfig
from draftwise.measure.api import decide
from draftwise.measure.calibrate.build import make_calibration
from draftwise.measure.calibrate.points import count_drafted
from draftwise.measure.spec import Candidate, MeasurementSpec
from draftwise.plan.cost.calibrated import CalibratedCosts
from draftwise.plan.forecast.server import Server
from draftwise.plan.service.events import Limits, Request, Served, simulate
from draftwise.runs import RunDirectory
from draftwise.version import __version__

TARGET = Path(__file__).parents[2] / "bundle" / "target"
STREAMS = (1, 2, 4, 8)


def main() -> None:
    """Measure, simulate, compare and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--candidate", required=True)
    parser.add_argument("--rates", default="1.5,3,4.5")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--turn-seconds", type=float, default=8.0)
    parser.add_argument("--run", type=Path, help="a run that was measured so before")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    run = RunDirectory(given.run or measure(given)).read()
    rows = list(compare(run))
    kept = json.loads(given.out.read_text())["rows"] if given.out.exists() else []
    fresh = {each["arm"] for each in rows}
    rows = [*(each for each in kept if each["arm"] not in fresh), *rows]
    about = {"made": run.context.started, "draftwise": __version__, "hardware": run.context.hardware.to_dict()}
    given.out.write_text(json.dumps({"about": about, "summary": summarise(rows), "rows": rows}, indent=1) + "\n")
    print(json.dumps(summarise(rows), indent=1))


def measure(given: argparse.Namespace) -> Path:
    """Measure plain and a candidate in closed loops and at rates; return the run directory."""
    rates = [OpenLoop.steady(float(rate)) for rate in given.rates.split(",")]
    spec = MeasurementSpec(
        target=str(TARGET),
        serve_args=("--no-enable-prefix-caching",),
        candidates=(Candidate(spec=SpecConfig.parse(given.candidate)),),
        workloads=("code", "rewrite"),
        max_tokens=64,
        conditions=tuple(Condition(load=load) for load in (*(ClosedLoop(concurrency=n) for n in STREAMS), *rates)),
        prompts=given.prompts,
        repeats=1,
        turn_s=given.turn_seconds,
        adaptive=False,
        out=Path(tempfile.mkdtemp()) / "run",
    )
    return decide(spec).directory


def compare(run: Run) -> Iterator[dict[str, Any]]:
    """Yield measured and simulated latencies of every arm and workload at every rate."""
    calibration = make_calibration(run, target=str(TARGET))
    costs = CalibratedCosts(calibration)
    rates = [each.label for each in run.plan.conditions if isinstance(each.load, OpenLoop)]
    for setting in calibration.settings:
        for workload in run.plan.workloads:
            for label in rates:
                turns = [
                    e for e in run.turns if (e.arm, e.workload, e.condition) == (setting.name, workload.name, label)
                ]
                if turns:
                    yield hold(run, costs, setting, turns)


def hold(run: Run, costs: CalibratedCosts, setting: CalibratedSetting, turns: Sequence[TurnRecord]) -> dict[str, Any]:
    """Return what was measured of some turns beside their simulation."""
    counters = reduce(add, (turn.counters for turn in turns))
    measured: list[Answer] = []
    served: list[Served] = []
    survival, drafted = find_survival(counters, setting.k)
    for number in {turn.turn for turn in turns}:
        answers = sorted((e for e in run.answers if e.turn == number and not e.error), key=lambda e: e.timing.start)
        context = fmean((e.num_prompt_tokens or 0) + e.timing.num_tokens / 2 for e in answers)
        server = Server(costs, setting.name, setting.k, context=context, drafted=drafted if setting.k else None)
        requests = [
            Request(
                at_s=each.timing.start - answers[0].timing.start,
                prompt_tokens=each.num_prompt_tokens or 1,
                output_tokens=each.timing.num_tokens,
            )
            for each in answers
        ]
        config = EngineConfig(model=str(TARGET))
        limits = Limits(max_num_seqs=config.max_num_seqs, max_num_batched_tokens=config.max_num_batched_tokens)
        found = simulate(server, requests, limits, k=setting.k, survival=survival)
        for answer, each in zip(answers, found, strict=True):
            if answer.measured:
                measured.append(answer)
                served.append(each)
    return {
        "arm": setting.name if setting.k else f"plain beside {run.plan.arms[1].name}",
        "workload": turns[0].workload,
        "load": turns[0].condition,
        "requests": len(measured),
        "tokens_per_step": round(counters.tokens_per_step or 1.0, 3),
        "ttft_ms": lay_beside([e.timing.ttft_s or 0.0 for e in measured], [e.ttft_s for e in served]),
        "tpot_ms": lay_beside([e.timing.tpot_s or 0.0 for e in measured], [e.tpot_s for e in served]),
    }


def find_survival(counters: Any, k: int) -> tuple[list[float], float]:
    """Return the share of steps in which at least 1, 2 ... draft tokens stood, and the tokens drafted a step."""
    if not k:
        return [], 0.0
    steps = max(1, counters.generation_tokens - counters.spec.num_accepted_tokens)
    return [each / steps for each in counters.spec.accepted_per_pos], count_drafted(counters, k)


def lay_beside(measured: Sequence[float], simulated: Sequence[float]) -> dict[str, float]:
    """Return mean and 90th percentile of both, in milliseconds, and how far off the simulation is."""
    found = {}
    for name, reduced in (("mean", np.mean), ("p90", lambda values: np.quantile(values, 0.9))):
        truth, other = 1e3 * float(reduced(measured)), 1e3 * float(reduced(simulated))
        found |= {name: round(truth, 2), f"{name}_simulated": round(other, 2)}
        found[f"{name}_off_percent"] = round(100 * (other / truth - 1), 1)
    return found


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the median and the largest error of each latency."""
    found = {}
    for time in ("ttft_ms", "tpot_ms"):
        for part in ("mean", "p90"):
            errors = [abs(row[time][f"{part}_off_percent"]) for row in rows]
            found[f"{time} {part}, off by percent"] = {"median": round(median(errors), 1), "max": max(errors)}
    return {"turns": len(rows), **found}


if __name__ == "__main__":
    main()
