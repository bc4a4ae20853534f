"""Prepares the servers for the first measured request: warms each up, and checks that it is the intended one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median

from draftwise.backends import Backend
from draftwise.core import (
    Answer,
    Arm,
    BackendError,
    Condition,
    Counters,
    Finding,
    InvalidSetup,
    Progress,
    Prompt,
    RunPlan,
    Severity,
)
from draftwise.core.finding import join_names
from draftwise.core.progress import check_stop
from draftwise.deciding.validity.server_checks import ON_PURPOSE, find_same_servers
from draftwise.knowledge.messages import fault, note
from draftwise.knowledge.methods import find_method
from draftwise.knowledge.metrics import counts_drafts
from draftwise.measure.device_state import DeviceReader
from draftwise.measure.load.client import Client
from draftwise.measure.roster import Roster
from draftwise.measure.time_estimate import Pace
from draftwise.runs.turn_order import Turn, count_needed, share_out

_WARMUP_TOKENS = 32
_OPEN_STREAMS = 4
"""Streams of a warm-up for loads that do not fix their number."""
_FEWEST_ROUNDS = 2
"""The first round makes a server compile and cache. If a second one is no faster, the server is warm."""
STEPS_AGAIN, ROUNDS_AGAIN = _WARMUP_TOKENS, 2
"""Maximum number of decoding steps of a server in a round of the warm-up at the end of a run, and of rounds."""
_MOST_ROUNDS = 20
_STEADY = 1.15
"""Two rounds whose paces differ by less than this ratio count as alike."""
_NOISY_ROUNDS = 3
"""Rounds on each side of a comparison that shows whether a noisy pace still falls."""
_STILL_FALLS = 0.9
_FAR_MORE = 1.5
"""Growth of the tokens of a step that only remembered answers explain."""
_REFRAIN = "one, two, three, four, five, six, seven, eight, nine, ten;\n"
_TIMES = 4
WARM_UP_LENGTH = _TIMES * len(_REFRAIN)
"""Characters of a warm-up prompt."""
_PAUSES_S = (0.5, 2.0)
"""Pauses before a failed warm-up request is sent again, in seconds."""
_LOOK_S = 0.5
"""Seconds to watch idle servers."""
_IDLE = 0.10
"""Share of the cores that idle servers may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """Result of the warm-up requests, which do not count otherwise."""

    pace: Pace
    decoding: Pace
    """Pace without the time to the first tokens."""
    counters: Mapping[str, Counters]
    """Growth of each server's counters, by arm."""
    unsteady: Mapping[str, str]
    """First load under which a server's pace did not become steady, by arm."""
    fastest: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Minimum seconds per decoding step under the lightest load, and what such a step brought, by arm."""

    def prompt_s(self, arm: str, label: str) -> float:
        """Return the seconds of a server's time that a warm-up prompt took until its first token, under a load."""
        return _WARMUP_TOKENS * max(0.0, self.pace[arm, label] - self.decoding[arm, label])

    def join(self, other: WarmUp) -> WarmUp:
        """Combine the results with those of other servers."""
        return WarmUp(
            pace={**self.pace, **other.pace},
            decoding={**self.decoding, **other.decoding},
            counters={**self.counters, **other.counters},
            unsteady={**self.unsteady, **other.unsteady},
            fastest={**self.fastest, **other.fastest},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    """A prompt answered in each stream of a load: seconds per output token of the server."""

    pace: float
    decoding: float
    """Pace while all streams were decoding."""
    step: float
    """Seconds per decoding step of a stream."""
    per_step: float = 1.0
    """Tokens that such a step brings."""


def make_greeting(plan: RunPlan) -> Prompt:
    """Return the simplest request of the kind that the workloads use."""
    return _warmup_prompt(0, 2, _is_chat(plan))


def presume_warm_prefixes(plan: RunPlan, clients: Mapping[str, Client]) -> RunPlan:
    """Return the plan, with each prompt asked once if prefix caches may recognize repeated prompts.

    The baseline then answers the same prompts once, too, so first tokens come from new prompts on both sides.
    Otherwise, an arm with a cold cache would be compared with one whose cache is warm.
    """
    if not (warm := [name for name, client in clients.items() if not client.keeps_apart]):
        return plan
    reason = f"the prefix cache of {warm[0]} ignores cache_salt, so it may recognize a repeated prompt"
    return replace(plan, remembering={**dict.fromkeys((arm.name for arm in plan.arms[1:]), reason), **plan.remembering})


async def warm_up(
    roster: Roster, group: Sequence[Backend], plan: RunPlan, *, ends_at: float, progress: Progress
) -> WarmUp:
    """Warm servers up under every load, in turns, until all paces are steady.

    The warm-up texts occur in no workload, so they leave nothing useful in a cache. They repeat themselves, so lookup
    finds something to draft. Each server is idle while another one answers, as in the measurement.

    Args:
        roster: the session's servers; those that fail leave it.
        group: servers to warm up.
        plan: the run's plan.
        ends_at: event-loop time after which only the first round of each server and load may begin.
        progress: receives the server being warmed up; may ask to stop.

    Raises:
        BackendError: a server that the session needs does not answer.
    """
    clock = asyncio.get_running_loop().time
    before = await _read_counters(roster, group)
    rounds = {(name, condition): list[_Round]() for name in before for condition in plan.conditions}
    pending = list(rounds)
    for number in range(_MOST_ROUNDS):
        for name, condition in pending:
            if (client := roster.clients.get(name)) is not None and (not number or clock() < ends_at):
                check_stop(progress)
                progress.status(f"warming up {name} at {condition.label}")
                taken = await roster.attempt(client.backend, partial(_take_round, client, condition, plan, number))
                rounds[name, condition] += [] if taken is None else [taken]
        pending = [
            (name, condition)
            for name, condition in pending
            if name in roster.clients
            and not _is_steady([each.pace for each in rounds[name, condition]], _count_rounds(condition, plan))
        ]
        if not pending or clock() >= ends_at:
            break
    grown = {name: after - before[name] for name, after in (await _read_counters(roster, group)).items()}
    last = {(name, condition.label): each[-2:] for (name, condition), each in rounds.items() if name in grown}
    return WarmUp(
        pace={place: median(each.pace for each in two) for place, two in last.items()},
        decoding={place: median(each.decoding for each in two) for place, two in last.items()},
        counters=grown,
        unsteady={name: condition.label for name, condition in reversed(pending) if name in grown},
        fastest={
            name: min((each.step, each.per_step) for each in rounds[name, _find_lightest(plan)]) for name in grown
        },
    )


def _find_lightest(plan: RunPlan) -> Condition:
    return min(plan.conditions, key=lambda each: each.concurrency or math.inf)


async def warm_up_again(client: Client, plan: RunPlan, rounds: int, early: tuple[float, float]) -> float:
    """Return the seconds per decoding step of a warm server on other warm-up prompts (geometric mean).

    A drafter that remembers the first ones drafts more, so its steps take longer. That is no change of pace.

    Args:
        early: seconds per step at first, and what such a step brought.

    Raises:
        BackendError: it does not answer.
    """
    numbers, steps = range(_MOST_ROUNDS, _MOST_ROUNDS + rounds), []
    for number in numbers:
        taken = await _take_round(client, _find_lightest(plan), plan, number)
        more = taken.per_step / early[1]
        steps.append(max(taken.step / more, min(taken.step, early[0])) if more > _FAR_MORE else taken.step)
    return math.pow(math.prod(steps), 1 / len(steps))


async def _read_counters(roster: Roster, group: Iterable[Backend]) -> dict[str, Counters]:
    """Return the counters of those of some servers that answer."""
    found = {}
    for each in group:
        if each.name in roster.clients and (counters := await roster.attempt(each, each.counters)) is not None:
            found[each.name] = counters
    return found


def _count_rounds(condition: Condition, plan: RunPlan) -> int:
    """Return the fewest rounds under a load: those that were asked for are of one request each."""
    return max(_FEWEST_ROUNDS, plan.warmup if condition.concurrency == 1 else 0)


def _is_steady(rounds: Sequence[float], fewest: int) -> bool:
    """Return whether a pace has stopped falling: two rounds are alike, or those that vary are no faster than before."""
    if len(rounds) < fewest:
        return False
    last = rounds[-2:]
    if max(last) <= _STEADY * min(last):
        return True
    before, after = rounds[-2 * _NOISY_ROUNDS : -_NOISY_ROUNDS], rounds[-_NOISY_ROUNDS:]
    return len(before) == _NOISY_ROUNDS and median(after) >= _STILL_FALLS * median(before)


async def _take_round(client: Client, condition: Condition, plan: RunPlan, number: int) -> _Round:
    """Answer a warm-up prompt in each stream of a load."""
    streams = condition.concurrency or _OPEN_STREAMS
    await client.backend.wake()
    began, first = client.backend.now(), number * streams + 1
    answers = await _ask_together(client, condition, plan, range(first, first + streams))
    seconds = client.backend.now() - began
    await client.backend.rest()
    pace = seconds / max(1, sum(answer.timing.num_tokens for answer in answers))
    chunks = [each.timing.chunks for each in answers if each.timing.chunks]
    all_began = max((each[0][0] for each in chunks), default=0.0)
    one_ended = min((each[-1][0] for each in chunks), default=0.0)
    together = [(at, count) for each in chunks for at, count in each if all_began < at <= one_ended]
    # Without drafts each token is a step: several arrive at once where the client stalls.
    steps = sum(count if client.backend.name == plan.arms[0].name else 1 for each in chunks for _, count in each[1:])
    step = sum(each[-1][0] - each[0][0] for each in chunks) / steps if steps else pace
    per_step = sum(count for each in chunks for _, count in each[1:]) / steps if steps else 1.0
    decoding = pace
    if together:
        decoding = (max(at for at, _ in together) - all_began) / sum(count for _, count in together)
    return _Round(pace=pace, decoding=decoding, step=step, per_step=per_step)


async def settle(read_device: DeviceReader, *, ends_at: float, progress: Progress) -> str | None:
    """Wait until idle servers leave the machine idle; return what still keeps it busy, or None.

    Args:
        read_device: reads this machine's state. Without readings, returns at once.
        ends_at: event-loop time after which to stop waiting.
        progress: receives a note about the wait.
    """
    clock = asyncio.get_running_loop().time
    while True:
        check_stop(progress)
        progress.status("waiting for the servers to become idle")
        before, began = await read_device(), clock()
        if "own_s" not in before.get("cpu", {}):
            return None
        await asyncio.sleep(_LOOK_S)
        cpu = (await read_device())["cpu"]
        used = (cpu["own_s"] - before["cpu"]["own_s"]) / (clock() - began)
        if used <= _IDLE * (cpu.get("cores") or 1):
            return None
        if clock() >= ends_at:
            return f"the idle servers still use {used:.2f} of this machine's cores"


async def _ask_together(client: Client, condition: Condition, plan: RunPlan, numbers: range) -> list[Answer]:
    chat, arm = _is_chat(plan), client.backend.name
    turn = Turn(number=-1, arm=arm, workload="", repeat=0, prompts=(), condition=condition)
    prompts = [_warmup_prompt(number, _WARMUP_TOKENS, chat) for number in numbers]
    answers = await asyncio.gather(*(_ask_twice(client, turn, prompt, plan.seed) for prompt in prompts))
    for answer in answers:
        if answer.error is not None:
            raise BackendError(f"{arm}: a warm-up request failed: {answer.error}")
    return answers


async def _ask_twice(client: Client, turn: Turn, prompt: Prompt, seed: int) -> Answer:
    """Return the answer to a warm-up prompt, asked again where a server that was just started gave none."""
    answer = await client.ask(turn, prompt, seed=seed)
    for pause_s in _PAUSES_S if answer.error is not None else ():
        await asyncio.sleep(pause_s)
        answer = await client.ask(turn, prompt, seed=seed)
        if answer.error is None:
            break
    return answer


def _is_chat(plan: RunPlan) -> bool:
    return all(prompt.messages for workload in plan.workloads for prompt in workload.prompts)


def _warmup_prompt(number: int, max_tokens: int, chat: bool) -> Prompt:
    text = f"Warm-up {number}.\n" + _REFRAIN * _TIMES
    if chat:
        return Prompt(id="warm-up", messages=({"role": "user", "content": text},), max_tokens=max_tokens)
    return Prompt(id="warm-up", text=text, max_tokens=max_tokens)


def check_addresses(arms: Sequence[Arm]) -> None:
    """Check that no two arms are the same server.

    Raises:
        InvalidSetup: two arms have one address.
    """
    if found := list(find_same_servers(arms)):
        raise InvalidSetup(found)


def explain_sharing(plan: RunPlan) -> Iterator[Finding]:
    """Yield a note on each candidate that gets each prompt once, and on each workload too short for that."""
    for name, reason in plan.remembering.items():
        yield note("measurement-planned", case="once", name=name, reason=reason)
    yield from _check_shares(plan)


def _check_shares(plan: RunPlan) -> Iterator[Finding]:
    """Yield the workloads that are too short for every load, where a candidate is asked no prompt twice."""
    for workload in plan.workloads if plan.remembering else ():
        carried = {label for label, _ in share_out(plan, workload)}
        if short := [each for each in plan.conditions if each.label not in carried]:
            needed = ", ".join(f"{each.label} needs {count_needed(workload, each, plan.turn_s)}" for each in short)
            at = [each.label for each in plan.conditions if each.label in carried]
            measured = f"measured at {join_names(at)}" if at else "not measured"
            yield Finding.warning(
                "too-few-to-ask-once",
                f"too few prompts ({len(workload.prompts)}) for {join_names(plan.remembering)}, which must see "
                f"each prompt only once: {measured}. {needed} prompts of its own.",
                where=workload.name,
                fix="Give more prompts, fewer loads, or a config that remembers nothing.",
            )


def check_drafting(plan: RunPlan, counters: Mapping[str, Counters], engines: Mapping[str, str | None]) -> list[Finding]:
    """Return what weakens the run, according to the counters' growth in the warm-up.

    Args:
        engines: engine whose metric names each server uses; not all engines count drafts.

    Raises:
        InvalidSetup: the baseline drafted, or a candidate that drafts at every step did not.
    """
    counting = {arm for arm, engine in engines.items() if engine is not None and counts_drafts(engine)}
    found = [*_check_baseline(plan, counters), *_check_candidates(plan, counters, counting)]
    if errors := [finding for finding in found if finding.severity is Severity.ERROR]:
        raise InvalidSetup(errors)
    return found


def _check_baseline(plan: RunPlan, counters: Mapping[str, Counters]) -> Iterator[Finding]:
    baseline, *candidates = plan.arms
    drafted = counters[baseline.name].spec.num_draft_tokens
    if not drafted:
        return
    if silent := [arm.name for arm in candidates if _is_silent(counters[arm.name])]:
        yield fault("swapped-servers", name=baseline.name, drafted=drafted, silent=silent[0])
    else:
        yield fault("plain-speculates", drafted=drafted, name=baseline.name)


def _check_candidates(plan: RunPlan, counters: Mapping[str, Counters], counting: Container[str]) -> Iterator[Finding]:
    baseline, *candidates = plan.arms
    for arm in candidates:
        grown = counters[arm.name]
        if grown.generation_tokens == 0:
            text = "its counters did not move while it answered the warm-up, so they belong to another server."
            yield Finding.error(
                "counters-of-another-server", text, where=arm.name, fix="Pass its own metrics page: --metrics-url."
            )
        elif grown.generation_tokens is None or arm.name not in counting:
            text = "its /metrics has no draft counters, so only its stream can show that it speculates."
            yield Finding.warning(
                "counters-missing", text, where=arm.name, fix="Pass the page that has them: --metrics-url."
            )
        elif _is_silent(grown) and not counters[baseline.name].spec.num_draft_tokens:
            text = f"its server counted no draft in {grown.generation_tokens} tokens of the warm-up"
            always = _always_drafts(arm)
            text += "." if always else "; lookup may have found no match."
            severity = Severity.ERROR if always else Severity.WARNING
            fix = "Check its start-up log for the speculative config that it resolved."
            yield Finding(code="not-speculating", severity=severity, message=text, where=arm.name, fix=fix)


def _always_drafts(arm: Arm) -> bool:
    """Return whether an arm must have drafted: lookup does so only where text repeats, which a warm-up may not do."""
    method = None if arm.spec is None else find_method(arm.spec.method)
    if arm.spec is None or method is None or method.drafts_from in ("none", "text"):
        return False
    return not any(option in arm.spec.options for option in ON_PURPOSE)


def _is_silent(grown: Counters) -> bool:
    return bool(grown.generation_tokens) and not grown.spec.num_drafts
