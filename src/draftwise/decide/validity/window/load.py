"""Whether a server had requests of others, going by the gauges before each turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from draftwise.core import Finding, ServerLoad
from draftwise.decide.thresholds import Thresholds
from draftwise.decide.validity.finding import warning

__all__ = ["check_foreign_requests"]


def check_foreign_requests(arm: str, before: Sequence[ServerLoad], thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a server that was busy before turns, when nothing of the run was on it.

    Args:
        before: its gauges before each turn.
    """
    loads = [(each.running or 0.0, each.waiting or 0.0) for each in before]
    busy = [load for load in loads if sum(load) > 0]
    if loads and len(busy) > thresholds.busy_turns * len(loads):
        running, waiting = (max(values) for values in zip(*busy, strict=True))
        text = (
            f"before {len(busy)} of {len(loads)} turns {arm} had requests already (up to {running:.0f} running, "
            f"{waiting:.0f} waiting)"
        )
        yield warning("other-requests", f"{text}.", "Measure on servers that nothing else talks to.")
