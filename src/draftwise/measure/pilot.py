"""A look at outputs before the first measured request: how long they are, and how fast each server writes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from draftwise.backends import Backend
from draftwise.core import Answer, Condition, Counters, Prompt, RunPlan, Workload
from draftwise.measure.forecast import Forecast
from draftwise.measure.load.client import Client
from draftwise.measure.roster import Roster
from draftwise.measure.warm_up import WarmUp
from draftwise.runs.schedule import Turn

__all__ = ["Pilot", "look_at_outputs", "make_forecast", "spare_prompts"]

_LOOKED_AT = 2
"""Prompts of each workload."""
_SPARED_OF = 20
"""Prompts of a workload from which on it can spare some."""


@dataclass(slots=True, kw_only=True)
class Pilot:
    """What one server made of a few prompts of one workload, one at a time."""

    tokens: int = 0
    allowed: int = 0
    """`max_tokens` of the prompts together."""
    seconds: float = 0.0
    first_s: float = 0.0
    """Of the seconds, until the first tokens."""
    counters: Counters = field(default_factory=lambda: Counters(generation_tokens=0))

    def add(self, prompt: Prompt, answer: Answer, growth: Counters) -> None:
        """Take in an answer, and what the server's counters grew by."""
        self.tokens += answer.timing.num_tokens
        self.allowed += prompt.max_tokens
        self.seconds += answer.timing.e2e_s
        self.first_s += answer.timing.ttft_s or 0.0
        self.counters += growth


def spare_prompts(plan: RunPlan) -> tuple[RunPlan, dict[str, tuple[Prompt, ...]]]:
    """Return the plan without the last prompts of its long workloads, and these by workload.

    They are what servers that could remember their answers are asked before the run.
    """
    if not plan.remembering:
        return plan, {}
    spared = {w.name: w.prompts[-_LOOKED_AT:] for w in plan.workloads if len(w.prompts) >= _SPARED_OF}
    workloads = tuple(w.first(len(w.prompts) - _LOOKED_AT) if w.name in spared else w for w in plan.workloads)
    return replace(plan, workloads=workloads), spared


async def look_at_outputs(
    roster: Roster,
    group: Sequence[Backend],
    plan: RunPlan,
    spared: Mapping[str, tuple[Prompt, ...]],
    *,
    ends_at: float,
    wait: Callable[[str], None],
) -> dict[tuple[str, str], Pilot]:
    """Return what servers make of a few prompts, by arm and workload.

    Servers that cannot remember them are asked prompts of the run where no others are spared, with a line break before
    each, so that no prefix cache holds a prompt before its turn.

    Args:
        roster: of the session; servers that fail leave it.
        group: those to ask.
        plan: of the run.
        spared: prompts that are in no turn, by workload.
        ends_at: on the clock of the event loop: after it no one is asked.
        wait: called with what is under way.
    """
    clock = asyncio.get_running_loop().time
    found: dict[tuple[str, str], Pilot] = {}
    for number, backend, workload in product(range(_LOOKED_AT), group, plan.workloads):
        arm, client = backend.name, roster.clients.get(backend.name)
        prompts = spared.get(workload.name) or ([] if arm in plan.remembering else list(_disguise_all(workload)))
        if client is not None and number < len(prompts) and clock() < ends_at:
            wait(f"looking at {arm}'s answers to {workload.name}")
            pilot = found.setdefault((arm, workload.name), Pilot())
            await roster.attempt(backend, _ask(client, workload, prompts[number], plan.seed, pilot))
    return {place: pilot for place, pilot in found.items() if place[0] in roster.clients}


async def _ask(client: Client, workload: Workload, prompt: Prompt, seed: int, pilot: Pilot) -> None:
    backend = client.backend
    turn = Turn(number=-1, arm=backend.name, workload=workload.name, repeat=0, prompts=())
    await backend.wake()
    before = await backend.counters()
    answer = await client.ask(turn, prompt, seed=seed)
    pilot.add(prompt, answer, await backend.counters() - before)
    await backend.rest()


def _disguise_all(workload: Workload) -> Iterator[Prompt]:
    yield from map(_disguise, workload.prompts[:_LOOKED_AT])


def _disguise(prompt: Prompt) -> Prompt:
    if prompt.text is not None:
        return replace(prompt, text=f"\n{prompt.text}")
    first, *rest = prompt.messages
    content = first["content"]
    # Of several parts (text, images) there are as many as before and one more.
    disguised = f"\n{content}" if isinstance(content, str) else [{"type": "text", "text": "\n"}, *content]
    return replace(prompt, messages=({**first, "content": disguised}, *rest))


def make_forecast(plan: RunPlan, warm: WarmUp, pilots: Mapping[tuple[str, str], Pilot], overhead_s: float) -> Forecast:
    """Return how long turns take, going by what was seen before the first of them."""
    texts = {}
    for (arm, workload), pilot in pilots.items():
        for condition in plan.conditions:
            pace = warm.pace[arm, condition.label]
            if pilot.tokens:
                texts[arm, workload, condition.label] = _find_pace(condition, pace, warm.counters[arm], pilot)
    return Forecast(
        pace=warm.pace,
        shares={workload.name: _find_share(workload.name, pilots) for workload in plan.workloads},
        texts=texts,
        turn_s=plan.turn_s,
        overhead_s=overhead_s,
    )


def _find_pace(condition: Condition, pace: float, warm: Counters, pilot: Pilot) -> float:
    """Return the seconds per output token of a server on a workload.

    Under a load a step takes as long as in the warm-up, and gives as many tokens as on this text; prompts are
    computed beside it.
    """
    if condition.concurrency == 1:
        return pilot.seconds / pilot.tokens
    before, here = warm.tokens_per_step, pilot.counters.tokens_per_step
    return pace * (before / here if before and here else 1.0) + pilot.first_s / pilot.tokens


def _find_share(workload: str, pilots: Mapping[tuple[str, str], Pilot]) -> float:
    """Return the share of `max_tokens` that outputs reach, on all servers together; all of it where nothing came."""
    mine = [pilot for (_, name), pilot in pilots.items() if name == workload and pilot.tokens]
    return sum(pilot.tokens for pilot in mine) / sum(pilot.allowed for pilot in mine) if mine else 1.0
