"""Throughput and latencies under closed and open loads: means by Little's law, and step-by-step simulation."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

_MOST_ROUNDS = 200
_CLOSE_ENOUGH = 1e-4
_FAR = 4.0
"""Standard deviations, beyond which a number of prompts in one step is too rare to matter."""
_LEAST_LEFT = 0.02
"""Share of its time that a server must have left for decoding, or the rate is more than it can serve."""


class Stepping(Protocol):
    """The steps of one server at one draft length."""

    def step_s(self, sequences: float, prefill_tokens: float = 0.0) -> float:
        """Return the seconds of a step that decodes `sequences` and computes `prefill_tokens` of prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLengths:
    """Mean lengths of requests."""

    prompt_tokens: float
    """Computed prompt tokens, without those from the prefix cache."""
    output_tokens: float

    def decode_steps(self, tokens_per_step: float) -> float:
        """Return the steps of an answer after its first token, which prefill emits."""
        return max(0.0, self.output_tokens - 1) / tokens_per_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """How long a request waits before a step computes its prompt."""

    seconds: float = 0.0
    """Seconds in the server's front end, independent of load."""
    steps: float = 0.0
    """Steps under way or already prepared when it arrives; 0 without other requests in flight."""


NO_WAITING = Waiting()


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Mean performance of a server under one load."""

    batch: float
    """Number of decoding sequences."""
    step_s: float
    """Mean seconds per step, including steps with prompts."""
    tpot_s: float
    """Seconds per output token after the first."""
    ttft_s: float
    """Seconds to the first token, without waiting for others to finish."""
    tokens_per_s: float
    """Output tokens per second of all answers together."""


def serve_concurrency(
    server: Stepping,
    traffic: RequestLengths,
    tokens_per_step: float,
    concurrency: float,
    *,
    waiting: Waiting = NO_WAITING,
) -> Service:
    """Return the service of a closed loop: `concurrency` requests in flight, the next sent when one is answered.

    A request waits, computes its prompt in one step, and decodes. The others are at random stages of their answers, so
    each has the same chance to compute its prompt in a given step. Prompts in one step share its fixed cost: the step
    runs without a full graph only once.

    Args:
        server: step times of the server.
        traffic: lengths of requests.
        tokens_per_step: tokens per sequence and step.
        concurrency: requests in flight.
        waiting: wait of a request before the step that computes its prompt.
    """
    others, steps = max(0, round(concurrency) - 1), traffic.decode_steps(tokens_per_step)
    waited = waiting.steps if others else 0.0
    decode_s = server.step_s(concurrency)
    for _ in range(_MOST_ROUNDS):
        stages = 1 + steps + waited + waiting.seconds / decode_s
        share = steps / (stages - 1) if steps else 0.0  # of those that compute no prompt: the others wait
        beside = [(n, chance, share * (others - n)) for n, chance in _list_chances(others, 1 / stages)]
        found = sum(chance * server.step_s(1 + batch, n * traffic.prompt_tokens) for n, chance, batch in beside)
        settled = abs(found - decode_s) < _CLOSE_ENOUGH * decode_s
        decode_s = found
        if settled:
            break
    prompt_s = sum(
        chance * server.step_s(max(1.0, batch), (n + 1) * traffic.prompt_tokens) for n, chance, batch in beside
    )
    first_s = waiting.seconds + waited * decode_s + prompt_s
    stay_s = first_s + steps * decode_s
    return Service(
        batch=max(1.0, concurrency * steps * decode_s / stay_s),
        step_s=(prompt_s + steps * decode_s) / (1 + steps),
        tpot_s=steps * decode_s / max(1.0, traffic.output_tokens - 1),
        ttft_s=first_s,
        tokens_per_s=concurrency * traffic.output_tokens / stay_s,
    )


def _list_chances(trials: int, chance: float) -> list[tuple[int, float]]:
    """Return how many of some trials succeed, with the chance of each number that is not too rare to matter."""
    mean, spread = trials * chance, math.sqrt(trials * chance * (1 - chance))
    numbers = range(max(0, math.floor(mean - _FAR * spread)), min(trials, math.ceil(mean + _FAR * spread + 1)) + 1)
    if chance >= 1:
        return [(trials, 1.0)]
    weights = [
        math.comb(trials, n) * math.exp(n * math.log(chance) + (trials - n) * math.log1p(-chance)) for n in numbers
    ]
    return [(n, weight / sum(weights)) for n, weight in zip(numbers, weights, strict=True)]


def serve_rate(
    server: Stepping, traffic: RequestLengths, tokens_per_step: float, rate_per_s: float, *, most: float
) -> Service | None:
    """Return the service of requests that arrive at a rate; None if the server cannot keep up.

    Args:
        server: step times of the server.
        traffic: lengths of requests.
        tokens_per_step: tokens per sequence and step.
        rate_per_s: requests per second.
        most: maximum number of sequences decoded at once.
    """
    steps, batch = traffic.decode_steps(tokens_per_step), 1.0
    for _ in range(_MOST_ROUNDS):
        pure_s, prompt_s = _split(server, traffic, max(1.0, batch))
        left = 1 - rate_per_s * prompt_s
        if left < _LEAST_LEFT:
            return None
        step_s = pure_s / left
        found = rate_per_s * steps * step_s
        if found > most:
            return None
        if abs(found - batch) < _CLOSE_ENOUGH * max(1.0, batch):
            break
        batch += 0.5 * (found - batch)
    stay_s, first_s = steps * step_s, pure_s / left + prompt_s
    return Service(
        batch=batch,
        step_s=step_s,
        tpot_s=stay_s / max(1.0, traffic.output_tokens - 1),
        ttft_s=first_s,
        tokens_per_s=rate_per_s * traffic.output_tokens,
    )


def _split(server: Stepping, traffic: RequestLengths, batch: float) -> tuple[float, float]:
    """Return the seconds of a step that only decodes, and those that a prompt adds to one."""
    pure_s = server.step_s(batch)
    return pure_s, max(0.0, server.step_s(batch, traffic.prompt_tokens) - pure_s) if traffic.prompt_tokens else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRequest:
    """One request of the traffic."""

    at_s: float
    """Arrival time in seconds; in a closed loop, it is sent when another one is answered."""
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Capacity of a server."""

    max_num_seqs: int
    max_num_batched_tokens: int
    """Maximum tokens per step; prompts get what decoding leaves."""
    kv_tokens: float = math.inf
    """Capacity of the KV cache in tokens; smaller if a drafter takes memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedAnswer:
    """Simulated latencies of one request."""

    ttft_s: float
    """Seconds from arrival to first token, waiting included."""
    tpot_s: float
    """Seconds per token after the first; 0 for answers of one token."""
    e2e_s: float
    preemptions: int


@dataclass(slots=True)
class _Live:
    """A request that is in the server."""

    request: SimulatedRequest
    order: int
    arrived: float
    missing: int
    """Tokens still to be computed before it decodes."""
    emitted: int = 0
    first: float = 0.0
    preemptions: int = 0

    @property
    def held(self) -> int:
        """Tokens whose keys it holds, or will once its prompt is computed."""
        return self.request.prompt_tokens + self.emitted


def simulate(
    server: Stepping,
    requests: Sequence[SimulatedRequest],
    limits: ServerLimits,
    *,
    k: int = 0,
    survival: Sequence[float] = (),
    concurrency: int | None = None,
    seed: int = 0,
) -> list[SimulatedAnswer]:
    """Return the latencies of each request, in order.

    As in vLLM and the embedded engine, decoding goes first, and prompts are computed in order of arrival with the rest
    of a step's tokens. If the KV cache is full, the youngest request is preempted and computed again.

    Args:
        server: step times of the server.
        requests: requests in order of arrival.
        limits: capacity of the server.
        k: draft tokens per sequence and step.
        survival: share of steps in which at least 1, 2 ... draft tokens are accepted.
        concurrency: requests in flight of a closed loop; None if requests arrive at their times.
        seed: seed of the random acceptance.
    """
    draws, now, place = random.Random(seed), 0.0, 0
    waiting: deque[_Live] = deque()
    running: list[_Live] = []
    found: dict[int, SimulatedAnswer] = {}
    while len(found) < len(requests):
        while place < len(requests) and (
            requests[place].at_s <= now if concurrency is None else place - len(found) < concurrency
        ):
            request = requests[place]
            arrived = request.at_s if concurrency is None else now
            waiting.append(_Live(request, place, arrived, missing=request.prompt_tokens))
            place += 1
        _make_room(running, waiting, limits, k)
        decoding = [each for each in running if not each.missing]
        prompts = _schedule_prompts(running, waiting, limits, len(decoding) * (k + 1))
        computed = sum(prompts.values())
        if not decoding and not computed:
            now = requests[place].at_s
            continue
        now += server.step_s(max(1, len(decoding)), float(computed))
        for each in decoding:
            _emit(each, 1 + _draw_accepted(draws, survival[:k]))
        for each in running:
            if size := prompts.get(each.order, 0):
                each.missing -= size
                if not each.missing:
                    each.first = each.first or now
                    _emit(each, 1)
        for each in [each for each in running if each.emitted == each.request.output_tokens]:
            running.remove(each)
            found[each.order] = _finish(each, now)
    return [found[order] for order in range(len(requests))]


def _draw_accepted(draws: random.Random, survival: Sequence[float]) -> int:
    """Return how many draft tokens stand in one step of one sequence."""
    draw = draws.random()
    return sum(draw < chance for chance in survival)


def _emit(live: _Live, tokens: int) -> None:
    live.emitted = min(live.request.output_tokens, live.emitted + tokens)


def _make_room(running: list[_Live], waiting: deque[_Live], limits: ServerLimits, k: int) -> None:
    """Send the youngest requests back until the keys of the next step fit. One stays whatever it takes."""
    while len(running) > 1 and sum(each.held + k + 1 for each in running) > limits.kv_tokens:
        youngest = running.pop()
        youngest.missing, youngest.preemptions = youngest.held, youngest.preemptions + 1
        waiting.appendleft(youngest)


def _schedule_prompts(
    running: list[_Live], waiting: deque[_Live], limits: ServerLimits, decoded: int
) -> dict[int, int]:
    """Return the tokens of prompts that the next step computes, by request. Admits those that fit."""
    left, taken = max(1, limits.max_num_batched_tokens - decoded), dict[int, int]()
    for each in running:
        if each.missing and left > 0:
            taken[each.order] = min(each.missing, left)
            left -= taken[each.order]
    free = limits.kv_tokens - sum(each.held for each in running)
    while waiting and left > 0 and len(running) < limits.max_num_seqs:
        if running and waiting[0].held + 1 > free:
            break
        each = waiting.popleft()
        running.append(each)
        free -= each.held + 1
        taken[each.order] = min(each.missing, left)
        left -= taken[each.order]
    return taken


def _finish(live: _Live, now: float) -> SimulatedAnswer:
    after = live.request.output_tokens - 1
    return SimulatedAnswer(
        ttft_s=live.first - live.arrived,
        tpot_s=(now - live.first) / after if after else 0.0,
        e2e_s=now - live.arrived,
        preemptions=live.preemptions,
    )
