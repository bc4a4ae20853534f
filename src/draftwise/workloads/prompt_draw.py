"""Draws prompts over a log, in an order whose every beginning is spread over the whole log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from random import Random

from draftwise.core import Origin, Prompt

_STEP = (5**0.5 - 1) / 2
"""Multiples of the golden ratio, taken modulo 1, are spread evenly however many of them there are."""
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

    def find(row: int, prompt: Prompt) -> Origin:
        recorded, tenant = prompt.recorded, prompt.recorded.tenant or ""
        return Origin(
            row=row,
            place=row,
            route="/".join(filter(None, (recorded.route, tenant if few else ""))),
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
