"""The requests of a turn, measured and background ones, and their send times."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from heapq import heapify, heapreplace
from itertools import accumulate, chain, count, cycle, islice

from draftwise.core import Arrivals, OpenLoop, Phase, Prompt, Replay
from draftwise.knowledge.messages import refusal
from draftwise.measure.load.client import LoadRequest
from draftwise.runs.turn_order import Turn


def measured_requests(turn: Turn) -> Iterator[LoadRequest]:
    """Yield the measured requests of a turn, in order."""
    copies = turn.copies or (0,) * len(turn.prompts)
    for prompt, copy in zip(turn.prompts, copies, strict=True):
        yield LoadRequest(turn=turn, prompt=prompt, copy=copy)


def background_requests(turn: Turn, ramp_up: int = 0) -> Iterator[LoadRequest]:
    """Yield requests that only maintain the load, with copy numbers that no measured request has.

    The first `ramp_up` of them precede the measured requests, one per stream. If the turn has background prompts, each
    is sent once. Otherwise the requests never end: those before the measured requests use the prompts measured last,
    those after them the prompts measured first. A prefix-cache hit on them then speeds up no measured request.
    """
    used: Counter[str] = Counter()
    for request in measured_requests(turn):
        used[request.prompt.id] = max(used[request.prompt.id], request.copy + 1)
    endless = chain(islice(cycle(reversed(turn.prompts)), ramp_up), cycle(turn.prompts))
    for number, prompt in enumerate(endless if turn.background is None else turn.background):
        request = LoadRequest(turn=turn, prompt=prompt, copy=used[prompt.id], measured=False)
        yield _shorten(request, (number + 1) / ramp_up) if number < ramp_up else request
        used[prompt.id] += 1


def _shorten(request: LoadRequest, share: float) -> LoadRequest:
    """Return a ramp-up request of its own length: streams that begin together would stay in step, unlike real load."""
    tokens = max(1, math.ceil(request.prompt.max_tokens * share))
    return replace(request, prompt=replace(request.prompt, max_tokens=tokens))


def fill_streams(turn: Turn, streams: int, count_tokens: Callable[[Prompt], float]) -> tuple[int, float]:
    """Return the requests and tokens per stream of a closed loop whose streams all write at one pace.

    Args:
        turn: turn under the closed loop.
        streams: requests in flight.
        count_tokens: returns the answer length of a prompt, in tokens.

    Returns:
        The number of requests sent, and the tokens that each stream writes until the last measured answer ends.
    """
    others = background_requests(turn, streams)
    free_at = [count_tokens(request.prompt) for request in islice(others, streams)] or [0.0]
    heapify(free_at)
    sent, end = len(free_at), 0.0
    for request in measured_requests(turn):
        done_at = free_at[0] + count_tokens(request.prompt)
        heapreplace(free_at, done_at)
        sent, end = sent + 1, max(end, done_at)
    while free_at[0] < end and (another := next(others, None)) is not None:
        heapreplace(free_at, free_at[0] + max(1.0, count_tokens(another.prompt)))
        sent += 1
    return sent, end


def set_times(requests: Iterable[LoadRequest], times: Iterable[float], began: float) -> Iterator[LoadRequest]:
    """Yield requests with their send times, counted from `began`. Ends with the shorter of the two inputs."""
    for request, time in zip(requests, times, strict=False):
        yield replace(request, intended=began + time)


def arrival_times(load: OpenLoop, *, seed: int, key: str) -> Iterator[float]:
    """Yield the send times of an open loop, in ascending seconds from its start, without end.

    They come from a unit-rate process by inverting the integrated rate, so they follow any course of rates exactly. If
    all phases end, they repeat. Each round then has its expected number of arrivals (rounded), distributed as in a
    Poisson process with that count.

    Args:
        load: rates, and the distribution of gaps.
        seed: the run's seed.
        key: equal keys give equal times.
    """
    draws = random.Random(int.from_bytes(sha256(f"{seed}/{key}".encode()).digest()[:8], "big"))
    if load.phases[-1].duration_s is None:
        return _endless(load, draws)
    return _rounds(load, draws)


def replay_times(prompts: Sequence[Prompt], load: Replay) -> list[float]:
    """Return the send times of recorded prompts, in seconds from the first.

    Raises:
        InvalidSetup: a prompt has no time, or times go backwards.
    """
    times = [prompt.arrival_s for prompt in prompts if prompt.arrival_s is not None]
    if len(times) < len(prompts) or times != sorted(times):
        raise refusal("no-arrivals", case="replay")
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
        raise refusal("no-rate")
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
