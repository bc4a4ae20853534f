"""Pilot requests before the first measured one: output lengths, and each server's pace.

Answer lengths vary far more than paces. So the baseline first answers many prompts at once, which gives the lengths for
every arm. Then each server answers a few prompts of its own, one at a time, which gives its pace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice, product, zip_longest
from statistics import fmean, median

from draftwise.backends import Backend
from draftwise.core import Answer, Condition, Counters, Progress, Prompt, RunPlan, Workload
from draftwise.core.progress import check_stop
from draftwise.measure.load.client import Client
from draftwise.measure.output_probes import disguise
from draftwise.measure.readiness import WARM_UP_LENGTH, WarmUp
from draftwise.measure.roster import Roster
from draftwise.measure.time_estimate import TextPace, TimeEstimate
from draftwise.runs.turn_order import Turn
from draftwise.statistics import FEWEST_PROMPTS

_LOOKED_AT = 2
"""Prompts per workload that each server answers one at a time."""
_SPARED_OF = 20
"""Minimum number of prompts with which a workload can spare some."""
_TOGETHER = 16
"""Prompts that the baseline answers in parallel."""
_FIRST_TOKENS, _FEW_TOKENS, _CUT = 16, 64, 1.5
"""Tokens that show a very slow machine, tokens that show the rough pace, and the assumed length of an answer cut there,
as a multiple."""
_MACHINE_S = 15.0
"""Seconds for measuring the machine's pace, plus one answer in progress."""
_PATIENCE_S = 5.0
"""Extra seconds for answers in progress when the time is over."""
_STEP = (5**0.5 - 1) / 2
"""Multiples of the golden ratio modulo 1 are spread evenly for any count."""

Lengths = Mapping[tuple[str, str], int]
"""Output tokens by workload and prompt id."""


@dataclass(slots=True, kw_only=True)
class Pilot:
    """One server's answers to a few prompts of one workload, one at a time."""

    tokens: int = 0
    allowed: int = 0
    """Sum of the prompts' `max_tokens`."""
    firsts_s: list[float] = field(default_factory=list)
    """Time to first token of each prompt, in seconds."""
    decoding_s: float = 0.0
    """Total seconds after the first tokens."""
    counters: Counters = field(default_factory=lambda: Counters(generation_tokens=0))

    def add(self, prompt: Prompt, answer: Answer, growth: Counters) -> None:
        """Add an answer, and the growth of the server's counters."""
        first_s = answer.timing.ttft_s or 0.0
        self.tokens += answer.timing.num_tokens
        self.allowed += prompt.max_tokens
        self.firsts_s.append(first_s)
        self.decoding_s += answer.timing.e2e_s - first_s
        self.counters += growth


def spare_prompts(plan: RunPlan) -> tuple[RunPlan, dict[str, tuple[Prompt, ...]]]:
    """Split the last prompts off long workloads; return the shorter plan and the spared prompts by workload.

    Servers that may remember answers get the spared prompts before the run.
    """
    if not plan.remembering:
        return plan, {}
    spared = {w.name: w.prompts[-_LOOKED_AT:] for w in plan.workloads if len(w.prompts) >= _SPARED_OF}
    workloads = tuple(w.first(len(w.prompts) - _LOOKED_AT) if w.name in spared else w for w in plan.workloads)
    return replace(plan, workloads=workloads), spared


