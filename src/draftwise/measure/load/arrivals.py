"""When the requests of a turn are to be sent: the same times on every arm, drawn from the seed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import accumulate, count

from draftwise.core import Arrivals, InvalidSetup, OpenLoop, Phase, Prompt, Replay

__all__ = ["arrival_times", "replay_times"]


def arrival_times(load: OpenLoop, *, seed: int, key: str) -> Iterator[float]:
    """Yield the request times of an open loop without end, in seconds from its start, ascending.

    They come from a unit-rate process by inverting the integrated rate, so any course of rates is followed exactly.
    Phases that all end start over when they are through: each round then has its expected number of arrivals
    (rounded), placed as a Poisson process with that number places them.

    Args:
        load: rates and kind of gaps.
        seed: of the run.
        key: what the times belong to; equal keys give equal times.
    """
    draws = random.Random(int.from_bytes(sha256(f"{seed}/{key}".encode()).digest()[:8], "big"))
    if load.phases[-1].duration_s is None:
        return _endless(load, draws)
    return _rounds(load, draws)


def replay_times(prompts: Sequence[Prompt], load: Replay) -> list[float]:
    """Return the request times of recorded prompts, in seconds from the first of them.

    Raises:
        InvalidSetup: a prompt has no time, or they go backwards.
    """
    times = [prompt.arrival_s for prompt in prompts if prompt.arrival_s is not None]
    if len(times) < len(prompts) or times != sorted(times):
        raise InvalidSetup.because(
            "no-arrivals",
            "A replay needs an ascending arrival time on every prompt.",
            where="--replay",
            fix="Give each line of the workload file an arrival_s, or ask for a rate instead.",
        )
    return [(time - times[0]) / load.speed for time in times]


def _endless(load: OpenLoop, draws: random.Random) -> Iterator[float]:
    # Areas under the rate at which requests arrive: unit steps, or exponential ones.
    if load.arrivals is Arrivals.CONSTANT:
        areas: Iterator[float] = (float(number) for number in count())
    else:
        areas = accumulate(-math.log1p(-draws.random()) for _ in count())
    return (_invert(load.phases, area) for area in areas)


def _rounds(load: OpenLoop, draws: random.Random) -> Iterator[float]:
    area = sum(_area(phase) for phase in load.phases)
    length_s = sum(phase.duration_s or 0.0 for phase in load.phases)
    if area <= 0:
        raise InvalidSetup.because(
            "no-rate", "The rate is 0 all the time.", where="--rate", fix="Give a phase a rate above 0, e.g. 60s:1-8/s."
        )
    number = max(1, round(area))
    for begin in count():
        if load.arrivals is Arrivals.CONSTANT:
            shares = [each / number for each in range(number)]
        else:
            shares = sorted(draws.random() for _ in range(number))
        for share in shares:
            yield begin * length_s + _invert(load.phases, share * area)


def _invert(phases: Sequence[Phase], area: float) -> float:
    """Return the time up to which the rate integrates to `area`."""
    begin = 0.0
    for phase in phases:
        held = _area(phase)
        if area < held:
            return begin + _time_within(phase, area)
        area -= held
        begin += phase.duration_s or 0.0
    return begin


def _area(phase: Phase) -> float:
    """Return the arrivals that a phase expects."""
    if phase.duration_s is None:
        return math.inf
    return (phase.start_per_s + phase.end_per_s) / 2 * phase.duration_s


def _time_within(phase: Phase, area: float) -> float:
    """Solve `start t + (end - start) t^2 / (2 duration) = area` for t, in the form that is stable for a flat rate."""
    start, slope = phase.start_per_s, 0.0
    if phase.duration_s is not None:
        slope = (phase.end_per_s - start) / phase.duration_s
    root = math.sqrt(max(0.0, start * start + 2 * slope * area))
    return 2 * area / (start + root) if area > 0 else 0.0
