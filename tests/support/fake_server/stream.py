"""One request inside a pretend server: its answer, its fate, and the record of what really happened to it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle
from typing import Protocol

from tests.support.fake_server.answer import FakeAnswer
from tests.support.fake_server.script import FakeScript

__all__ = ["Outlet", "Served", "Stream", "make_acceptance"]


class Outlet(Protocol):
    """Takes the bytes of one answer."""

    full: bool
    """While true nothing is written to it; `Batch.resume` ends that."""

    def write(self, data: bytes) -> None:
        """Hand over bytes of the body."""

    def close(self) -> None:
        """Say that the answer has ended."""

    def abort(self) -> None:
        """Break the connection."""


@dataclass(slots=True, kw_only=True)
class Served:
    """What really happened to a request, on the clock of the server's event loop: the truth to calibrate with."""

    number: int
    """Of all generation requests, from 1; the `id` of its chunks ends in it."""
    request_id: str
    """The client's X-Request-Id."""
    prompt: int
    """CRC-32 of the prompt as JSON text."""
    arrived: float
    """When its last byte reached this machine (where the kernel tells, else when it was read)."""
    started: float | None = None
    """When it left the queue."""
    chunks: list[tuple[float, int]] = field(default_factory=list)
    """When each chunk was handed to the socket, and its number of tokens."""
    ended: float | None = None
    outcome: str = ""
    """`stop`, `length`, `error`, `abort`; empty while it is served."""


@dataclass(slots=True, eq=False, kw_only=True)
class Stream:
    """A request and how far it is."""

    answer: FakeAnswer
    outlet: Outlet
    served: Served
    hits: int
    """Prompt tokens that the prefix cache holds."""
    accept: Callable[[], int]
    """Draws how many draft tokens of the next step stand."""
    chance: random.Random
    slowness: float
    steps: list[int]
    """How many of its verifications accepted 0, 1 ... k tokens."""
    fails_at: int | None = None
    due: float = 0.0
    done: int = 0
    parked: bool = False
    """Whether it waits for room in its outlet."""


def make_acceptance(script: FakeScript, temperature: float, chance: random.Random, *, known: bool) -> Callable[[], int]:
    """Return what draws the accepted tokens of each step of one request."""
    if known:
        return lambda: script.k
    if not script.rates and not script.heat:
        pattern = cycle([min(count, script.k) for count in script.accepted])
        return lambda: next(pattern)
    rates = script.rates_at(temperature)

    def toss() -> int:
        coin = chance.random()
        return sum(coin < rate for rate in rates)

    return toss
