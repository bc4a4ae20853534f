"""The requests of a turn: the measured ones, and those that keep the load up before and after them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from draftwise.measure.client import Sending
from draftwise.measure.schedule import Turn

__all__ = ["at", "lead_in", "measured", "unmeasured"]


def measured(turn: Turn) -> Iterator[Sending]:
    """Yield the requests that a turn is about, in their order."""
    copies = turn.copies or (0,) * len(turn.prompts)
    for prompt, copy in zip(turn.prompts, copies, strict=True):
        yield Sending(turn=turn, prompt=prompt, copy=copy)


def unmeasured(turn: Turn) -> Iterator[Sending]:
    """Yield requests that only keep the load up, without end.

    They go through the turn's prompts again, from the last one on, under copies that no measured request has.
    """
    used: Counter[str] = Counter()
    for sending in measured(turn):
        used[sending.prompt.id] = max(used[sending.prompt.id], sending.copy + 1)
    while True:
        for prompt in reversed(turn.prompts):
            yield Sending(turn=turn, prompt=prompt, copy=used[prompt.id], measured=False)
            used[prompt.id] += 1


def lead_in(sending: Sending, number: int, streams: int) -> Sending:
    """Return the first request of stream `number`, cut so that the streams end one after another.

    Streams that begin together would go through their answers in step, which no real load does.
    """
    tokens = max(1, math.ceil(sending.prompt.max_tokens * (number + 1) / streams))
    return replace(sending, prompt=replace(sending.prompt, max_tokens=tokens))


def at(sendings: Iterable[Sending], times: Iterable[float], began: float) -> Iterator[Sending]:
    """Yield requests with the times at which they are to be sent, counted from `began`; ends with the shorter one."""
    for sending, time in zip(sendings, times, strict=False):
        yield replace(sending, intended=began + time)
