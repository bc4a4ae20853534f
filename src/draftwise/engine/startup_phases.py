"""Start-up phases of an engine, with their durations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Startup(Protocol):
    """Receives the start and end of each start-up phase.

    Example:
        >>> with startup.phase("load weights"):
        ...     model = load_model(config.model)
    """

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Return a context manager for a phase, named by its work, such as `load weights`."""


class TimedStartup:
    """Records each phase's duration. A subclass may report it.

    Attributes:
        seconds: duration of each phase so far, in order. Phases with the same name add up.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = clock

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase. If it raises, it is not reported as done."""
        self.began(name)
        start = self._clock()
        yield
        took = self._clock() - start
        self.seconds[name] = self.seconds.get(name, 0.0) + took
        self.ended(name, took)

    def began(self, name: str) -> None:
        """Report the start of a phase."""

    def ended(self, name: str, seconds: float) -> None:
        """Report the end of a phase."""
