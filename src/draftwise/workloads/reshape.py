"""Draws prompts spread over a log, and reshapes them: length buckets, common beginnings, lengths of answers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random
from statistics import median
from typing import Any

from draftwise.core import Origin, Prompt
from draftwise.workloads.conversation import as_chat, as_completion, plain_text
from draftwise.workloads.text_lengths import Length, TextSource, Tokens
from draftwise.workloads.workload_spec import RequestForm

Prompts = tuple[Prompt, ...]


def prompt_length(prompt: Prompt, tokens: Tokens) -> int:
    """Return the tokens of a prompt's texts, without those that a chat template adds."""
    if prompt.text is not None:
        return tokens.count(prompt.text)
    if not prompt.messages:
        return len(prompt.recorded.prompt_token_ids)
    return sum(map(tokens.count, list_texts(prompt)))


def list_texts(prompt: Prompt) -> list[str]:
    """Return the texts of a prompt: its own, or those of its messages without images and calls."""
    if prompt.text is not None:
        return [prompt.text]
    return [plain_text(message.get("content")) for message in prompt.messages]


def in_bucket(prompts: Prompts, bucket: tuple[int, int | None], tokens: Tokens) -> Prompts:
    """Return the prompts with a length in [low, high) tokens."""
    low, high = bucket
    lengths = [prompt_length(prompt, tokens) for prompt in prompts]
    return tuple(
        prompt
        for prompt, length in zip(prompts, lengths, strict=True)
        if low <= length and (high is None or length < high)
    )


def split_by_length(prompts: Prompts, edges: Sequence[int], tokens: Tokens) -> dict[str, Prompts]:
    """Return the prompts by length bucket `low-high` (end excluded), empty buckets included."""
    ends = [0, *edges, None]
    buckets = [(low, high) for low, high in pairwise(ends) if low is not None]
    return {f"{low}-{'' if high is None else high}": in_bucket(prompts, (low, high), tokens) for low, high in buckets}


def set_form(prompts: Prompts, form: RequestForm) -> Prompts:
    """Return the prompts for the chat or the completion endpoint."""
    return tuple(_formed(prompt, form) for prompt in prompts)


def _formed(prompt: Prompt, form: RequestForm) -> Prompt:
    if form is RequestForm.CHAT and prompt.text is not None:
        return replace(prompt, text=None, messages=as_chat(prompt.text))
    if form is RequestForm.COMPLETION and prompt.text is None:
        return replace(prompt, text=as_completion(prompt.messages), messages=())
    return prompt


def set_outputs(prompts: Prompts, *, length: Length | None, force: bool | None, seed: int) -> Prompts:
    """Return the prompts with drawn answer lengths, forced or not; None leaves either unchanged."""
    rng = random.Random(f"{seed}-outputs")
    return tuple(
        replace(
            prompt,
            max_tokens=prompt.max_tokens if length is None else length.draw(rng),
            ignore_eos=prompt.ignore_eos if force is None else force,
        )
        for prompt in prompts
    )


def share_prefixes(prompts: Prompts, *, length: int, groups: int, source: TextSource, seed: int) -> Prompts:
    """Return the prompts with common prefixes of `length` tokens: the i-th has that of group i modulo `groups`.

    In a chat, the prefix is a system message before any other; a text begins with it.
    """
    common = [source.text(length, group, random.Random(f"{seed}-prefix-{group}")) for group in range(groups)]
    return tuple(_prefixed(prompt, common[place % groups]) for place, prompt in enumerate(prompts))


def _prefixed(prompt: Prompt, common: str) -> Prompt:
    if prompt.text is not None:
        return replace(prompt, text=f"{common}\n\n{prompt.text}")
    first, rest = prompt.messages[0], prompt.messages[1:]
    if first["role"] == "system":
        # One system message: several chat templates refuse a second one.
        merged: dict[str, Any] = {**first, "content": f"{common}\n\n{plain_text(first['content'])}"}
        return replace(prompt, messages=(merged, *rest))
    return replace(prompt, messages=({"role": "system", "content": common}, *prompt.messages))


