"""A server simulated step by step: requests queue, prompts are computed beside decoding, and keys fill a pool."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from draftwise.plan.service.little import Stepping

__all__ = ["Limits", "Request", "Served", "simulate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of the traffic."""

    at_s: float
    """When it arrives; in a closed loop it is sent when another one is answered."""
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a server takes at once."""

    max_num_seqs: int
    max_num_batched_tokens: int
    """Of a step; what decoding leaves goes to prompts."""
    kv_tokens: float = math.inf
    """That its pool of keys and values holds: fewer where a drafter takes memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """How one request fared."""

    ttft_s: float
    """From its arrival to its first token, waiting included."""
    tpot_s: float
    """Of a token after the first; 0 where there is none."""
    e2e_s: float
    preemptions: int


@dataclass(slots=True)
class _Live:
    """A request that is in the server."""

    request: Request
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
    requests: Sequence[Request],
    limits: Limits,
    *,
    k: int = 0,
    survival: Sequence[float] = (),
    concurrency: int | None = None,
    seed: int = 0,
) -> list[Served]:
    """Return how each request fares, in their order.

    As in vLLM and the embedded engine: decoding goes first, prompts are computed in the order of arrival with what is
    left of a step's tokens, and the youngest request gives its keys back when the pool is full, to be computed again.

    Args:
        server: how long its steps last.
        requests: in the order of their arrival.
        limits: of the server.
        k: draft tokens of a sequence and step.
        survival: share of steps in which at least 1, 2 ... draft tokens are accepted.
        concurrency: requests in flight of a closed loop; None where requests arrive at their times.
        seed: of what stands.
    """
    draws, now, place = random.Random(seed), 0.0, 0
    waiting: deque[_Live] = deque()
    running: list[_Live] = []
    found: dict[int, Served] = {}
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


def _make_room(running: list[_Live], waiting: deque[_Live], limits: Limits, k: int) -> None:
    """Send the youngest requests back until the keys of the next step fit; one stays whatever it takes."""
    while len(running) > 1 and sum(each.held + k + 1 for each in running) > limits.kv_tokens:
        youngest = running.pop()
        youngest.missing, youngest.preemptions = youngest.held, youngest.preemptions + 1
        waiting.appendleft(youngest)


def _schedule_prompts(running: list[_Live], waiting: deque[_Live], limits: Limits, decoded: int) -> dict[int, int]:
    """Return the tokens of prompts that the next step computes, by request; admits those that fit."""
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


def _finish(live: _Live, now: float) -> Served:
    after = live.request.output_tokens - 1
    return Served(
        ttft_s=live.first - live.arrived,
        tpot_s=(now - live.first) / after if after else 0.0,
        e2e_s=now - live.arrived,
        preemptions=live.preemptions,
    )
