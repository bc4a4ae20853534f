"""Compares greedy answers outside all turns: whether the models are equal, and how far rounding reaches."""

from __future__ import annotations

import asyncio
import math
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
_PROBE_TOKENS, _TOKEN_CHARS = 24, 4
"""Tokens of a probe's answer, and characters of a token where a server tells no ids."""
_NULL, _NULL_OF = 16, 5
"""Prompts that plain decoding answers again in another batch shape: at least the first number, or one in `_NULL_OF`."""
_NULL_TOKENS = 96
_WIDEST = 16
_DEFAULT_K = 5


def needs_probes(plan: RunPlan) -> bool:
    """Return whether a plan has no load at temperature 0, where outputs are compared one by one."""
    return all(condition.temperature > 0 for condition in plan.conditions)


async def answer_greedily(client: Client, plan: RunPlan, prompts: Sequence[tuple[str, Prompt]]) -> list[Answer | None]:
    """Return a server's greedy answers to prompts, one at a time; None for each prompt that failed."""
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
    """Return a few shortened prompts from all workloads, each behind a line break to miss every prefix cache."""
    each_workload = ([(workload.name, prompt) for prompt in workload.prompts[:_PROBES]] for workload in plan.workloads)
    mixed = islice(filter(None, chain.from_iterable(zip_longest(*each_workload))), _PROBES)
    return [
        (name, replace(disguise(prompt), max_tokens=min(_PROBE_TOKENS, prompt.max_tokens))) for name, prompt in mixed
    ]


async def compare_probes(
    baseline: Sequence[Answer | None], candidate: Sequence[Answer | None], clients: Mapping[str, Client]
) -> list[OutputProbe]:
    """Compare a candidate's greedy answers with the baseline's, with the log-probability gap where they diverge."""
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
    has_ids = bool(theirs.token_ids and ours.token_ids)
    pairs = (theirs.token_ids, ours.token_ids) if has_ids else (theirs.text, ours.text)
    size = 1 if has_ids else _TOKEN_CHARS
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*pairs, strict=False))) // size
    longest = math.ceil(max(map(len, pairs)) / size)
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
    """Ask the baseline for its greedy answers again, several at once, in a batch shaped like one with drafts.

    Args:
        answers: measured greedy answers of the baseline.
        client: client of the baseline's server.
        ends_at: event-loop time after which to ask no more. None: no limit.
        keep: called with each answer that differs from the first one.
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
    """Return a prompt behind a line break, so it does not enter a prefix cache before its turn."""
    if prompt.text is not None:
        return replace(prompt, text=f"\n{prompt.text}")
    first, *rest = prompt.messages
    content = first["content"]
    # Of several parts (text, images) there are as many as before and one more.
    disguised = f"\n{content}" if isinstance(content, str) else [{"type": "text", "text": "\n"}, *(content or ())]
    return replace(prompt, messages=({**first, "content": disguised}, *rest))
