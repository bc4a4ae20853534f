"""The engine's config as a whole: who runs the setup, how it is scheduled, and what its flags reject or change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from draftwise.core import Ruling
from draftwise.plan.check.context import SPEC, Context
from draftwise.plan.check.engine.adaptive import find_adaptive
from draftwise.plan.check.engine.budget import find_budget
from draftwise.plan.check.engine.conflicts import find_conflicts
from draftwise.plan.check.engine.runner import Runner, choose_runner, find_runner, find_triton
from draftwise.plan.check.engine.schedule import drop_schedule
from draftwise.plan.check.engine.scheduling import find_scheduling, find_scheduling_alone, schedules_async
from draftwise.plan.check.engine.v0 import find_v0
from draftwise.plan.check.report import Resolved
from draftwise.plan.check.steps import Step

__all__ = ["complete", "judge_engine"]


def complete(context: Context, resolved: Resolved | None) -> Step[Resolved | None]:
    """Return the config with its runner and its scheduling filled in, and yield what the engine makes of it."""
    yield from _find_idle_flags(context)
    yield from find_v0(context, resolved)
    if context.spec is None:
        yield from find_triton(context, choose_runner(context, None))
        yield from find_scheduling_alone(context)
    if resolved is None:
        return None
    chosen = choose_runner(context, resolved)
    resolved = replace(resolved, runner=chosen.name)
    resolved = replace(resolved, async_scheduling=schedules_async(context, resolved))
    return resolved if context.runs_on_v0 else (yield from judge_engine(context, resolved, chosen))


def judge_engine(context: Context, resolved: Resolved, chosen: Runner) -> Step[Resolved]:
    """Return the config without what the V1 engine drops of it, and yield what it rejects or changes.

    Args:
        context: the setup.
        resolved: its speculative config, with `runner` filled in.
        chosen: the runner that takes it, and why.
    """
    yield from find_runner(context, resolved, chosen)
    yield from find_scheduling(context, resolved)
    yield from find_budget(context, resolved)
    kept = yield from drop_schedule(context, resolved)
    yield from find_adaptive(context)
    yield from find_conflicts(context, resolved)
    return kept


def _find_idle_flags(context: Context) -> Iterator[Ruling]:
    """Yield flags about requests that need speculation and do not have it."""
    flag = "--per-request-spec-decode-metrics"
    given = context.given.get("per_request_spec_decode_metrics")
    if context.spec is None and given not in (None, "none"):
        yield from context.rules.ruling(
            "request-metrics-without-speculation",
            f"{flag} {given} needs speculation, and there is none.",
            where=flag,
            fix=f"Leave it out, or give {SPEC}.",
        )
