"""Finds engines that hang, with requests in flight, and those that get none while others of their server are busy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from draftwise.core import Finding, Window
from draftwise.core.grouping import group_by
from draftwise.knowledge.messages import fault, warning

HUNG = "engine-hung"
STARVED_S = 240.0
"""Seconds after which steps without tokens cannot be prefill."""
HUNG_S = 10.0
"""Seconds without tokens after which an engine counts as hung: no prefill step takes that long."""

_IDLE_S, _BUSY = 60.0, 4.0
"""Seconds without a token, and running requests of each other engine, from which an engine is left out."""


def stands_still(window: Window) -> bool:
    """Return whether an engine had requests during the whole window and made no progress."""
    in_flight = (window.load.running or 0.0) + (window.load.waiting or 0.0)
    steps = window.sums.engine_steps if window.duration_s < STARVED_S else None  # steps of a long prompt end by then
    made = (window.output_tokens, steps, window.sums.finished, window.sums.first_tokens)
    return window.output_tokens == 0 and not any(made) and in_flight >= 1 and not (window.sleeping or window.ends_idle)


def describe_stall(window: Window, seconds: float) -> str:
    """Describe the stall in a sentence that names the engine."""
    load, engine = window.load, f", engine {window.engine}" if window.engine else ""
    return (
        f"{window.instance}{engine} has {load.running or 0:.0f} requests running and {load.waiting or 0:.0f} "
        f"waiting, but has generated no token for {seconds:.0f} s."
    )


def tell_hung_or_copied(hung: Finding) -> Finding:
    """Return the finding for a server that stands still, and of whose process nothing is known."""
    doubt = (
        "Its page tells nothing about its process, so a cache may answer in its place: compare it with the pod's own."
    )
    return replace(hung, message=f"{hung.message} {doubt}") if hung.code == HUNG else hung


@dataclass(slots=True)
class Stalls:
    """Tracks how long each engine has been stalled, and when it last generated."""

    _seconds: dict[tuple[str, str, str], tuple[float, Window]] = field(default_factory=dict)
    _worked: dict[tuple[str, str, str], tuple[float, Window]] = field(default_factory=dict)

    def add(self, windows: Iterable[Window]) -> None:
        """Add the newest windows."""
        for window in windows:
            key = (window.pool, window.instance, window.engine)
            if window.restarted:
                self._worked = {each: worked for each, worked in self._worked.items() if each[:2] != key[:2]}
            if window.output_tokens is not None:
                since_s, _ = self._worked.get(key, (window.start_s, window))
                stands = not window.output_tokens and not window.sleeping
                self._worked[key] = (since_s if stands else window.start_s + window.duration_s, window)
            if stands_still(window):
                before = self._seconds[key][0] if key in self._seconds else 0.0
                self._seconds[key] = (before + window.duration_s, window)
            else:
                self._seconds.pop(key, None)

    def find(self) -> Iterator[Finding]:
        """Yield a finding per hung engine."""
        for seconds, window in self._seconds.values():
            if seconds >= HUNG_S:
                yield fault("engine-hung", text=describe_stall(window, seconds), where=window.instance)
        yield from self.find_silent()

    def find_silent(self) -> Iterator[Finding]:
        """Yield a finding per engine that gets no requests while the others of its server are busy."""
        for engines in group_by(lambda item: item[0][:2], self._worked.items()).values():
            newest_s = max(worked_s for _, (worked_s, _) in engines)
            running = [each.load.running or 0.0 for _, (at_s, each) in engines if newest_s - at_s < _IDLE_S]
            for key, (worked_s, window) in engines:
                idle_s = newest_s - worked_s
                if idle_s >= _IDLE_S and key not in self._seconds and sum(running) >= _BUSY * len(running):
                    yield warning("rank-silent", engine=window.engine, seconds=idle_s, where=window.instance)
