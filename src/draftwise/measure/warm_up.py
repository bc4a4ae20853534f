"""Before the first measured request: every server answers under every load, and shows how fast it is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from draftwise.backends import Backend
from draftwise.core import Answer, BackendError, ClosedLoop, Condition, Load, Prompt, Replay, RunPlan
from draftwise.measure.load.client import Client
from draftwise.runs.schedule import Turn, plan_turns
from draftwise.statistics import FEWEST_PROMPTS

__all__ = ["Pace", "expect_seconds", "fit_prompts", "greet_all", "measure_lengths", "warm_up"]

_WARMUP_TOKENS = 64
_OPEN_STREAMS = 4
"""Streams with which a server is warmed up for loads that do not say how many there will be."""
_LOADED_ROUNDS = 2
"""Times that all streams of a load send a warm-up request."""
_KEPT_LOAD = 1.25
"""Requests of a turn under load over its measured ones: ramp-up and background requests."""

Pace = Mapping[tuple[str, str], float]
"""Seconds per output token of a whole server, by arm and label of the condition."""


async def greet_all(backends: Sequence[Backend], plan: RunPlan, *, salt: str) -> dict[str, Client]:
    """Return a client per arm.

    Raises:
        BackendError: a server refuses the simplest request.
    """
    hello = _warmup_prompt(0, 2, _is_chat(plan))
    return {backend.name: await Client.greet(backend, hello, salt=salt) for backend in backends}


async def warm_up(clients: Mapping[str, Client], plan: RunPlan) -> Pace:
    """Return the pace of every arm under every condition in the discarded warm-ups.

    The warm-up texts occur in no workload, so that they leave nothing useful in a cache.

    Raises:
        BackendError: a server does not answer.
    """
    pace = {}
    for name, client in clients.items():
        for condition in plan.conditions:
            pace[name, condition.label] = await _warm_up(client, condition, plan)
    return pace


async def _warm_up(client: Client, condition: Condition, plan: RunPlan) -> float:
    """Answer warm-up prompts with as many streams as the condition has."""
    streams = condition.concurrency or _OPEN_STREAMS
    rounds = plan.warmup if streams == 1 else _LOADED_ROUNDS
    began, tokens = client.backend.now(), 0
    for number in range(rounds):
        if number == 1:
            # The first round makes the server compile and cache what it needs: its time is not the pace.
            began, tokens = client.backend.now(), 0
        first = number * streams + 1
        answers = await _ask_together(client, condition, plan, range(first, first + streams))
        tokens += sum(answer.timing.num_tokens for answer in answers)
    return (client.backend.now() - began) / tokens


async def _ask_together(client: Client, condition: Condition, plan: RunPlan, numbers: range) -> list[Answer]:
    chat, arm = _is_chat(plan), client.backend.name
    turn = Turn(number=-1, arm=arm, workload="", repeat=0, prompts=(), condition=condition)
    prompts = [_warmup_prompt(number, _WARMUP_TOKENS, chat) for number in numbers]
    answers = await asyncio.gather(*(client.ask(turn, prompt, seed=plan.seed) for prompt in prompts))
    for answer in answers:
        if answer.error is not None:
            raise BackendError(f"{arm}: a warm-up request failed: {answer.error}")
    return answers


def _is_chat(plan: RunPlan) -> bool:
    return all(prompt.messages for workload in plan.workloads for prompt in workload.prompts)


def _warmup_prompt(number: int, max_tokens: int, chat: bool) -> Prompt:
    text = f"Warm-up {number}: count upwards from {number}, one number per line.\n"
    if chat:
        return Prompt(id="warm-up", messages=({"role": "user", "content": text},), max_tokens=max_tokens)
    return Prompt(id="warm-up", text=text, max_tokens=max_tokens)


async def measure_lengths(client: Client, plan: RunPlan) -> dict[str, float]:
    """Return, per workload, the share of `max_tokens` that outputs reach, going by two prompts.

    Only the baseline's server answers them, with a line break before each prompt, so that no cache holds a prompt
    before its turn.
    """
    shares = {}
    for workload in plan.workloads:
        prompts = [_disguise(prompt) for prompt in workload.prompts[:2]]
        turn = Turn(number=-1, arm=client.backend.name, workload=workload.name, repeat=0, prompts=())
        answers = [await client.ask(turn, prompt, seed=plan.seed) for prompt in prompts]
        tokens = sum(answer.timing.num_tokens for answer in answers)
        shares[workload.name] = tokens / sum(prompt.max_tokens for prompt in prompts)
    return shares


def _disguise(prompt: Prompt) -> Prompt:
    if prompt.text is not None:
        return replace(prompt, text=f"\n{prompt.text}")
    first, *rest = prompt.messages
    content = first["content"]
    # Of several parts (text, images) there are as many as before and one more.
    disguised = f"\n{content}" if isinstance(content, str) else [{"type": "text", "text": "\n"}, *content]
    return replace(prompt, messages=({**first, "content": disguised}, *rest))


def expect_seconds(plan: RunPlan, pace: Pace, shares: Mapping[str, float]) -> float:
    """Return how long a plan takes, going by each arm's pace under each load and each workload's lengths."""
    return sum(
        _expect_turn(turn, plan.turn_s, pace[turn.arm, turn.condition.label] * shares[turn.workload])
        for repeat in range(1, plan.repeats + 1)
        for turn in plan_turns(plan, plan.conditions, repeat)
    )


def _expect_turn(turn: Turn, turn_s: float, pace: float) -> float:
    """Return the seconds that a turn takes, at so many seconds for each token of `max_tokens`."""
    work_s = pace * sum(prompt.max_tokens for prompt in turn.prompts)
    if turn.condition.concurrency is None:
        # Requests come when they come: a server that is fast enough only waits for them.
        return max(work_s, _arrive_within(turn.prompts, turn.condition.load, turn_s))
    return work_s if turn.condition.concurrency == 1 else work_s * _KEPT_LOAD


def _arrive_within(prompts: Sequence[Prompt], load: Load, turn_s: float) -> float:
    """Return the seconds in which the requests of a turn arrive."""
    if isinstance(load, Replay):
        return max(prompt.arrival_s or 0.0 for prompt in prompts) / load.speed
    if isinstance(load, ClosedLoop):
        return 0.0
    if load.rate_per_s:
        return len(prompts) / load.rate_per_s
    return sum(turn_s if phase.duration_s is None else phase.duration_s for phase in load.phases)


def fit_prompts(plan: RunPlan, pace: Pace, shares: Mapping[str, float], budget_s: float) -> RunPlan:
    """Return the plan with every workload cut to as many prompts as fit in the time, but not under a few."""

    def cut(count: int) -> RunPlan:
        return replace(plan, workloads=tuple(workload.first(count) for workload in plan.workloads))

    fewest, most = FEWEST_PROMPTS, max(len(workload.prompts) for workload in plan.workloads)
    while fewest < most:
        middle = (fewest + most + 1) // 2
        if expect_seconds(cut(middle), pace, shares) > budget_s:
            most = middle - 1
        else:
            fewest = middle
    return cut(fewest)
