"""Simulates latencies of a forecast's servers request by request, with varying arrivals and lengths."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from draftwise.core import (
    Acceptance,
    AcceptanceAtK,
    CalibratedSetting,
    Calibration,
    Forecast,
    Profile,
    SimulatedService,
)
from draftwise.plan.cost.calibrated import CalibratedCosts
from draftwise.plan.forecast.calibrated_server import CalibratedServer, find_acceptance, match_settings
from draftwise.plan.service import ServerLimits, SimulatedRequest, simulate

REQUESTS = 1000
_MOST_SEQUENCES, _MOST_TOKENS = 256, 2048
"""Where the calibrated servers' flags do not say: vLLM's defaults, or below them."""
_SHOWN = (50, 90, 99)
_SEED = 0


def simulate_services(
    made: Forecast, profile: Profile, calibration: Calibration, lengths: Sequence[tuple[float, float]]
) -> Iterator[SimulatedService]:
    """Yield simulated latencies under each load of a forecast: without speculation, and on every server at its best k.

    The same requests arrive at the same times on every server. Groups of the log are not distinguished.
    """
    costs, matched = CalibratedCosts(calibration), match_settings(profile, calibration)
    for axis, load in dict.fromkeys((each.axis, each.load) for each in made.cells):
        requests = _make_requests(lengths, load if axis == "rate" else 1.0)
        flight = max(1, round(load)) if axis == "concurrency" else None
        yield _run(costs, calibration.plain, None, requests, axis=axis, load=load, flight=flight)
        for setting, entry in matched:
            here = (setting.name, entry.temperature, axis, load, entry.group)
            cells = [e for e in made.cells if (e.setting, e.temperature, e.axis, e.load, e.group) == here]
            if cells and entry.group is None:
                k = max(cells, key=lambda each: each.speedup.value).k
                yield _run(costs, setting, (entry, k), requests, axis=axis, load=load, flight=flight)


def _make_requests(lengths: Sequence[tuple[float, float]], rate_per_s: float) -> list[SimulatedRequest]:
    draws = random.Random(_SEED)
    times = accumulate(draws.expovariate(rate_per_s) for _ in range(REQUESTS))
    return [
        SimulatedRequest(at_s=at, prompt_tokens=max(1, round(prompt)), output_tokens=max(1, round(answer)))
        for at, (prompt, answer) in zip(times, (lengths[n % len(lengths)] for n in range(REQUESTS)), strict=True)
    ]


def _run(
    costs: CalibratedCosts,
    setting: CalibratedSetting,
    at: tuple[Acceptance, int] | None,
    requests: Sequence[SimulatedRequest],
    *,
    axis: str,
    load: float,
    flight: int | None,
) -> SimulatedService:
    k = 0 if at is None else at[1]
    found = None if at is None else at[0].by_k[k]
    context = float(np.mean([each.prompt_tokens + each.output_tokens / 2 for each in requests]))
    drafted = None if found is None else min(float(k), found.drafted / found.steps)
    server = CalibratedServer(costs, setting.name, k, context=context, drafted=drafted)
    served = simulate(
        server,
        requests,
        _find_limits(costs.calibration, setting),
        k=k,
        survival=() if found is None else _find_survival(found, k),
        concurrency=flight,
        seed=_SEED,
    )
    return SimulatedService(
        setting=setting.name,
        k=k,
        temperature=None if at is None else at[0].temperature,
        axis=axis,
        load=load,
        requests=len(served),
        ttft_ms=_quantiles([each.ttft_s for each in served]),
        tpot_ms=_quantiles([each.tpot_s for each in served]),
        e2e_ms=_quantiles([each.e2e_s for each in served]),
        preemptions=sum(each.preemptions for each in served),
    )


def _find_survival(found: AcceptanceAtK, k: int) -> list[float]:
    """Return the share of steps in which at least 1, 2 ... draft tokens are accepted, scaled to the tokens of a step:
    counters also hold what lies behind an answer's end."""
    if not found.accepted_per_pos:
        chance = find_acceptance(found.tokens_per_step.value, k)
        return [chance**place for place in range(1, k + 1)]
    shares = [each / found.steps for each in found.accepted_per_pos]
    scale = (found.tokens_per_step.value - 1) / sum(shares) if sum(shares) else 0.0
    return [min(1.0, each * scale) for each in shares]


def _find_limits(calibration: Calibration, setting: CalibratedSetting) -> ServerLimits:
    args: dict[str, Any] = dict(calibration.args)
    sequences, tokens = args.get("max_num_seqs"), args.get("max_num_batched_tokens")
    return ServerLimits(
        max_num_seqs=sequences if isinstance(sequences, int) and sequences > 0 else _MOST_SEQUENCES,
        max_num_batched_tokens=tokens if isinstance(tokens, int) and tokens > 0 else _MOST_TOKENS,
        kv_tokens=math.inf if setting.kv_tokens is None else setting.kv_tokens,
    )


def _quantiles(seconds: Sequence[float]) -> tuple[float, float, float]:
    low, middle, high = (1e3 * float(value) for value in np.percentile(seconds, _SHOWN))
    return low, middle, high
