"""The simulated service beside the embedded engine under Poisson arrivals: times to the first token, times per token.

Requests arrive at three rates, the same ones at the same times for every arm. Before and after each rate every arm is
timed step by step in closed loops of four sizes, which make a calibration: a machine's pace is another one a minute
later. With it and the counters' acceptance the same arrivals are simulated, and the latencies of both are held beside
each other. One process, no HTTP. One thread computes,
and the clock is its CPU time, with idle time skipped: what else the machine does hardly counts.

    python benchmarks/cpu/poisson_service.py --out benchmarks/cpu/results/poisson_service.json
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from provenance import provenance, write
from schedule_ramp import BUNDLE, encode, make_llm, use_one_core

from draftwise import LLM, SamplingParams
from draftwise.checkpoints.model_config import find_model_config
from draftwise.core import CalibratedSetting, Calibration, SpecConfig, SpecStats, StepPoint
from draftwise.engine.step.sequence import Request as EngineRequest
from draftwise.plan.cost.calibrated import CalibratedCosts
from draftwise.plan.forecast.server import Server
from draftwise.plan.service.events import Limits, Request, Served, simulate
from draftwise.version import __version__

CANDIDATES: dict[str, dict[str, Any]] = {
    "plain": {},
    "ngram": {"method": "ngram", "num_speculative_tokens": 3},
    "eagle3": {"method": "eagle3", "model": str(BUNDLE / "eagle3"), "num_speculative_tokens": 3},
}
CLOSED, SHARES, ANSWER, SECONDS = (1, 2, 4, 16), (0.3, 0.6, 0.85), 48, 9.0
"""Requests in flight that calibrate; rates, of what plain decoding could serve; tokens of an answer; of a rate."""
FEWEST_STEPS = 8


@dataclass(slots=True)
class Trace:
    """What serving some requests took."""

    steps: list[tuple[float, int, int, float]] = field(default_factory=list)
    """Seconds, sequences that decoded, tokens of prompts, mean context."""
    times: dict[str, list[float]] = field(default_factory=dict)
    """When each request arrived, had its first token, and ended."""
    spec: SpecStats = field(default_factory=SpecStats)
    tokens: int = 0

    @property
    def drafted(self) -> float:
        """Draft tokens of a sequence and step."""
        return self.spec.num_draft_tokens / self.decode_steps

    @property
    def decode_steps(self) -> int:
        """Steps of single sequences."""
        return max(1, self.tokens - len(self.times) - self.spec.num_accepted_tokens)


Loops = Mapping[str, Mapping[int, Trace]]
"""Traces of closed loops by arm and size."""


def main() -> None:
    """Calibrate, serve, simulate, compare and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    use_one_core()
    llms = {name: make_llm(spec or None) for name, spec in CANDIDATES.items()}
    known, fresh = encode(llms["plain"], 0), encode(llms["plain"], 30)
    for llm in llms.values():
        serve(llm, known[:4], in_flight=2)
    before = time_loops(llms, known)
    whole = before["plain"][max(CLOSED)]
    capacity = whole.tokens / ANSWER / sum(step[0] for step in whole.steps)
    rows, errors = list[dict[str, Any]](), list[float]()
    for share in SHARES:
        rate, draws = share * capacity, random.Random(7)
        times = list(accumulate(draws.expovariate(rate) for _ in range(max(12, round(rate * SECONDS)))))
        prompts = [fresh[place % len(fresh)] for place in range(len(times))]
        traces = {name: serve(llm, prompts, arrivals=times) for name, llm in llms.items()}
        after = time_loops(llms, known)
        costs = CalibratedCosts(calibrate(before, after))
        errors.append(costs.left_out_error())
        for name, trace in traces.items():
            rows.append({"arm": name, "share_of_plain_capacity": share, "rate_per_s": round(rate, 2)}
                        | compare(trace, costs, name, prompts, times))  # fmt: skip
            print(json.dumps(rows[-1]), flush=True)
        before = after
    about = provenance() | {"answer_tokens": ANSWER}
    about["clock"] = "CPU time of one thread"
    about["left_out_median_percent"] = round(100 * median(errors), 1)
    document = {"about": about, "summary": summarise(rows), "rows": rows}
    write(document, given.out)
    print(json.dumps(summarise(rows), indent=1))


