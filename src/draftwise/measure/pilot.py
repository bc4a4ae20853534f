"""A look at outputs before the first measured request: how long they are, and how fast each server writes them.

Lengths of answers differ far more than paces. So the baseline answers many prompts at once, which tells lengths of any
arm, and every server then answers few prompts, one at a time and each server others, which tells its pace.
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
"""Prompts of each workload that every server is asked one at a time."""
_SPARED_OF = 20
"""Prompts of a workload from which on it can spare some."""
_TOGETHER = 16
"""Prompts that the baseline answers at once."""
_FIRST_TOKENS, _FEW_TOKENS, _CUT = 16, 64, 1.5
"""Tokens that tell whether a machine is very slow, and roughly how fast it is; how many times as long an answer that
they cut is taken to be."""
_MACHINE_S = 15.0
"""Seconds of the look at how fast a machine is; one answer more is waited for."""
_PATIENCE_S = 5.0
"""Wait for these answers when the time of the look is over."""
_STEP = (5**0.5 - 1) / 2
"""Multiples of the golden ratio, taken modulo 1, are spread evenly however many of them there are."""

Lengths = Mapping[tuple[str, str], int]
"""Output tokens by workload and prompt id."""


@dataclass(slots=True, kw_only=True)
class Pilot:
    """What one server made of a few prompts of one workload, one at a time."""

    tokens: int = 0
    allowed: int = 0
    """`max_tokens` of the prompts together."""
    firsts_s: list[float] = field(default_factory=list)
    """Seconds until the first token, prompt by prompt."""
    decoding_s: float = 0.0
    """All seconds after that together."""
    counters: Counters = field(default_factory=lambda: Counters(generation_tokens=0))

    def add(self, prompt: Prompt, answer: Answer, growth: Counters) -> None:
        """Take in an answer, and what the server's counters grew by."""
        first_s = answer.timing.ttft_s or 0.0
        self.tokens += answer.timing.num_tokens
        self.allowed += prompt.max_tokens
        self.firsts_s.append(first_s)
        self.decoding_s += answer.timing.e2e_s - first_s
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


async def look_at_lengths(
    roster: Roster, plan: RunPlan, *, ends_at: float, progress: Progress
) -> dict[tuple[str, str], int]:
    """Return how long the baseline's answers are, by workload and prompt id: those of the first prompts, which are in
    the run however it is cut.

    Args:
        roster: of the session.
        plan: of the run.
        ends_at: on the clock of the event loop: after it no further prompts are asked.
        progress: receives what is asked; the look ends when it asks to stop.

    Raises:
        BackendError: the baseline's server broke.
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
        # Where its prefix cache goes by the salt they are asked as they are, and as long as in their turns.
        hidden = [prompt if client.keeps_apart else disguise(prompt) for _, prompt in together]
        asked = [(_make_turn(arm, name, plan), each) for (name, _), each in zip(together, hidden, strict=True)]
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
    """How fast a machine answers, going by the beginnings of a few answers of the baseline."""

    prompts_s: Mapping[str, float]
    """Seconds of a prompt of each workload."""
    first_s: float
    """The longest wait for a first token."""
    per_token_s: float

    def expect_s(self, workloads: Iterable[str], loads: int) -> float:
        """Return about how many seconds the fewest prompts that decide anything take of a server like this one."""
        return FEWEST_PROMPTS * loads * sum(self.prompts_s[name] for name in workloads)


async def look_at_machine(client: Client, plan: RunPlan) -> MachinePace:
    """Return how fast a machine is, from the beginning of one answer of each workload, in a quarter of a minute.

    A workload for which no time is left is taken to be like the others; an answer that is cut is taken to be
    half as long again.

    Raises:
        BackendError: it broke.
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
    """Return what servers make of a few prompts, one at a time, by arm and workload.

    Each is asked others, short and long ones, so that a prompt that is answered unlike the rest does not count for all.
    Servers that could remember prompts of the run are asked such as are in no turn, where there are any. Every prompt
    comes behind a line break, so that no cache holds it before its turn.

    Args:
        roster: of the session; servers that fail leave it.
        group: those to ask.
        plan: of the run.
        spared: prompts that are in no turn, by workload.
        ends_at: on the clock of the event loop: after it no one is asked.
        progress: receives what is asked; the look ends when it asks to stop.
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
    """Return how long turns take, going by what was seen before the first of them."""
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
