"""What a server says beyond its speculative config: the engine around it, start-up, requests, idle keys."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.later.backends import find_backends
from draftwise.plan.check.later.budget import find_budget
from draftwise.plan.check.later.drafters import find_drafters
from draftwise.plan.check.later.graphs import find_graphs
from draftwise.plan.check.later.keys import find_idle_keys
from draftwise.plan.check.later.legacy import find_v0, runs_on_v0
from draftwise.plan.check.later.parallelism import find_conflicts, find_overlaps
from draftwise.plan.check.later.platforms import find_cpu
from draftwise.plan.check.later.requests import find_request_flags, find_requests
from draftwise.plan.check.later.runner import Runner, find_runner, find_triton, runner
from draftwise.plan.check.later.schedule import find_schedule_changes, find_schedule_faults
from draftwise.plan.check.later.scheduling import async_scheduling, find_scheduling, find_scheduling_alone
from draftwise.plan.check.later.traps import find_length_changes, find_traps
from draftwise.plan.check.later.verification import find_adaptive, find_sampling
from draftwise.plan.check.report import Resolved

__all__ = ["Runner", "async_scheduling", "find_engine", "find_later", "runner"]

_ENGINE = (
    find_runner,
    find_scheduling,
    find_budget,
    find_schedule_changes,
    find_adaptive,
    find_conflicts,
    find_length_changes,
)
_LATER = (
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


def find_engine(context: Context, resolved: Resolved | None) -> Iterator[Ruling]:
    """Yield what the engine's config rejects or changes because of its flags.

    Args:
        context: the setup.
        resolved: its speculative config, with `runner` filled in; None without speculation.
    """
    yield from find_request_flags(context)
    yield from find_v0(context, resolved)
    if context.spec is None:
        yield from find_triton(context, None)
        yield from find_scheduling_alone(context)
    if resolved is not None and not runs_on_v0(context):
        for find in _ENGINE:
            yield from find(context, resolved)


def find_later(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield what shows only after the config was accepted: at start-up, per request, or never."""
    if not runs_on_v0(context):
        for find in _LATER:
            yield from find(context, resolved)
