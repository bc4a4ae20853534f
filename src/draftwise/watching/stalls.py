"""Engines that stand still: requests are in flight, and neither tokens nor steps are made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from draftwise.core import Finding, Window
from draftwise.knowledge.messages import fault

HUNG = "engine-hung"
STARVED_S = 240.0
"""Seconds from which steps without a token are no prompt's either."""
HUNG_S = 10.0
"""Seconds without a token from which an engine hangs: no prompt's step takes as long."""


def stands_still(window: Window) -> bool:
    """Return whether an engine had requests for all of a window and got nowhere with them."""
    in_flight = (window.load.running or 0.0) + (window.load.waiting or 0.0)
    steps = window.sums.engine_steps if window.duration_s < STARVED_S else None  # steps of a long prompt end by then
    made = (window.output_tokens, steps, window.sums.finished, window.sums.first_tokens)
    return window.output_tokens == 0 and not any(made) and in_flight >= 1 and not window.sleeping


def describe_stall(window: Window, seconds: float) -> str:
    """Return a sentence that names the engine."""
    load, engine = window.load, f", engine {window.engine}" if window.engine else ""
    return (
        f"{window.instance}{engine} has {load.running or 0:.0f} requests running and {load.waiting or 0:.0f} "
        f"waiting, but has generated no token for {seconds:.0f} s."
    )


@dataclass(slots=True)
class Stalls:
    """How long each engine has stood still by now."""

    _seconds: dict[tuple[str, str, str], tuple[float, Window]] = field(default_factory=dict)

    def add(self, windows: Iterable[Window]) -> None:
        """Take in the newest windows."""
        for window in windows:
            key = (window.pool, window.instance, window.engine)
            if stands_still(window):
                before = self._seconds[key][0] if key in self._seconds else 0.0
                self._seconds[key] = (before + window.duration_s, window)
            else:
                self._seconds.pop(key, None)

    def find(self) -> Iterator[Finding]:
        """Yield each engine that hangs."""
        for seconds, window in self._seconds.values():
            if seconds >= HUNG_S:
                yield fault("engine-hung", text=describe_stall(window, seconds), where=window.instance)
