"""The requests of a turn: the measured ones, and those that keep the load up before and after them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, cycle, islice

from draftwise.measure.load.client import Sending
from draftwise.runs.schedule import Turn

__all__ = ["at", "measured", "unmeasured"]


def measured(turn: Turn) -> Iterator[Sending]:
    """Yield the requests that a turn is about, in their order."""
    copies = turn.copies or (0,) * len(turn.prompts)
    for prompt, copy in zip(turn.prompts, copies, strict=True):
        yield Sending(turn=turn, prompt=prompt, copy=copy)


def unmeasured(turn: Turn, streams: int = 0) -> Iterator[Sending]:
    """Yield requests that only keep the load up, without end, under copies that no measured request has.

    The first ones are the lead-ins of so many streams; they take the prompts that are measured last. Fillers take
    those that were measured first: what a server remembers of them has no measured request to help any more.
    """
    used: Counter[str] = Counter()
    for sending in measured(turn):
        used[sending.prompt.id] = max(used[sending.prompt.id], sending.copy + 1)
    prompts = chain(islice(cycle(reversed(turn.prompts)), streams), cycle(turn.prompts))
    for number, prompt in enumerate(prompts):
        sending = Sending(turn=turn, prompt=prompt, copy=used[prompt.id], measured=False)
        yield _cut(sending, (number + 1) / streams) if number < streams else sending
        used[prompt.id] += 1


def _cut(sending: Sending, share: float) -> Sending:
    """Return a lead-in of a length of its own: streams that begin together would stay in step, as no real load does."""
    tokens = max(1, math.ceil(sending.prompt.max_tokens * share))
    return replace(sending, prompt=replace(sending.prompt, max_tokens=tokens))


def at(sendings: Iterable[Sending], times: Iterable[float], began: float) -> Iterator[Sending]:
    """Yield requests with the times at which they are to be sent, counted from `began`; ends with the shorter one."""
    for sending, time in zip(sendings, times, strict=False):
        yield replace(sending, intended=began + time)
