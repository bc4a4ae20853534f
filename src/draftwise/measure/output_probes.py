"""Greedy answers outside of all turns: whether a candidate serves the baseline's model, and how far rounding goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice, takewhile, zip_longest

from draftwise.core import Answer, BackendError, Condition, OutputProbe, Prompt, RunPlan
from draftwise.deciding.comparison.cell import OutputDifference, find_difference
from draftwise.measure.divergences import ask, conclude
from draftwise.measure.load.client import Client
from draftwise.runs.turn_order import Turn

_PROBES = 8
_PROBE_TOKENS = 24
_NULL, _NULL_OF = 16, 5
"""Prompts that plain decoding answers again in batches of another shape: a minimum, and one in this many of all."""
_NULL_TOKENS = 96
_WIDEST = 16
_DEFAULT_K = 5


def needs_probes(plan: RunPlan) -> bool:
    """Return whether no load of a plan compares outputs one by one."""
    return all(condition.temperature > 0 for condition in plan.conditions)


async def answer_greedily(client: Client, plan: RunPlan, prompts: Sequence[tuple[str, Prompt]]) -> list[Answer | None]:
    """Return a server's greedy answers to prompts, one at a time; None for those that it failed."""
    found: list[Answer | None] = []
    await client.backend.wake()
    for workload, prompt in prompts:
        with suppress(BackendError):
            answer = await client.ask(_turn(client, workload), prompt, seed=plan.seed)
            found.append(answer if answer.error is None else None)
            continue
        found.append(None)
    await client.backend.rest()
    return found


def choose_probes(plan: RunPlan) -> list[tuple[str, Prompt]]:
    """Return a few prompts of all workloads, shortened, behind a line break: no cache holds them before their turns."""
    each_workload = ([(workload.name, prompt) for prompt in workload.prompts[:_PROBES]] for workload in plan.workloads)
    mixed = islice(filter(None, chain.from_iterable(zip_longest(*each_workload))), _PROBES)
    return [
        (name, replace(disguise(prompt), max_tokens=min(_PROBE_TOKENS, prompt.max_tokens))) for name, prompt in mixed
    ]


async def compare_probes(
    baseline: Sequence[Answer | None], candidate: Sequence[Answer | None], clients: Mapping[str, Client]
) -> list[OutputProbe]:
    """Return how a candidate's greedy answers compare with the baseline's, with the gap where they part."""
    probes = []
    for theirs, ours in zip(baseline, candidate, strict=True):
        if theirs is not None and ours is not None:
            difference = find_difference((theirs.workload, theirs.prompt_id), theirs, ours)
            gap = None
            if difference is not None and difference.position is not None and ours.arm in clients:
                views = [await ask(difference, clients[each.arm]) for each in (theirs, ours)]
                gap = conclude(difference, views).gap
            probes.append(_describe(theirs, ours, gap))
    return probes


def _describe(theirs: Answer, ours: Answer, gap: float | None) -> OutputProbe:
    pairs = (theirs.token_ids, ours.token_ids) if theirs.token_ids and ours.token_ids else (theirs.text, ours.text)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*pairs, strict=False)))
    longest = max(map(len, pairs))
    return OutputProbe(
        arm=ours.arm,
        workload=ours.workload,
        prompt_id=ours.prompt_id,
        tokens=longest,
        shared=longest if pairs[0] == pairs[1] else shared,
        gap=gap,
    )


async def find_null(
    plan: RunPlan,
    answers: Sequence[Answer],
    client: Client,
    *,
    ends_at: float | None,
    keep: Callable[[OutputDifference], None],
) -> None:
    """Ask the baseline for its own greedy answers again, several at once, as a candidate verifies its drafts.

    Args:
        answers: greedy ones of the baseline that were measured.
        client: reaches the baseline's server.
        ends_at: a time on the clock of the event loop: no more are asked after it.
        keep: given each answer that is not what it was.
    """
    clock = asyncio.get_running_loop().time
    prompts = {(workload.name, prompt.id): prompt for workload in plan.workloads for prompt in workload.prompts}
    first: dict[tuple[str, str], Answer] = {}
    for answer in answers:
        first.setdefault((answer.workload, answer.prompt_id), answer)
    wanted = [(unit, each) for unit, each in first.items() if unit in prompts][: max(_NULL, len(first) // _NULL_OF)]
    lengths = [arm.spec.num_speculative_tokens or _DEFAULT_K for arm in plan.arms if arm.spec is not None]
    width = min(_WIDEST, 1 + max(lengths, default=_DEFAULT_K))
    await client.backend.wake()
    for begin in range(0, len(wanted), width):
        if ends_at is not None and clock() >= ends_at:
            break
        together = wanted[begin : begin + width]
        asked = [_shorten(prompts[unit], _NULL_TOKENS) for unit, _ in together]
        again = await asyncio.gather(
            *(
                client.ask(_turn(client, unit[0]), prompt, seed=plan.seed)
                for (unit, _), prompt in zip(together, asked, strict=True)
            ),
            return_exceptions=True,
        )
        for (unit, before), now in zip(together, again, strict=True):
            if isinstance(now, Answer) and now.error is None:
                cut = replace(
                    before, token_ids=before.token_ids[: len(now.token_ids)], text=before.text[: len(now.text)]
                )
                if (difference := find_difference(unit, cut, now)) is not None:
                    keep(difference)


def _shorten(prompt: Prompt, tokens: int) -> Prompt:
    return replace(prompt, max_tokens=min(tokens, prompt.max_tokens))


def _turn(client: Client, workload: str) -> Turn:
    return Turn(number=-1, arm=client.backend.name, workload=workload, repeat=0, prompts=(), condition=Condition())


def disguise(prompt: Prompt) -> Prompt:
    """Return a prompt behind a line break, so that no cache holds it before its turn."""
    if prompt.text is not None:
        return replace(prompt, text=f"\n{prompt.text}")
    first, *rest = prompt.messages
    content = first["content"]
    # Of several parts (text, images) there are as many as before and one more.
    disguised = f"\n{content}" if isinstance(content, str) else [{"type": "text", "text": "\n"}, *content]
    return replace(prompt, messages=({**first, "content": disguised}, *rest))