async def look_at_lengths(
    roster: Roster, plan: RunPlan, *, ends_at: float, progress: Progress
) -> dict[tuple[str, str], int]:
    """Return the lengths of the baseline's answers in tokens, by workload and prompt id. The first prompts come first,
    because every cut of the run keeps them.

    Args:
        roster: the session's servers.
        plan: the run's plan.
        ends_at: event-loop time after which to send no more prompts.
        progress: receives the current step; may ask to stop.

    Raises:
        BackendError: the baseline's server failed.
    """
    clock, arm = asyncio.get_running_loop().time, plan.arms[0].name
    client = roster.clients[arm]
    open_ended = ([(w.name, each) for each in w.prompts if not each.ignore_eos] for w in plan.workloads)
    left = filter(None, chain.from_iterable(zip_longest(*open_ended)))
    found: dict[tuple[str, str], int] = {}
    check_stop(progress)
    progress.status(f"measuring the length of {arm}'s answers")
    await client.backend.wake()
    while clock() < ends_at and (together := list(islice(left, _TOGETHER))):
        # As they are, a cache of answers in front of the server would know them in their turns.
        asked = [(_make_turn(arm, name, plan), disguise(prompt)) for name, prompt in together]
        asking = {
            asyncio.create_task(client.ask(*each, seed=plan.seed)): place
            for each, place in zip(asked, together, strict=True)
        }
        # Answers that take far longer than the look may are given up: their lengths are not worth the time.
        done, late = await asyncio.wait(asking, timeout=max(0.0, ends_at - clock()) + _PATIENCE_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        await asyncio.gather(*done)
        for task in done:
            name, prompt = asking[task]
            if (answer := task.result()).error is None:
                found[name, prompt.id] = answer.timing.num_tokens
    await client.backend.rest()
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinePace:
    """How fast a machine answers, from the beginnings of a few baseline answers."""

    prompts_s: Mapping[str, float]
    """Expected seconds of one request of each workload."""
    first_s: float
    """Longest time to first token, in seconds."""
    per_token_s: float

    def expect_s(self, workloads: Iterable[str], loads: int) -> float:
        """Estimate the seconds that a server like this one takes for the fewest prompts that allow a verdict."""
        return FEWEST_PROMPTS * loads * sum(self.prompts_s[name] for name in workloads)


async def look_at_machine(client: Client, plan: RunPlan) -> MachinePace:
    """Estimate a machine's pace from the beginning of one answer per workload, in about 15 seconds.

    A workload for which no time is left is assumed to be like the others. An answer that is cut is assumed to continue
    (`_CUT`).

    Raises:
        BackendError: the server failed.
    """
    clock = asyncio.get_running_loop().time
    began, most = clock(), _FEW_TOKENS
    seconds: dict[str, float] = {}
    firsts_s, paces_s = [0.0], [0.0]
    await client.backend.wake()
    for number, workload in enumerate(plan.workloads):
        left_s = _MACHINE_S - (clock() - began)
        if number and left_s <= 0:
            break
        last = workload.prompts[-1]
        asked = replace(disguise(last), max_tokens=min(most, _FIRST_TOKENS if not number else most, last.max_tokens))
        answer = await client.ask(_make_turn(client.backend.name, workload.name, plan), asked, seed=plan.seed)
        first_s, tokens = answer.timing.ttft_s or answer.timing.e2e_s, answer.timing.num_tokens
        per_token_s = (answer.timing.e2e_s - first_s) / (tokens - 1) if tokens > 1 else max(paces_s)
        expected = min(last.max_tokens, _CUT * _FEW_TOKENS) if tokens >= asked.max_tokens else tokens
        seconds[workload.name] = first_s + per_token_s * max(0.0, expected - 1)
        firsts_s.append(first_s)
        paces_s.append(per_token_s)
        share_s = max(0.0, left_s - (clock() - began)) / max(1, len(plan.workloads) - number - 1)
        most = max(_FIRST_TOKENS, min(_FEW_TOKENS, int(share_s / per_token_s))) if per_token_s else _FEW_TOKENS
    await client.backend.rest()
    usual_s = fmean(seconds.values())
    return MachinePace(
        prompts_s={each.name: seconds.get(each.name, usual_s) for each in plan.workloads},
        first_s=max(firsts_s),
        per_token_s=max(paces_s),
    )


async def look_at_paces(
    roster: Roster,
    group: Sequence[Backend],
    plan: RunPlan,
    spared: Mapping[str, tuple[Prompt, ...]],
    *,
    ends_at: float,
    progress: Progress,
) -> dict[tuple[str, str], Pilot]:
    """Return each server's answers to a few prompts, one at a time, by arm and workload.

    Each server gets different prompts, short and long ones, so one unusual prompt does not distort all of them. Servers
    that may remember answers get only spared prompts. Every prompt comes behind a line break, so it does not enter a
    prefix cache before its turn.

    Args:
        roster: the session's servers; those that fail leave it.
        group: servers to ask.
        plan: the run's plan.
        spared: prompts that no turn uses, by workload.
        ends_at: event-loop time after which to send no more prompts.
        progress: receives the current step; may ask to stop.
    """
    clock, arms = asyncio.get_running_loop().time, [arm.name for arm in plan.arms]
    spread = {each.name: _spread(each, _LOOKED_AT * len(arms)) for each in plan.workloads}
    found: dict[tuple[str, str], Pilot] = {}
    for number, backend, workload in product(range(_LOOKED_AT), group, plan.workloads):
        arm, client = backend.name, roster.clients.get(backend.name)
        own = spread[workload.name][arms.index(arm) :: len(arms)]
        prompts = spared.get(workload.name, ()) if arm in plan.remembering else own
        if client is not None and number < len(prompts) and clock() < ends_at:
            check_stop(progress)
            progress.status(f"measuring {arm}'s answers to {workload.name}")
            pilot = found.setdefault((arm, workload.name), Pilot())
            asked = disguise(prompts[number])
            await roster.attempt(backend, partial(_ask, client, workload, asked, plan, pilot))
    return {place: pilot for place, pilot in found.items() if place[0] in roster.clients}


def _spread(workload: Workload, count: int) -> list[Prompt]:
    """Return `count` prompts, short and long; any first few of them are spread over all lengths too."""
    by_length = sorted(workload.prompts, key=_measure_length)
    return [by_length[int((number + 0.5) * _STEP % 1 * len(by_length))] for number in range(count)]


def _measure_length(prompt: Prompt) -> int:
    """Return roughly how many characters a prompt has."""
    text, messages = prompt.content
    return len(text or "") + len(messages)


def _make_turn(arm: str, workload: str, plan: RunPlan) -> Turn:
    return Turn(number=-1, arm=arm, workload=workload, repeat=0, prompts=(), condition=plan.conditions[0])


async def _ask(client: Client, workload: Workload, prompt: Prompt, plan: RunPlan, pilot: Pilot) -> None:
    backend = client.backend
    turn = _make_turn(backend.name, workload.name, plan)
    await backend.wake()
    before = await backend.counters()
    answer = await client.ask(turn, prompt, seed=plan.seed)
    pilot.add(prompt, answer, await backend.counters() - before)
    await backend.rest()


def make_estimate(
    plan: RunPlan, warm: WarmUp, lengths: Lengths, pilots: Mapping[tuple[str, str], Pilot], overhead_s: float
) -> TimeEstimate:
    """Estimate how long turns take, from the warm-up and the pilot requests."""
    texts = {}
    times_longer = {each.name: _compare_length(each) for each in plan.workloads}
    for (arm, workload), pilot in pilots.items():
        # Of all servers together: what held up one of them once says nothing of its pace.
        first_s = median(chain.from_iterable(each.firsts_s for (_, name), each in pilots.items() if name == workload))
        for condition in plan.conditions:
            if pilot.tokens:
                place = arm, condition.label
                per_token_s = _find_pace(condition, warm.decoding[place], warm.counters[arm], pilot)
                # Alone, a first token waits for a step and its way through the server; under a load others share these.
                alone = condition.concurrency == 1
                prompt_s = first_s if alone else min(first_s, warm.prompt_s(*place) * times_longer[workload])
                texts[arm, workload, condition.label] = TextPace(first_s=prompt_s, per_token_s=per_token_s)
    return TimeEstimate(
        pace=warm.pace,
        lengths=lengths,
        shares={workload.name: _find_share(workload, lengths, pilots) for workload in plan.workloads},
        texts=texts,
        turn_s=plan.turn_s,
        overhead_s=overhead_s,
        conditions=plan.conditions,
    )


def _compare_length(workload: Workload) -> float:
    """Return how many times as long as a warm-up prompt those of a workload are; 1 where they are shorter."""
    return max(1.0, median(map(_measure_length, workload.prompts)) / WARM_UP_LENGTH)


def _find_pace(condition: Condition, decoding: float, warm: Counters, pilot: Pilot) -> float:
    """Return the seconds of an output token of a server on a workload.

    Under a load a step takes as long as in the warm-up, and gives as many tokens as on this text; prompts are
    computed with it.
    """
    if condition.concurrency == 1:
        return pilot.decoding_s / pilot.tokens
    before, here = warm.tokens_per_step, pilot.counters.tokens_per_step
    return decoding * (before / here if before and here else 1.0)


def _find_share(workload: Workload, lengths: Lengths, pilots: Mapping[tuple[str, str], Pilot]) -> float:
    """Return the share of `max_tokens` that outputs reach; all of it where nothing came."""
    places = ((prompt, lengths.get((workload.name, prompt.id))) for prompt in workload.prompts)
    known = [(tokens, prompt.max_tokens) for prompt, tokens in places if tokens is not None]
    known = known or [(each.tokens, each.allowed) for (_, name), each in pilots.items() if name == workload.name]
    tokens = sum(each for each, _ in known)
    return tokens / sum(allowed for _, allowed in known) if tokens else 1.0
