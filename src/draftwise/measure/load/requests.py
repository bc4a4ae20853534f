"""The requests of a turn: the measured ones, and background requests that keep the load up before and after them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from heapq import heapify, heapreplace
from itertools import chain, cycle, islice

from draftwise.core import Prompt
from draftwise.measure.load.client import LoadRequest
from draftwise.runs.schedule import Turn

__all__ = ["background_requests", "fill_streams", "measured_requests", "set_times"]


def measured_requests(turn: Turn) -> Iterator[LoadRequest]:
    """Yield the requests that a turn is about, in their order."""
    copies = turn.copies or (0,) * len(turn.prompts)
    for prompt, copy in zip(turn.prompts, copies, strict=True):
        yield LoadRequest(turn=turn, prompt=prompt, copy=copy)


def background_requests(turn: Turn, ramp_up: int = 0) -> Iterator[LoadRequest]:
    """Yield requests that only keep the load up, under copies that no measured request has.

    The first `ramp_up` of them precede the measured requests, one for each stream. Where the turn has prompts of their
    own for them, each is sent once. Else they go on without end: those before the measured requests take the prompts
    that are measured last, those after them the prompts that were measured first, so that what a server's prefix cache
    holds of these speeds up no measured request any more.
    """
    used: Counter[str] = Counter()
    for request in measured_requests(turn):
        used[request.prompt.id] = max(used[request.prompt.id], request.copy + 1)
    endless = chain(islice(cycle(reversed(turn.prompts)), ramp_up), cycle(turn.prompts))
    for number, prompt in enumerate(endless if turn.background is None else turn.background):
        request = LoadRequest(turn=turn, prompt=prompt, copy=used[prompt.id], measured=False)
        yield _shorten(request, (number + 1) / ramp_up) if number < ramp_up else request
        used[prompt.id] += 1


def _shorten(request: LoadRequest, share: float) -> LoadRequest:
    """Return a ramp-up request of its own length: streams that begin together would stay in step, unlike real load."""
    tokens = max(1, math.ceil(request.prompt.max_tokens * share))
    return replace(request, prompt=replace(request.prompt, max_tokens=tokens))


def fill_streams(turn: Turn, streams: int, count_tokens: Callable[[Prompt], float]) -> tuple[int, float]:
    """Return what a closed loop of several streams comes to if all of them write at one pace.

    Args:
        turn: under this load.
        streams: its requests in flight.
        count_tokens: the length of the answer to a prompt.

    Returns:
        The requests that are sent, and the tokens that each stream writes until the last measured request is answered.
    """
    others = background_requests(turn, streams)
    free_at = [count_tokens(request.prompt) for request in islice(others, streams)] or [0.0]
    heapify(free_at)
    sent, end = len(free_at), 0.0
    for request in measured_requests(turn):
        done_at = free_at[0] + count_tokens(request.prompt)
        heapreplace(free_at, done_at)
        sent, end = sent + 1, max(end, done_at)
    while free_at[0] < end and (another := next(others, None)) is not None:
        heapreplace(free_at, free_at[0] + max(1.0, count_tokens(another.prompt)))
        sent += 1
    return sent, end


def set_times(requests: Iterable[LoadRequest], times: Iterable[float], began: float) -> Iterator[LoadRequest]:
    """Yield requests with the times at which they are to be sent, counted from `began`; ends with the shorter one."""
    for request, time in zip(requests, times, strict=False):
        yield replace(request, intended=began + time)
