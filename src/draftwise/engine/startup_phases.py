"""Phases of an engine's start, with the seconds that each took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Startup(Protocol):
    """Notified by the engine of what it begins and, by leaving the block, what it has done.

    Example:
        >>> with startup.phase("load weights"):
        ...     model = load_model(config.model)
    """

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Return the block of a phase, named by what it does: `load weights`."""


class TimedStartup:
    """Takes the time of each phase and says nothing; a subclass may report it.

    Attributes:
        seconds: of each phase so far, in their order; phases of the same name add up.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase; one that raises is not reported as done."""
        self.began(name)
        start = self._clock()
        yield
        took = self._clock() - start
        self.seconds[name] = self.seconds.get(name, 0.0) + took
        self.ended(name, took)

    def began(self, name: str) -> None:
        """Take note of a phase that begins."""

    def ended(self, name: str, seconds: float) -> None:
        """Take note of a phase that is over."""
