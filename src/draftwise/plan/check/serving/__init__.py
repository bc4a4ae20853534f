"""What shows only after the config was accepted: at start-up, per request, or never."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.engine.graphs import find_graphs
from draftwise.plan.check.engine.schedule import find_schedule_faults
from draftwise.plan.check.report import Resolved
from draftwise.plan.check.serving.backends import find_backends
from draftwise.plan.check.serving.drafters import find_drafters
from draftwise.plan.check.serving.keys import find_idle_keys
from draftwise.plan.check.serving.overlaps import find_overlaps
from draftwise.plan.check.serving.platforms import find_cpu
from draftwise.plan.check.serving.requests import find_requests
from draftwise.plan.check.serving.sampling import find_sampling
from draftwise.plan.check.serving.traps import find_traps

__all__ = ["find_serving"]

_FINDERS = (
    find_cpu,
    find_drafters,
    find_backends,
    find_schedule_faults,
    find_sampling,
    find_overlaps,
    find_idle_keys,
    find_graphs,
    find_traps,
    find_requests,
)


def find_serving(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield what a server of an accepted config meets; the rules are about the V1 engine's runners."""
    if not context.runs_on_v0:
        for find in _FINDERS:
            yield from find(context, resolved)