def time_loops(llms: Mapping[str, LLM], prompts: Sequence[Sequence[int]]) -> Loops:
    """Serve every arm in closed loops of each size."""
    return {
        name: {size: serve(llm, prompts[: max(4, 2 * size)], in_flight=size) for size in CLOSED}
        for name, llm in llms.items()
    }


def serve(
    llm: LLM, prompts: Sequence[Sequence[int]], *, in_flight: int | None = None, arrivals: Sequence[float] = ()
) -> Trace:
    """Serve prompts in a closed loop, or as they arrive; those of a loop end at different times, as in serving."""
    engine, found, waiting = llm.engine, Trace(), deque(enumerate(prompts))
    before, began, live = engine.stats(), time.process_time(), 0
    pending: tuple[Any, ...] = ()
    salt = time.monotonic_ns()
    while waiting or engine.has_work():
        now = time.process_time() - began
        while waiting and (live < in_flight if in_flight is not None else arrivals[waiting[0][0]] <= now):
            number, ids = waiting.popleft()
            name, live = f"{salt}-{number}", live + 1
            found.times[name] = [now if in_flight is not None else arrivals[number]]
            shorter = 7 * number % (ANSWER // 2) if in_flight is not None else 0
            params = SamplingParams(temperature=0, max_tokens=ANSWER - shorter, ignore_eos=True)
            engine.add(EngineRequest(request_id=name, prompt_token_ids=list(ids), params=params))
        if not engine.has_work():
            began -= max(0.0, arrivals[waiting[0][0]] - now)  # nothing to do until then
            continue
        running, free = engine.scheduler.running, engine.config.max_num_seqs - len(engine.scheduler.running)
        prompt_tokens = sum(len(each.tokens) for each in list(engine.scheduler.waiting)[:free])
        context = fmean(len(each.tokens) for each in running) if running else 0.0
        decoding, started = len(running), time.process_time()
        pending, deltas = engine.step(pending)
        ended = time.process_time()
        found.steps.append((ended - started, decoding, prompt_tokens, context))
        for delta in deltas:
            found.tokens += len(delta.token_ids)
            stamps = found.times[delta.request_id]
            if len(stamps) == 1 and delta.token_ids:
                stamps.append(ended - began)
            if delta.finish_reason is not None:
                stamps.append(ended - began)
                live -= 1
    found.spec = engine.stats().spec - before.spec
    return found


def calibrate(*loops: Loops) -> Calibration:
    """Return the steps of closed loops: those that decode a full batch, those that compute prompts beside it, and those
    that compute prompts alone."""
    known = find_model_config(str(BUNDLE / "target"))
    assert known is not None
    points, settings = [], []
    for name in CANDIDATES:
        spec = SpecConfig.parse(CANDIDATES[name]) if CANDIDATES[name] else None
        drafter = find_model_config(spec.model) if spec is not None and spec.model else None
        settings.append(CalibratedSetting(name=name, spec=spec, drafter=None if drafter is None else drafter.config))
        for size in CLOSED:
            traces = [each[name][size] for each in loops]
            kinds: tuple[Callable[[tuple[float, int, int, float]], bool], ...] = (
                lambda step, size=size: step[1] == size and not step[2],
                lambda step: step[1] > 0 and step[2] > 0,
                lambda step: not step[1] and step[2] > 0,
            )
            for kind in kinds:
                steps = np.array([step for trace in traces for step in trace.steps if kind(step)])
                if len(steps) >= FEWEST_STEPS:
                    points.append(make_point(name, size, steps, traces[0]))
    return Calibration(
        engine="draftwise",
        engine_version=__version__,
        target="target",
        config=known.config,
        settings=tuple(settings),
        points=tuple(points),
    )


def make_point(name: str, size: int, steps: Any, trace: Trace) -> StepPoint:
    """Return the mean of some steps."""
    ms, batch, prompts, context = 1e3 * steps[:, 0].mean(), *steps[:, 1:].mean(0)
    spread = 1.96 * 1e3 * steps[:, 0].std() / len(steps) ** 0.5
    return StepPoint(
        setting=name,
        load=f"c={size}",
        batch=max(1.0, float(batch)),
        context=float(context),
        prefill_tokens=float(prompts),
        drafted=trace.drafted if name != "plain" else 0.0,
        step_ms=float(ms),
        low=float(max(0.01 * ms, ms - spread)),
        high=float(ms + spread),
        steps=len(steps),
    )


def compare(
    trace: Trace, costs: CalibratedCosts, name: str, prompts: Sequence[Sequence[int]], times: Sequence[float]
) -> dict[str, Any]:
    """Return what serving took beside its simulation."""
    setting = next(each for each in costs.calibration.settings if each.name == name)
    context = fmean(map(len, prompts)) + ANSWER / 2
    server = Server(costs, name, setting.k, context=context, drafted=trace.drafted if setting.k else None)
    requests = [
        Request(at_s=at, prompt_tokens=len(ids), output_tokens=ANSWER) for at, ids in zip(times, prompts, strict=True)
    ]
    survival = [each / trace.decode_steps for each in trace.spec.accepted_per_pos]
    found = simulate(
        server, requests, Limits(max_num_seqs=max(CLOSED), max_num_batched_tokens=2048), k=setting.k, survival=survival
    )
    stamps = list(trace.times.values())
    return {
        "requests": len(stamps),
        "mean_batch": round(fmean(step[1] for step in trace.steps), 2),
        "ttft_ms": lay_beside([first - at for at, first, _ in stamps], found, "ttft_s"),
        "tpot_ms": lay_beside([(end - first) / (ANSWER - 1) for _, first, end in stamps], found, "tpot_s"),
    }


def lay_beside(measured: Sequence[float], served: Sequence[Served], name: str) -> dict[str, float]:
    """Return mean and 90th percentile of both, in milliseconds, and how far off the simulation is."""
    simulated = [getattr(each, name) for each in served]
    return dict(_lay_beside(np.array(measured), np.array(simulated)))


def _lay_beside(measured: Any, simulated: Any) -> Iterator[tuple[str, float]]:
    for name, reduced in (("mean", np.mean), ("p90", lambda values: np.quantile(values, 0.9))):
        truth, other = 1e3 * float(reduced(measured)), 1e3 * float(reduced(simulated))
        yield name, round(truth, 2)
        yield f"{name}_simulated", round(other, 2)
        yield f"{name}_off_percent", round(100 * (other / truth - 1), 1)


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the median and the largest error of each latency, and of speculating over plain at the same rate."""
    found: dict[str, Any] = {}
    plain = {row["share_of_plain_capacity"]: row for row in rows if row["arm"] == "plain"}
    for time_of in ("ttft_ms", "tpot_ms"):
        for part in ("mean", "p90"):
            errors = [abs(row[time_of][f"{part}_off_percent"]) for row in rows]
            found[f"{time_of} {part}, off by percent"] = {"median": round(median(errors), 1), "max": max(errors)}
        ratios = []
        for row in rows:
            base = plain[row["share_of_plain_capacity"]]
            if row is not base:
                truth = row[time_of]["mean"] / base[time_of]["mean"]
                ratios.append(abs(row[time_of]["mean_simulated"] / base[time_of]["mean_simulated"] / truth - 1))
        found[f"{time_of} mean over plain's, off by percent"] = {
            "median": round(100 * median(ratios), 1),
            "max": round(100 * max(ratios), 1),
        }
    return found


if __name__ == "__main__":
    main()
