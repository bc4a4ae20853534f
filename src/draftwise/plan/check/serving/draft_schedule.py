"""A schedule of draft lengths by batch size: the faults that stop the engine, and what it does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from draftwise.core import Ruling
from draftwise.plan.check.check_report import Resolved
from draftwise.plan.check.engine.step_budget import SCHEDULE, Entry, read_schedule
from draftwise.plan.check.stages import Context

__all__ = ["find_schedule"]


def find_schedule(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield what is wrong with a schedule, which is looked at after the config was accepted, or else what it does."""
    schedule = read_schedule(context)
    if not schedule or resolved.fields.get(SCHEDULE, schedule) is None:
        return
    fault = _find_fault(schedule)
    if fault:
        yield from context.rules.ruling("schedule-invalid", message=fault)
        return
    yield from _find_surprises(context, resolved, sorted(schedule))
    k = resolved.num_speculative_tokens
    if k is None or all(entry[2] >= k for entry in schedule):
        return
    if resolved.runner == "V1" and resolved.facts.v1_draft_length == "fixed":
        yield from context.rules.ruling("schedule-breaks-drafter", method=resolved.method, k=k)
    if resolved.runner == "V2":
        yield from list(_find_broken_capture(context, resolved, schedule, k)) or _find_full_drafts(context, resolved, k)
        yield from _find_costs(context, resolved, schedule)


def _find_fault(schedule: Sequence[Entry]) -> str:
    """Return what is wrong with the ranges, as a sentence; empty where nothing is."""
    for first, last, k in schedule:
        entry = f"The entry [{first}, {last}, {k}]"
        if first <= 0 or last <= 0:
            return f"{entry} names batch size {min(first, last)}; they start at 1."
        if first > last:
            return f"{entry} has a first batch size that is larger than the last."
        if k < 0:
            return f"{entry} has a draft length below 0."
    ordered = sorted(schedule, key=lambda entry: entry[0])
    for before, after in pairwise(ordered):
        if after[0] <= before[1]:
            return f"The entries {list(before)} and {list(after)} overlap."
    first = ordered[0][0]
    return "" if first == 1 else f"The schedule starts at batch size {first}; the first range must start at 1."


def _find_surprises(context: Context, resolved: Resolved, schedule: Sequence[Entry]) -> Iterator[Ruling]:
    k = resolved.num_speculative_tokens
    above = [list(entry) for entry in schedule if k is not None and entry[2] > k]
    if above:
        yield from context.rules.ruling("schedule-clamped", entry=str(above[0]), k=k)
    for before, after in pairwise(schedule):
        if after[0] > before[1] + 1:
            yield from context.rules.ruling("schedule-gap", first=before[1] + 1, last=after[0] - 1, tokens=before[2])

    yield from context.rules.ruling("schedule-counts-prefills")


def _find_broken_capture(context: Context, resolved: Resolved, schedule: Sequence[Entry], k: int) -> Iterator[Ruling]:
    """Yield whether the graphs of a drafter that makes one pass a token cannot be captured."""
    if resolved.facts.network != "chain" or context.lacks_full_graphs or context.runs_eagerly:
        return
    fewer = next(str(list(entry)) for entry in schedule if entry[2] < k)
    yield from context.rules.ruling("schedule-breaks-capture", fewer=fewer, k=k, method=resolved.method)


def _find_full_drafts(context: Context, resolved: Resolved, k: int) -> Iterator[Ruling]:
    """Yield whether Model Runner V2 drafts k tokens where the schedule asks for fewer."""
    if resolved.facts.drafts_from != "text":
        yield from context.rules.ruling("schedule-drafts-in-full", method=resolved.method, k=k)


def _find_costs(context: Context, resolved: Resolved, schedule: Sequence[Entry]) -> Iterator[Ruling]:
    """Yield what else Model Runner V2 goes on paying for."""
    if any(entry[2] == 0 for entry in schedule):
        yield from context.rules.ruling("schedule-off-still-drafts", method=resolved.method)
    if "kv_transfer_config" in context.on:
        yield from context.rules.ruling("schedule-unpads-admissions")
