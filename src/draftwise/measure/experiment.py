"""Runs the paired comparison: warm-ups, turns, counters around each turn, everything to disk at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from draftwise.backends import Backend
from draftwise.core import Answer, BackendError, Counters, Prompt, RunPlan, Window
from draftwise.measure.client import Client
from draftwise.measure.run_directory import RunDirectory
from draftwise.measure.schedule import Turn, schedule
from draftwise.measure.statistics import FEWEST_PROMPTS

__all__ = ["Experiment", "Progress", "expect_seconds", "fit_prompts", "measure_lengths", "warm_up"]

_WARMUP_TOKENS = 64


class Progress(Protocol):
    """Told how far a run is."""

    def start(self, total: int, done: int) -> None:
        """Say how many requests there are, and how many an earlier session has measured."""

    def advance(self, requests: int, what: str) -> None:
        """Say that so many more have been answered."""


async def warm_up(
    backends: Sequence[Backend], plan: RunPlan, *, salt: str
) -> tuple[dict[str, Client], dict[str, float]]:
    """Return a client per arm and the seconds per output token that each arm showed in the discarded warm-ups.

    The warm-up texts occur in no workload, so no cache learns anything of use from them.

    Raises:
        BackendError: a server does not answer.
    """
    chat = all(prompt.messages for workload in plan.workloads for prompt in workload.prompts)
    clients, pace = {}, {}
    for backend in backends:
        client = await Client.greet(backend, _warmup_prompt(0, 2, chat), temperature=plan.temperature, salt=salt)
        seconds = []
        for number in range(1, plan.warmup + 1):
            turn = Turn(number=-1, arm=backend.name, workload="", repeat=0, prompts=())
            answer = await client.ask(turn, _warmup_prompt(number, _WARMUP_TOKENS, chat), seed=plan.seed)
            if answer.error is not None:
                raise BackendError(f"{backend.name}: a warm-up request failed: {answer.error}")
            seconds.append(answer.timing.e2e_s / answer.timing.num_tokens)
        clients[backend.name], pace[backend.name] = client, min(seconds, default=0.0)
    return clients, pace


def _warmup_prompt(number: int, max_tokens: int, chat: bool) -> Prompt:
    text = f"Warm-up {number}: count upwards from {number}, one number per line.\n"
    if chat:
        return Prompt(id="warm-up", messages=({"role": "user", "content": text},), max_tokens=max_tokens)
    return Prompt(id="warm-up", text=text, max_tokens=max_tokens)


async def measure_lengths(client: Client, plan: RunPlan) -> dict[str, float]:
    """Return, per workload, the share of `max_tokens` that outputs reach, going by two prompts.

    Only the plain server is asked, and with a line break before the prompt: nothing learns anything, no prefix
    cache holds a prompt before its turn.
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
    if not isinstance(content, str):
        return prompt
    return replace(prompt, messages=({**first, "content": f"\n{content}"}, *rest))


def expect_seconds(plan: RunPlan, pace: Mapping[str, float], shares: Mapping[str, float]) -> float:
    """Return how long a plan takes, going by each arm's seconds per token and each workload's lengths."""
    tokens = sum(
        shares[workload.name] * prompt.max_tokens for workload in plan.workloads for prompt in workload.prompts
    )
    return sum(pace.values()) * tokens * plan.repeats / plan.concurrency


def fit_prompts(plan: RunPlan, pace: Mapping[str, float], shares: Mapping[str, float], budget_s: float) -> RunPlan:
    """Return the plan with every workload cut to as many prompts as fit in the time, but not under a few."""

    def cut(count: int) -> RunPlan:
        return replace(plan, workloads=tuple(workload.first(count) for workload in plan.workloads))

    count = max(len(workload.prompts) for workload in plan.workloads)
    while count > FEWEST_PROMPTS and expect_seconds(cut(count), pace, shares) > budget_s:
        count -= 1
    return cut(count)


@dataclass(slots=True, kw_only=True)
class Experiment:
    """One session of a run: measures the turns that the directory does not hold yet.

    Args:
        clients: of every arm, by name.
        progress: told after every turn.
    """

    plan: RunPlan
    directory: RunDirectory
    clients: Mapping[str, Client]
    progress: Progress
    _before: dict[str, Counters] = field(default_factory=dict)

    async def run(self) -> None:
        """Measure what is missing.

        Raises:
            BackendError: a server broke; what was measured is on disk.
        """
        measured = {window.turn for window in self.directory.read().windows}
        turns = list(schedule(self.plan))
        self.progress.start(
            sum(len(turn.prompts) for turn in turns),
            sum(len(turn.prompts) for turn in turns if turn.number in measured),
        )
        for name, client in self.clients.items():
            self._before[name] = await client.backend.counters()
        for turn in turns:
            if turn.number not in measured:
                window, answers = await self._take(turn)
                self.directory.add_turn(window, answers)
                self.progress.advance(len(answers), f"pass {turn.repeat} · {turn.workload} · {turn.arm}")

    async def _take(self, turn: Turn) -> tuple[Window, list[Answer]]:
        client = self.clients[turn.arm]
        began, cpu = client.backend.now(), time.process_time()
        answers = await self._ask_all(client, turn)
        wall_s, cpu_s = client.backend.now() - began, time.process_time() - cpu
        # Servers rest between turns, so the reading after one turn is the reading before the next.
        after = await client.backend.counters()
        growth, self._before[turn.arm] = after - self._before[turn.arm], after
        window = Window(
            turn=turn.number,
            arm=turn.arm,
            workload=turn.workload,
            repeat=turn.repeat,
            counters=growth,
            wall_s=wall_s,
            client_cpu_s=cpu_s,
        )
        return window, answers

    async def _ask_all(self, client: Client, turn: Turn) -> list[Answer]:
        """Answer the turn's prompts in a closed loop of `concurrency` streams."""
        gate = asyncio.Semaphore(self.plan.concurrency)

        async def ask(prompt: Prompt) -> Answer:
            async with gate:
                return await client.ask(turn, prompt, seed=self.plan.seed)

        return list(await asyncio.gather(*(ask(prompt) for prompt in turn.prompts)))