_STEP = (5**0.5 - 1) / 2
"""Multiples of the golden ratio, taken modulo 1, are spread evenly however many of them there are."""
_LONG = 4
"""Multiple of a log's median length above which prompts or answers are a part of the traffic of their own."""
_FEW = 5
"""Tenants up to which nothing can be said of others: they are parts of the traffic with a name."""


def draw(prompts: Sequence[Prompt], seed: int, name: str) -> tuple[Prompt, ...]:
    """Return all prompts in an order from which a run may take as many as it has time for.

    Sorts them by their place (`Origin`), starts where the seed says, and steps by the golden section of the whole. So
    every beginning has each route, tenant and hour by its share. One prompt of each tenant first would overweight small
    tenants.

    Args:
        prompts: prompts with their origins.
        seed: seed of the run.
        name: name of the workload, so that two workloads are drawn differently.
    """
    alike = sorted(prompts, key=lambda each: each.origin.place if each.origin is not None else 0)
    return tuple(alike[place] for place in spread_places(len(alike), Random(f"{seed}/{name}").random()))


def spread_places(count: int, begin: float) -> Iterator[int]:
    """Yield the numbers below `count`, each once, in an order whose every beginning is spread over all of them."""
    following = list(range(count + 1))  # of each place the next free one, or a place on the way there

    def find(place: int) -> int:
        root = place
        while following[root] != root:
            root = following[root]
        while following[place] != root:
            following[place], place = root, following[place]
        return root

    for number in range(count):
        place = find(int((begin + number * _STEP) % 1 * count))
        if place == count:
            place = find(0)
        following[place] = place + 1
        yield place


def locate(prompts: Iterable[Prompt]) -> tuple[Prompt, ...]:
    """Return prompts with their origins, in the order of the log."""
    prompts = tuple(prompts)
    tenants = Counter(each.recorded.tenant for each in prompts if each.recorded.tenant is not None)
    few = 1 < len(tenants) <= _FEW
    long_prompts, long_answers = (
        _find_long(list(map(measure, prompts))) for measure in (_count_asked, _count_answered)
    )

    def find(row: int, prompt: Prompt) -> Origin:
        recorded, tenant = prompt.recorded, prompt.recorded.tenant or ""
        lengths = ("long prompt" if row in long_prompts else "", "long answer" if row in long_answers else "")
        return Origin(
            row=row,
            place=row,
            route="/".join(filter(None, (recorded.route, tenant if few else "", *lengths))),
            cluster=tenant if len(tenants) > _FEW else recorded.conversation or "",
            stretch=0 if prompt.origin is None else prompt.origin.stretch,
        )

    origins = [find(row, prompt) for row, prompt in enumerate(prompts)]
    begins: dict[str, int] = {}
    for each in origins:
        begins.setdefault(each.cluster, each.row)
    alike = sorted(origins, key=lambda each: (each.route, begins[each.cluster] if each.cluster else each.row, each.row))
    places = {each.row: place for place, each in enumerate(alike)}
    return tuple(
        replace(prompt, origin=replace(each, place=places[each.row]))
        for prompt, each in zip(prompts, origins, strict=True)
    )


def _find_long(lengths: Sequence[float]) -> set[int]:
    """Return the rows of the log that are far longer than most: the draw must not miss them, as they may lose alone."""
    least = _LONG * median(lengths) if lengths else 0
    return {row for row, length in enumerate(lengths) if length > least}


def _count_asked(prompt: Prompt) -> float:
    """Return the length of a prompt, about in characters."""
    contents = (plain_text(message.get("content")) for message in prompt.messages)
    return len(prompt.text or "") + sum(map(len, contents)) or 4 * len(prompt.recorded.prompt_token_ids)


def _count_answered(prompt: Prompt) -> float:
    """Return the tokens of an answer as recorded, else the most that is asked for."""
    recorded = prompt.recorded
    return recorded.num_tokens or len(recorded.answer or "") / 4 or prompt.max_tokens or 0
